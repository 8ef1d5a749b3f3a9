"""Megatron-Core's parallel state on two gloo processes: tensor parallelism 2, data parallelism 1."""

import os
import sys

import torch
import torch.distributed as dist
from megatron.core import num_microbatches_calculator, parallel_state

from usp_prof import record
from usp_prof.record.adapters import megatron

record.prepare()
dist.init_process_group("gloo")
parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
num_microbatches_calculator.init_num_microbatches_calculator(dist.get_rank(), None, 12, 2, 1)
with megatron.session(sys.argv[1], sequence=16, peak_flops=1e9) as session:
    for _ in range(4):
        dist.all_reduce(torch.ones(5), group=parallel_state.get_tensor_model_parallel_group())
        session.advance()

# As in the transformers program: a thread of gloo's may abort the interpreter's end.
sys.stdout.flush()
os._exit(0)
