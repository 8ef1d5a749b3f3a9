"""torchtitan's parallel dims and profiler, used as in its trainer, on two gloo processes with tp 2."""

import os
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims, parallel_dims
from torchtitan.tools.profiler import Profiler

from usp_prof import record
from usp_prof.record.adapters import torchtitan

parallel_dims.device_type = "cpu"  # it selects CUDA even without a GPU
record.prepare()
dist.init_process_group("gloo")
parallelism = ParallelismConfig(tensor_parallel_degree=2)
dims = ParallelDims.from_config(parallelism, world_size=2)
tensor = dims.get_mesh("tp").get_group()
# Its trainer needs a tokenizer and a data set; this has only the parts that the adapter reads.
config = SimpleNamespace(
    training=TrainingConfig(local_batch_size=3, seq_len=16), parallelism=parallelism, profiler=Profiler.Config()
)
trainer = SimpleNamespace(config=config, parallel_dims=dims, gradient_accumulation_steps=4)
torchtitan.attach(trainer, sys.argv[1], peak_flops=1e9)
with config.profiler.build(global_step=0, base_folder=sys.argv[1]) as profiler:
    for _ in range(4):
        dist.all_reduce(torch.ones(5), group=tensor)
        profiler.step()

# As in the transformers program: a thread of gloo's may abort the interpreter's end.
sys.stdout.flush()
os._exit(0)
