"""Lightning's Trainer on two processes: DDP, two micro-batches per step."""

import os
import sys
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from usp_prof import record
from usp_prof.record.adapters.lightning import RecordCallback


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return mse_loss(self.layer(batch[0]), batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


record.prepare()
trainer = Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_steps=4,
    accumulate_grad_batches=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[
        RecordCallback(
            Path(sys.argv[1]) / "run",
            model={"hidden": 16, "layers": 1, "heads": 1, "ffn_hidden": 16, "vocab": 16},
            sequence=16,
            peak_flops=1e9,
        )
    ],
)
trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(64, 16)), batch_size=4))

# As in the transformers program: a thread of gloo's may abort the interpreter's end.
sys.stdout.flush()
os._exit(0)
