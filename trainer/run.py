"""Train a small decoder on a five-axis mesh: ``torchrun --nproc-per-node 8 trainer/run.py --profile``.

Reads from here downwards: options (`config`), whether they can be (`rules`), the mesh (`parallel/mesh`), the model on
it (`build`), one update (`step`), and the loop below.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

# torchrun puts this folder first on the path, where its modules would hide others of the same name.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
import torch.distributed as dist

from trainer.build import build, layout_title, wanted_groups
from trainer.config import parse
from trainer.data import Batches
from trainer.errors import OptionError
from usp_prof.record.marks import mark
from trainer.parallel.mesh import Mesh
from trainer.rules import Settled, settle


def main() -> int:
    """Run the trainer; gives the exit status."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    try:
        settled = settle(parse(sys.argv[1:]), world)
    except OptionError as error:
        if rank == 0:
            print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        return 2
    device = choose_device(settled)
    backend = "nccl" if device.type == "cuda" else "gloo"
    if world == 1:
        os.environ.setdefault("MASTER_ADDR", "localhost")
        os.environ.setdefault("MASTER_PORT", "0")
    dist.init_process_group(
        backend, rank=rank, world_size=world, timeout=timedelta(seconds=settled.options.timeout)
    )
    try:
        train(settled, rank, device)
    finally:
        dist.destroy_process_group()
    return 0


def choose_device(settled: Settled) -> torch.device:
    """Take this process's GPU, or the CPU."""
    if settled.options.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def train(settled: Settled, rank: int, device: torch.device) -> None:
    """Build everything and loop over the steps."""
    options = settled.options
    mesh = Mesh.build(settled.layout, rank, wanted_groups(settled))
    if rank == 0:
        print(f"mesh: {layout_title(settled.layout)}; {settled.shape.name}, {settled.shape.parameters:,} parameters")
    update = build(settled, mesh, device)
    batches = Batches(settled, mesh.place, device)
    for step in range(options.steps):
        start = time.perf_counter()
        with mark("train", "input"):
            passes = batches.update(step)
        outcome = update(step, passes)
        with mark("train", "log"):
            if rank == 0:
                print(f"step {step} loss {outcome.loss.item():.12f} norm {outcome.norm.item():.12f} {time.perf_counter() - start:.3f}s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
