"""How does a run continue where it stopped? Distributed checkpoints: each rank writes its own part.

A checkpoint holds what this rank optimizes, so it continues on the same mesh, bit for bit. It is written under a
temporary name and renamed when every rank is done, so a crash leaves the one before.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import checkpoint

from trainer.errors import refuse
from trainer.parallel.layout import ORDER
from trainer.settled import Settled
from trainer.step import Update

IDENTITY = "identity.json"


def save(folder: Path, step: int, settled: Settled, update: Update) -> None:
    """Write the state after `step` updates."""
    final, partial = folder / f"step-{step:06d}", folder / f".step-{step:06d}.partial"
    checkpoint.save(_state(update), checkpoint_id=partial)
    if dist.get_rank() == 0:
        (partial / IDENTITY).write_text(json.dumps(_identity(settled)))
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
    dist.barrier()


def load(folder: Path, settled: Settled, update: Update) -> int:
    """Read the newest state in place; gives the number of updates made so far."""
    newest = max(folder.glob("step-*"), default=None)
    refuse(newest is None, f"--checkpoint {folder}: there is none to resume from", "leave --resume out")
    written = json.loads((newest / IDENTITY).read_text())
    for key, now in _identity(settled).items():
        refuse(
            written.get(key) != now,
            f"{newest} was written with {key} = {written.get(key)}, this run has {now}",
            "resume with the options that it was written with, or train anew into another --checkpoint",
        )
    update.prime()
    checkpoint.load(_state(update), checkpoint_id=newest)
    update.data.publish()
    return int(newest.name.removeprefix("step-"))


def _state(update: Update) -> dict[str, Any]:
    """Key the state by rank: shards of different ranks are different tensors, whatever their names."""
    return {f"rank{dist.get_rank()}": update.state()}


def _identity(settled: Settled) -> dict[str, Any]:
    options = settled.options
    return {
        "mesh": {**dict(zip(ORDER, settled.layout.sizes, strict=True)), "ep": settled.layout.ep},
        "model": asdict(settled.shape),
        "zero": options.zero,
        "schedule": settled.schedule,
        "dtype": options.dtype,
    }
