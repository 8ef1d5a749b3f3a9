"""DeepSpeed's engine on two gloo processes: ZeRO-1, two micro-batches per step."""

import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed as theirs
import torch
from torch.nn.functional import mse_loss

from usp_prof import record
from usp_prof.record.adapters import deepspeed

record.prepare()
theirs.init_distributed("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
config = {
    "train_micro_batch_size_per_gpu": 3,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
engine, *_ = theirs.initialize(model=model, optimizer=optimizer, config=config)
with deepspeed.session(sys.argv[1], engine, sequence=4, peak_flops=1e9) as session:
    for _ in range(8):
        with record.phase("forward"):
            loss = mse_loss(engine(torch.randn(3, 16)), torch.zeros(3, 16))
        with record.phase("backward"):
            engine.backward(loss)
        deepspeed.step(session, engine)

# As in the transformers program: a thread of gloo's may abort the interpreter's end.
sys.stdout.flush()
os._exit(0)
