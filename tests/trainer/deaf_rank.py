"""Rank 1 is killed while rank 0 waits in C for something that never comes, as for a GPU; it is told to stop there."""

import os
import signal
from datetime import timedelta

import torch.distributed as dist

from trainer.alive import watched

dist.init_process_group("gloo")
with watched(dist.get_rank(), 2):
    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.HashStore().wait(["never"], timedelta(seconds=100))
