"""Placement: which box of a whole weight a rank holds, whatever the layout cut it by; slices: what a rank updates.

A box is given by its first index and its size in each dimension of the whole weight. Tensor and expert parallelism cut
along one dimension. ZeRO cuts a flat buffer wherever its equal parts end, which may be inside a row: such a run of
memory is several boxes. The run 3..12 of a weight of rows of 5 holds
    the end of row 0      [0:1, 3:5]
    all of row 1          [1:2, 0:5]
    the start of row 2    [2:3, 0:2]
Checkpoints store boxes under the weight's name, so any layout finds its own boxes in those of any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where this rank's part of a weight begins in the whole weight."""

    whole: Sizes
    offsets: Sizes


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a named weight that lies in one run of a slice's memory."""

    name: str
    whole: Sizes
    offsets: Sizes
    sizes: Sizes
    start: int
    """Where the run begins in the slice."""

    def view(self, memory: torch.Tensor) -> torch.Tensor:
        """Return the box in a tensor laid out as the slice is: its weights, or one of their moments."""
        return memory.view(-1)[self.start : self.start + prod(self.sizes)].view(self.sizes)


def boxes_of_run(name: str, placement: Placement, part: Sizes, run: range, start: int) -> list[Box]:
    """Return the boxes of a run of a part's memory, which begins at `start` of a slice."""
    boxes = []
    for corner, sizes in _cut(part, run.start, run.stop):
        offsets = tuple(first + inner for first, inner in zip(placement.offsets, corner, strict=True))
        boxes.append(Box(name, placement.whole, offsets, sizes, start))
        start += prod(sizes)
    return boxes


def _cut(part: Sizes, start: int, stop: int) -> Iterator[tuple[Sizes, Sizes]]:
    """Cut a run of row-major memory into boxes, in the order of the memory: corner and sizes of each."""
    if start >= stop:
        return
    if len(part) == 1:
        yield (start,), (stop - start,)
        return
    row = prod(part[1:])
    first_whole, last_whole = -(-start // row), stop // row
    # Rows that the run covers in part: the one it begins in, the one it ends in, or one that holds all of it.
    if first_whole > last_whole:
        yield from _within(part, last_whole, start, stop)
        return
    yield from _within(part, first_whole - 1, start, first_whole * row)
    if last_whole > first_whole:
        yield (first_whole, *(0 for _ in part[1:])), (last_whole - first_whole, *part[1:])
    yield from _within(part, last_whole, last_whole * row, stop)


def _within(part: Sizes, index: int, start: int, stop: int) -> Iterator[tuple[Sizes, Sizes]]:
    row = prod(part[1:])
    for corner, sizes in _cut(part[1:], start - index * row, stop - index * row):
        yield (index, *corner), (1, *sizes)


# Slices: weights that a rank updates, as the optimizer has them and as the model has them.
#
# Whatever the ZeRO stage, the optimizer gets plain local tensors: flat buckets (`data.py`) or this rank's part of them,
# also where that is all it keeps (`sharding.py`). It runs on the device, or in host memory (`offload.py`).


@dataclass(slots=True)
class Slice:
    """Some weights that this rank updates: what the optimizer has of them, what the model has, and their gradient."""

    master: torch.Tensor
    """What the optimizer updates and checkpoints store, in fp32 or wider; in host memory where it is offloaded."""
    weights: torch.Tensor
    """What the model reads: the masters themselves, or their copy in the layers' type or on the device."""
    copies: int
    """How many ranks of the world hold this very slice; a norm over all ranks must count it once."""
    boxes: list[Box]
    """Which weights lie in it, for checkpoints."""
    tied: bool = False
    """Whether it is a tied embedding that two pipeline stages hold a copy of; their gradients are to be added."""
    written: bool = True
    """Whether a checkpoint stores it from here; not so for the second copy of a tied embedding."""
    gradient: torch.Tensor | None = None
    """In the masters' type, on the model's device; there from `finish` to `publish`."""


def room_on_host(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Allocate host memory as large as a tensor; page-locked where a GPU copies from and to it, beside other work."""
    return torch.empty(like.shape, dtype=dtype, pin_memory=like.is_cuda)
