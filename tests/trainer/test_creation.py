"""Weights at the start: the part of each rank, and equal initial values under every layout.

Each rank is built alone, in a world of simulated ranks (torch's `fake` backend): creation sends nothing.
"""

from __future__ import annotations

import gc
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # noqa: F401 - registers the backend

from trainer.build import build, wanted_groups
from trainer.configuration.command_line import parse
from trainer.instrumentation.injection import Faults
from trainer.parallel.mesh import Mesh
from trainer.parallel.weights import normal
from trainer.rules import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainer.step import Update

pytestmark = pytest.mark.trainer

LAYOUTS = (
    "4 --dp 4",
    "4 --dp 4 --zero 1",
    "4 --dp 4 --zero 2",
    "4 --dp 4 --zero 3",
    "3 --dp 3 --zero 3 --batch 6",
    "4 --dp 2 --tp 2 --zero 1",
    "4 --pp 2 --dp 2 --schedule zbv --zero 3",
    "4 --dp 4 --ep 2 --experts 4 --zero 1",
    "4 --tp 2 --dp 2 --ep 2 --experts 4 --zero 3",
)


@contextmanager
def place(rank: int, world: int) -> Iterator[None]:
    """Simulate one rank of a world."""
    dist.init_process_group("fake", rank=rank, world_size=world, store=dist.HashStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def update_of(options: str, rank: int = 0, world: int = 1) -> Update:
    config = resolve(parse(["--device", "cpu", *options.split()]), world)
    mesh = Mesh.build(config.layout, rank, wanted_groups(config))
    return build(config, mesh, torch.device("cpu"), Faults(config, rank))


def peak_bytes(options: str, rank: int, world: int, folder: Path) -> int:
    """Return the peak bytes allocated while a rank's model is created, above the level before."""
    gc.collect()
    with place(rank, world), torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        update_of(options, rank, world)
    profile.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    changes = [event["args"] for event in events if event["name"] == "[memory]"]
    before = changes[0]["Total Allocated"] - changes[0]["Bytes"]
    return max(change["Total Allocated"] for change in changes) - before


@pytest.mark.parametrize("dtype", ["fp64", "bf16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_rank_starts_with_its_part_of_the_single_process_weights(layout: str, dtype: str) -> None:
    world, options = int(layout.split(maxsplit=1)[0]), layout.partition(" ")[2]
    experts = "--experts 4" if "--experts" in layout else ""
    with place(0, 1):
        alone = dict(update_of(f"--dtype fp64 {experts}").chunks[0].named_parameters())
    seen = dict.fromkeys(alone, 0)
    for rank in range(world):
        with place(rank, world):
            update = update_of(f"--dtype {dtype} {options}", rank, world)
            for bucket in update.buckets:
                for box in bucket.boxes():
                    region = tuple(
                        slice(start, start + size) for start, size in zip(box.offsets, box.sizes, strict=True)
                    )
                    # Master weights are drawn in fp32 regardless of the compute type.
                    assert torch.equal(box.view(bucket.master).double(), alone[box.name][region]), box.name
                    seen[box.name] += box.view(bucket.master).numel() * box.note.stored
    assert all(seen[name] >= weight.numel() for name, weight in alone.items())


SMALL = resolve(parse(["--model", "small", "--layers", "4"]), 1).shape
WHOLE = 4 * SMALL.parameters
"""Bytes of all weights in fp32."""
DRAWN = 4 * SMALL.vocab * SMALL.hidden
"""Bytes of the largest block that is drawn at a time: the embedding."""


@pytest.mark.parametrize("layout", ["--dp 4", "--dp 2 --tp 2", "--pp 2 --dp 2"])
def test_a_rank_under_zero_3_never_holds_more_than_its_shard(layout: str, tmp_path: Path) -> None:
    peak = peak_bytes(f"--model small --layers 4 --dtype bf16 {layout} --zero 3", 3, 4, tmp_path)
    assert WHOLE / 4 < peak < 1.05 * WHOLE / 4 + 1.1 * DRAWN


def test_without_sharding_a_rank_has_weights_and_no_second_copy(tmp_path: Path) -> None:
    peak = peak_bytes("--model small --layers 4", 0, 1, tmp_path)
    assert WHOLE < peak < 1.05 * WHOLE + 1.1 * DRAWN


def test_a_box_equals_its_part_of_the_full_tensor() -> None:
    full = torch.empty(3000, 700)  # of 1497 rows each are two blocks, and a third of six
    begin = normal("weight", seed=1)
    begin(full, (3000, 700), (0, 0))
    assert full.std() == pytest.approx(0.02, rel=0.01)
    assert not torch.equal(full[:1000], full[1497:2497])
    for top, left, rows, columns in ((0, 0, 10, 700), (1490, 100, 20, 7), (2993, 0, 7, 1), (5, 699, 2990, 1)):
        box = torch.empty(rows, columns)
        begin(box, (3000, 700), (top, left))
        assert torch.equal(box, full[top : top + rows, left : left + columns])
