"""Rank 1 is killed while the others wait in C code, as for a GPU, and are then asked to stop."""

import os
import signal
from datetime import timedelta

import torch.distributed as dist

from trainer.watchdog import watched

store, rank, world = next(dist.rendezvous("env://"))
dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
with watched(rank, world, store):
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.HashStore().wait(["never"], timedelta(seconds=100))
