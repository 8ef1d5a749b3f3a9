"""What does a group's traffic tell of its axis, where nobody named it? Always marked as inferred."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.algebra.order import first_rows, group_codes, numbered
from usp_prof.model.axis import Axis, AxisSource
from usp_prof.tables.posts import P2P

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.columns import Columns


@dataclass(slots=True)
class Traffic:
    """What ran in one group, over all ranks."""

    operations: Counter[str] = field(default_factory=Counter)
    in_forward: Counter[str] = field(default_factory=Counter)
    """Parts posted outside the backward pass and the optimizer."""
    marks: Counter[str] = field(default_factory=Counter)
    dimensions: Counter[int] = field(default_factory=Counter)
    """How many dimensions the tensors have; flat ones are buckets of gradients or parameters."""
    libraries: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    """Steps with such traffic, over all ranks."""
    phases_known: bool = False
    """The traces tell of backward or optimizer at all."""

    @property
    def marked(self) -> str:
        """The axis that marks give to at least half of the parts; empty without one."""
        if not self.marks:
            return ""
        axis, count = self.marks.most_common(1)[0]
        return axis if 2 * count >= self.operations.total() else ""

    def total(self, *operations: str) -> int:
        """Count the parts of these operations."""
        return sum(self.operations[op] for op in operations)

    def forward_share(self, *operations: str) -> float:
        """Give the share of these operations that was posted in the forward pass."""
        return sum(self.in_forward[op] for op in operations) / max(self.total(*operations), 1)


def traffic_of(ranks: Iterable[Columns], whole: str) -> dict[str, Traffic]:
    """Gather the traffic of every group; parts without a group count to `whole`."""
    found: dict[str, Traffic] = {}
    phases_known = False
    for columns in ranks:
        if not len(columns):
            continue
        coded = [columns.codes(name) for name in ("group", "op", "axis", "axis_source", "phase", "shape", "library")]
        alike = group_codes(*(codes for codes, _ in coded))
        lines = np.stack([codes for codes, _ in coded], axis=1)[first_rows(alike)]
        for line, count in zip(lines.tolist(), np.bincount(alike).tolist(), strict=True):
            key, op, axis, source, phase, shape, library = (v[code] for code, (_, v) in zip(line, coded, strict=True))
            phases_known |= phase in _NOT_FORWARD
            traffic = found.setdefault(key or whole, Traffic())
            traffic.operations[op] += count
            traffic.libraries[library] += count
            traffic.in_forward[op] += count * (phase not in _NOT_FORWARD)
            traffic.dimensions[shape.count(",") + 1 if shape else 0] += count
            if source == AxisSource.MARK:
                traffic.marks[axis] += count
        groups, keys = coded[0]
        own, number = numbered(groups[first_rows(group_codes(groups, columns["step"]))])
        for code, count in zip(own.tolist(), np.bincount(number).tolist(), strict=True):
            found[keys[code] or whole].steps += count
    found.pop("", None)
    for traffic in found.values():
        traffic.phases_known = phases_known
    return found


def infer_axis(traffic: Traffic) -> Axis:
    """Infer the axis of a group.

    Some libraries serve one purpose. Sends and receives: a pipeline. Exchanges of everybody with everybody and
    no reductions: experts (or embeddings, which are laid out as experts are). What reduces is told apart below.
    """
    library = traffic.libraries.most_common(1)[0][0]
    if library in _MADE_FOR:
        return _MADE_FOR[library]
    often = traffic.total(*_REDUCTIONS) >= _OFTEN * max(traffic.steps, 1)
    if traffic.total(*P2P) and not often:
        return Axis.PP
    if traffic.total(*_REDUCTIONS):
        return Axis.TP if _reduces_activations(traffic) else Axis.DP
    return Axis.EP if traffic.operations["all_to_all"] else Axis.UNKNOWN


def _reduces_activations(traffic: Traffic) -> bool:
    """Say whether the reductions are those of activations (tensor parallel) and not of gradients (data parallel).

    Activations are reduced many times a step and in forward too; gradients in backward or around the optimizer. A
    trace that tells nothing of phases leaves the shapes: activations have three dimensions, buckets have one.
    """
    if traffic.total(*_REDUCTIONS) < _OFTEN * max(traffic.steps, 1):
        return False
    if traffic.phases_known:
        return traffic.forward_share(*_REDUCTIONS) >= _NOTABLE
    deep = sum(count for dimensions, count in traffic.dimensions.items() if dimensions >= 3)
    return 2 * deep >= traffic.operations.total()


_MADE_FOR = {
    "deepep": Axis.EP,
    "mori": Axis.EP,
    "userbuffers": Axis.TP,
    "custom_all_reduce": Axis.TP,
    "symmetric_memory": Axis.TP,
}
_REDUCTIONS = ("all_reduce", "reduce_scatter")
_NOT_FORWARD = ("backward", "optimizer")
_OFTEN = 8
_NOTABLE = 0.2


def infer_axis_of_operation(axis: str, op: str) -> str:
    """Tell apart what shares one inferred group.

    A data-parallel group's all-to-all moves experts or embeddings; beside a pipeline's sends, the few collectives of
    the same group are the job's own (a loss to log, a norm).
    """
    if op in P2P:
        return Axis.PP.value
    if axis == Axis.PP:
        return Axis.WORLD.value
    return Axis.EP.value if axis == Axis.DP and op == "all_to_all" else axis
