"""One of two processes is killed within the recorded window."""

import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from usp_prof import record

record.prepare()
dist.init_process_group("gloo", timeout=timedelta(seconds=20))
with record.session(sys.argv[1], mesh={"dp": 2}, peak_flops=1e9, wait=0, warmup=1, active=3) as session:
    for step in range(6):
        with session.step():
            if step == 2 and dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(torch.ones(5))
