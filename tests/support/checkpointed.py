"""Program of two layers with activation checkpoints that counts how often its layers run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.utils.checkpoint import checkpoint

from usp_prof import record
from usp_prof.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.tables.table_set import TableSet

STEPS, LAYERS, ROWS, WIDTH = 3, 2, 256, 256


class Program:
    """Two layers of one product each, a checkpoint around each, around both, or around both and each."""

    def __init__(self, around_each: bool, around_both: bool, reentrant: bool) -> None:
        self.weights = [torch.full((WIDTH, WIDTH), 0.01, requires_grad=True) for _ in range(LAYERS)]
        self.again = partial(checkpoint, use_reentrant=reentrant)
        self.around_each, self.around_both = around_each, around_both
        self.runs = 0

    def layer(self, index: int, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return torch.sigmoid(torch.nn.functional.linear(x, self.weights[index]))

    def both(self, x: torch.Tensor) -> torch.Tensor:
        for index in range(LAYERS):
            x = self.again(partial(self.layer, index), x) if self.around_each else self.layer(index, x)
        return x

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(self.both, x) if self.around_both else self.both(x)


def recorded(folder: Path, program: Program) -> TableSet:
    """Record the program's steps."""
    with record.session(folder / "run", peak_flops=1e9, wait=0, active=2, recompute="full") as session:
        for _ in range(STEPS):
            with session.step():
                x = torch.ones(ROWS, WIDTH, requires_grad=True)
                with record.phase("forward"):
                    loss = program(x).sum()
                with record.phase("backward"):
                    loss.backward()
    return open_run(folder / "run", cache_dir=folder / "cache").tables
