"""FSDP2 on two processes; the mesh is read from the parameters."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss

from usp_prof import record
from usp_prof.record.adapters import fsdp2

record.prepare()
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(3)])
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
with fsdp2.session(sys.argv[1], model, micro_batch_tokens=8, peak_flops=1e9) as session:
    for _ in range(4):
        with session.step():
            with record.phase("forward"):
                loss = mse_loss(model(torch.randn(8, 32)), torch.zeros(8, 32))
            with record.phase("backward"):
                loss.backward()
            with record.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
dist.destroy_process_group()
