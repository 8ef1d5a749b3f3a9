"""Weights: declared without memory; then each rank creates only the part that it stores.

A layer declares its part of a weight as a parameter on torch's `meta` device, which has a shape but no memory. Its
`note` describes how the whole weight is initialized, which box of the whole weight the part is, and over which ranks
its gradient is summed. Data parallelism decides what this rank stores: the part, or a shard of it with ZeRO. It places
weights of one kind in a flat buffer (`FlatWeights`) and initializes it. A rank never allocates more of a weight than
it stores, plus one block while it draws.

Each weight is drawn from the seed and its name, in blocks of whole rows with one generator each. A shard draws the
blocks that it overlaps, so its values do not depend on the layout, and every layout starts from the same model.

A box is a first index and a size in each dimension of the whole weight. Tensor and expert parallelism cut along one
dimension. ZeRO cuts a flat buffer into equal parts, which may end within a row. Such a run of memory is several boxes.
With rows of 5, the run 3..12 of a weight has

    the end of row 0      [0:1, 3:5]
    all of row 1          [1:2, 0:5]
    the start of row 2    [2:3, 0:2]

Checkpoints store boxes under the weight's name, so any layout can read the boxes of any other.

Messages: none.
Called by: `stage.py` declares weights, `build.py` creates them in buckets, whose boxes checkpoints store.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np
import torch
from torch import nn

Sizes = tuple[int, ...]
Initializer = Callable[[torch.Tensor, Sizes, Sizes], None]
"""Writes the values of a box into memory; takes the memory, the sizes of the whole weight, the offsets of the box."""
BLOCK = 2**20
"""Approximate count of numbers that one generator draws; 4 MB."""


def constant(value: float) -> Initializer:
    """Return an initializer that writes the same value everywhere."""
    return lambda memory, _whole, _offsets: memory.fill_(value)


def normal(name: str, seed: int, std: float = 0.02) -> Initializer:
    """Return an initializer that draws normally distributed numbers, always in fp32."""
    return partial(_draw, name, seed, std)


def normal_each(name: str, seed: int) -> Initializer:
    """Return an initializer of routed experts, ``[experts, rows, columns]``, each drawn from its own name."""

    def draw(memory: torch.Tensor, whole_sizes: Sizes, offsets: Sizes) -> None:
        for expert, matrix in enumerate(memory, offsets[0]):
            normal(f"{name}.{expert}", seed)(matrix, whole_sizes[1:], offsets[1:])

    return draw


def _draw(name: str, seed: int, std: float, memory: torch.Tensor, whole_sizes: Sizes, offsets: Sizes) -> None:
    """Draw the blocks that the box overlaps, one at a time, and copy the overlap of each."""
    rows_of_block = max(1, BLOCK // prod(whole_sizes[1:]))
    first, end = offsets[0], offsets[0] + memory.shape[0]
    columns = [slice(offset, offset + size) for offset, size in zip(offsets[1:], memory.shape[1:], strict=True)]
    for start in range(first - first % rows_of_block, end, rows_of_block):
        index, rows = start // rows_of_block, min(rows_of_block, whole_sizes[0] - start)
        block = f"{name}[{index}]" if index else name
        generator = torch.Generator().manual_seed(zlib.crc32(block.encode()) + 1_000_003 * seed)
        drawn = torch.randn((rows, *whole_sizes[1:]), generator=generator).mul_(std)
        top, bottom = max(first, start), min(end, start + rows)
        memory[top - first : bottom - first] = drawn[(slice(top - start, bottom - start), *columns)]


@dataclass(frozen=True, slots=True)
class Note:
    """Properties of a parameter other than its values."""

    initialize: Initializer
    whole_sizes: Sizes
    offsets: Sizes
    """Where this rank's part begins in the whole weight."""
    kind: str = "dense"
    """Over which ranks its gradient is summed: `dense` (data parallelism), `partial` (tp too), `expert` or `tied`.

    `copied` is like `dense`, with the same weight on each tensor-parallel rank: a norm of all gradients counts it once.
    A tied embedding has a bucket of its own, so that both of its stages cut it alike; `Update` adds the two gradients.
    """
    stored: bool = True
    """Whether checkpoints take it from this stage; false for the second copy of a tied embedding."""


def note_of(parameter: nn.Parameter) -> Note:
    """Return the note of a parameter."""
    note: Note = parameter.note  # type: ignore[attr-defined]
    return note


def declare(part: Sizes, dtype: torch.dtype, note: Note) -> nn.Parameter:
    """Return a parameter without memory."""
    parameter = nn.Parameter(torch.empty(part, dtype=dtype, device="meta"))
    parameter.note = note  # type: ignore[attr-defined] # read by `note_of`
    return parameter


def tie(parameter: nn.Parameter, *, stored: bool) -> None:
    """Note that another pipeline stage has a copy of a weight, and whether checkpoints take it from this stage."""
    parameter.note = replace(note_of(parameter), kind="tied", stored=stored)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a weight that is one run of a flat buffer's memory."""

    name: str
    note: Note
    offsets: Sizes
    """Its first index in the whole weight."""
    sizes: Sizes
    start: int
    """First index of the run in the buffer."""

    def view(self, memory: torch.Tensor) -> torch.Tensor:
        """Return the box in a buffer with this layout: weights, or one of their moments."""
        return memory.view(-1)[self.start : self.start + prod(self.sizes)].view(self.sizes)


class FlatWeights:
    """Some weights of one kind of a module, one after another in a flat buffer."""

    def __init__(self, owner: nn.Module, names: list[str], device: torch.device, *, multiple: int) -> None:
        """Take the declared parameters of these names; the length is padded to a multiple."""
        declared = {name: owner.get_parameter(name) for name in names}
        length = sum(parameter.numel() for parameter in declared.values())
        self.flat = torch.zeros(length + -length % multiple, dtype=declared[names[0]].dtype, device=device)
        self.slices: dict[nn.Parameter, slice] = {}
        """Where each weight is in the flat buffer, and in the flat gradient."""
        self.names: dict[nn.Parameter, str] = {}
        start = 0
        for name, parameter in declared.items():
            part = slice(start, start + parameter.numel())
            # `data`: autograd must not count the arrival of other ranks' parts as a change.
            created = nn.Parameter(self.flat[part].view(parameter.shape).data)
            created.note = note_of(parameter)  # type: ignore[attr-defined]
            path, _, leaf = name.rpartition(".")
            owner.get_submodule(path).register_parameter(leaf, created)
            self.slices[created], self.names[created] = part, name
            start = part.stop
        self.kind = note_of(declared[names[0]]).kind

    def boxes(self, run: range) -> Iterator[Box]:
        """Yield the boxes of weights in a run of the flat buffer; their `start` counts from the start of the run."""
        for parameter, part in self.slices.items():
            start = max(part.start, run.start)
            inside = range(start - part.start, min(part.stop, run.stop) - part.start)
            shape = tuple(parameter.shape)
            yield from boxes_of_run(self.names[parameter], note_of(parameter), shape, inside, start - run.start)

    def fill(self, memory: torch.Tensor, run: range) -> None:
        """Write the initial values of a run of the flat buffer into some memory."""
        for box in self.boxes(run):
            box.note.initialize(box.view(memory), box.note.whole_sizes, box.offsets)

    def master_of(self, local: torch.Tensor, run: range, dtype: torch.dtype, *, on_host: bool) -> torch.Tensor:
        """Return the local weights if their type and device fit the masters, or newly initialized masters."""
        if not on_host and local.dtype == dtype:
            return local
        master = empty_on_host(local, dtype) if on_host else torch.empty_like(local, dtype=dtype)
        self.fill(master, run)
        return master


def empty_on_host(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Allocate host memory for a tensor; page-locked if a GPU copies from and to it during other work."""
    return torch.empty(like.shape, dtype=dtype, pin_memory=like.is_cuda)


def boxes_of_run(name: str, note: Note, part: Sizes, run: range, start: int) -> Iterator[Box]:
    """Cut a run of a part's row-major memory, which is at `start` of a buffer, into the largest possible boxes."""
    place = run.start
    while place < run.stop:
        corner = np.unravel_index(place, part)
        for dim in range(len(part)):
            row = prod(part[dim + 1 :])  # numbers per index of this dimension
            if place % row == 0 and place + row <= run.stop:
                break
        count = min((run.stop - place) // row, part[dim] - int(corner[dim]))
        offsets = tuple(first + int(inner) for first, inner in zip(note.offsets, corner, strict=True))
        yield Box(name, note, offsets, (*(1,) * dim, count, *part[dim + 1 :]), start)
        place, start = place + count * row, start + count * row
