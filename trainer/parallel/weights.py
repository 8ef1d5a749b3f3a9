"""Weights: declared without memory first; then each rank creates the part that it keeps, and no more.

A layer asks for its part of a weight and gets a parameter on torch's `meta` device, which has a shape and no memory.
On it stands a `Note`: how the whole weight begins, which box of it the part is, and over whom its gradient is summed.
Data parallelism knows what this rank keeps (the part, or a shard of it under ZeRO), allocates that and fills it.
A rank never holds more of a weight than it keeps, and one block of it while it draws.

Each weight is drawn from the seed and its name, in blocks of whole rows that have a generator each. A shard draws the
blocks that it overlaps, so it gets what the whole draw has there, and every layout starts from the same model.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from trainer.parallel.placement import Box, Placement, Sizes

if TYPE_CHECKING:
    from trainer.parallel.stage import Plan

BLOCK = 2**20
"""Numbers that one generator draws, about; 4 MB."""


class Beginning(Protocol):
    """How a weight begins."""

    def fill(self, memory: torch.Tensor, whole: Sizes, offsets: Sizes) -> None:
        """Write the box of the whole weight that begins at `offsets` and is as large as `memory`."""


@dataclass(frozen=True, slots=True)
class Constant:
    """The same value everywhere: norms begin with one, biases with zero."""

    value: float

    def fill(self, memory: torch.Tensor, whole: Sizes, offsets: Sizes) -> None:  # noqa: ARG002 - alike everywhere
        """Write the value."""
        memory.fill_(self.value)


@dataclass(frozen=True, slots=True)
class Normal:
    """Normally distributed numbers, drawn in fp32 whatever they are kept in."""

    name: str
    seed: int
    std: float = 0.02

    def fill(self, memory: torch.Tensor, whole: Sizes, offsets: Sizes) -> None:
        """Draw the blocks that the box overlaps, one after another, and take from each what lies in the box."""
        rows_of_block = max(1, BLOCK // prod(whole[1:]))
        first, end = offsets[0], offsets[0] + memory.shape[0]
        columns = [slice(offset, offset + size) for offset, size in zip(offsets[1:], memory.shape[1:], strict=True)]
        for start in range(first - first % rows_of_block, end, rows_of_block):
            rows = min(rows_of_block, whole[0] - start)
            drawn = self._block(start // rows_of_block, (rows, *whole[1:]))
            top, bottom = max(first, start), min(end, start + rows)
            memory[top - first : bottom - first] = drawn[(slice(top - start, bottom - start), *columns)]

    def _block(self, index: int, shape: Sizes) -> torch.Tensor:
        name = f"{self.name}[{index}]" if index else self.name
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + 1_000_003 * self.seed)
        return torch.randn(shape, generator=generator).mul_(self.std)


@dataclass(frozen=True, slots=True)
class NormalEach:
    """Routed experts, ``[experts, rows, columns]``: each is a weight of its own, named by its number."""

    name: str
    seed: int

    def fill(self, memory: torch.Tensor, whole: Sizes, offsets: Sizes) -> None:
        """Draw the box expert by expert."""
        for expert, matrix in enumerate(memory, offsets[0]):
            Normal(f"{self.name}.{expert}", self.seed).fill(matrix, whole[1:], offsets[1:])


@dataclass(frozen=True, slots=True)
class Note:
    """What is known of a parameter beside its values."""

    beginning: Beginning
    placement: Placement
    kind: str = "dense"
    """Over whom its gradient is summed: `dense` (data parallelism), `partial` (and over tp), `expert` or `tied`.

    `copied` is as `dense`, with the same weight on each tensor-parallel rank: a norm of all gradients counts it once.
    A tied embedding has a bucket of its own, so that both of its stages cut it alike; `update` adds the two gradients.
    """
    stored: bool = True
    """Whether checkpoints take it from this stage; not so for the second copy of a tied embedding."""


def note_of(parameter: nn.Parameter) -> Note:
    """Return the note on a parameter."""
    note: Note = parameter.note  # type: ignore[attr-defined]
    return note


def on_paper(plan: Plan, part: Sizes, note: Note) -> nn.Parameter:
    """Make a parameter without memory, in the weights' type."""
    parameter = nn.Parameter(torch.empty(part, dtype=plan.dtype, device="meta"))
    parameter.note = note  # type: ignore[attr-defined] # read by `note_of`
    return parameter


def normal(plan: Plan, name: str) -> Normal:
    """Let a weight be drawn by its name, with the run's seed."""
    return Normal(name, plan.config.options.seed)


def sharded(plan: Plan, beginning: Beginning, whole: Sizes, dim: int) -> nn.Parameter:
    """Keep this tensor-parallel rank's part of a weight along `dim`."""
    group = plan.mesh["tp"]
    length = whole[dim] // group.size
    offsets = tuple(group.rank * length if axis == dim else 0 for axis in range(len(whole)))
    part = tuple(length if axis == dim else size for axis, size in enumerate(whole))
    return on_paper(plan, part, Note(beginning, Placement(whole, offsets)))


def replicated(plan: Plan, beginning: Beginning, whole: Sizes, *, sees_part: bool = False) -> nn.Parameter:
    """Keep a whole weight on each tensor-parallel rank.

    Where it sees a slice of the sequence only (sequence parallelism), or some of the heads (`sees_part`), its gradient
    is partial, to be summed over tp. Otherwise every rank has the whole gradient.
    """
    over_tp = "partial" if sees_part or plan.config.options.sequence_parallel else "copied"
    return on_paper(plan, whole, Note(beginning, Placement(whole, (0,) * len(whole)), over_tp))


def of_experts(plan: Plan, name: str, rows: int, columns: int) -> nn.Parameter:
    """Keep the matrices of this rank's experts, ``[local experts, rows, columns]``."""
    group, experts = plan.mesh["ep"], plan.config.shape.experts
    local = experts // group.size
    placement = Placement((experts, rows, columns), (group.rank * local, 0, 0))
    beginning = NormalEach(name, plan.config.options.seed)
    return on_paper(plan, (local, rows, columns), Note(beginning, placement, "expert"))


def tie(parameter: nn.Parameter, *, stored: bool) -> None:
    """Note that another pipeline stage has a copy of a weight, and whether checkpoints take it from this stage."""
    parameter.note = replace(note_of(parameter), kind="tied", stored=stored)  # type: ignore[attr-defined]


@torch.no_grad()
def fill(memory: torch.Tensor, boxes: list[Box], notes: dict[str, Note]) -> None:
    """Write how weights begin into the boxes of a rank's memory; `notes` are by the weights' names."""
    for box in boxes:
        notes[box.name].beginning.fill(box.view(memory), box.whole, box.offsets)


def create(owner: nn.Module, name: str, memory: torch.Tensor) -> nn.Parameter:
    """Return a parameter on paper its memory; the parameter of this name is another object from now on."""
    path, _, leaf = name.rpartition(".")
    module = owner.get_submodule(path)
    parameter = nn.Parameter(memory)
    parameter.note = note_of(getattr(module, leaf))  # type: ignore[attr-defined]
    module.register_parameter(leaf, parameter)
    return parameter
