"""Rank 1 is killed while the others wait in C for something that never comes, like for a GPU, and are asked to stop."""

import os
import signal
from datetime import timedelta

import torch.distributed as dist

from trainer.watchdog import watched

dist.init_process_group("gloo")
with watched(dist.get_rank(), dist.get_world_size()):
    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.HashStore().wait(["never"], timedelta(seconds=100))
