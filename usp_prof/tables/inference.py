"""What does a group's traffic tell of its axis, where nobody named it? Always marked as inferred."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.axis import Axis, AxisSource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.columns import Columns

P2P = ("send", "recv", "send_recv")


@dataclass(slots=True)
class Traffic:
    """What ran in one group, over all ranks."""

    operations: Counter[str] = field(default_factory=Counter)
    outside_backward: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)

    @property
    def marked(self) -> str:
        """The axis that marks give to at least half of the parts; empty without one."""
        if not self.marks:
            return ""
        axis, count = self.marks.most_common(1)[0]
        return axis if 2 * count >= self.operations.total() else ""

    def share_outside_backward(self, *operations: str) -> float:
        """Give the share of these operations that was not posted from the backward pass."""
        total = sum(self.operations[op] for op in operations)
        return sum(self.outside_backward[op] for op in operations) / total if total else 0.0


def traffic_of(ranks: Iterable[Columns], whole: str) -> dict[str, Traffic]:
    """Gather the traffic of every group; parts without a group count to `whole`."""
    found: dict[str, Traffic] = {}
    for columns in ranks:
        if not len(columns):
            continue
        coded = [columns.codes(name) for name in ("group", "op", "axis", "axis_source", "phase")]
        lines, counts = np.unique(np.stack([codes for codes, _ in coded], axis=1), axis=0, return_counts=True)
        for line, count in zip(lines.tolist(), counts.tolist(), strict=True):
            key, op, axis, source, phase = (values[code] for code, (_, values) in zip(line, coded, strict=True))
            key = key or whole
            if not key:
                continue
            traffic = found.setdefault(key, Traffic())
            traffic.operations[op] += count
            if phase != "backward":
                traffic.outside_backward[op] += count
            if source == AxisSource.MARK:
                traffic.marks[axis] += count
    return found


def infer_axis(traffic: Traffic) -> Axis:
    """Infer the axis of a group.

    Only sends and receives: a pipeline. Reductions of activations run in forward and backward alike (tensor
    parallel); those of gradients in backward only, with gathers of parameters outside (data parallel). Exchanges of
    everybody with everybody: experts (or embeddings, which are laid out as experts are).
    """
    operations = traffic.operations
    if all(op in P2P for op in operations):
        return Axis.PP
    reductions = operations["all_reduce"] + operations["reduce_scatter"]
    if operations["all_to_all"] and not reductions:
        return Axis.EP
    if not reductions:
        return Axis.UNKNOWN
    often = reductions >= 8
    share = traffic.share_outside_backward("all_reduce", "reduce_scatter")
    return Axis.TP if often and 0.2 <= share <= 0.9 else Axis.DP


def infer_axis_of_operation(axis: str, op: str) -> str:
    """Tell apart what shares one inferred group: a data-parallel group's all-to-all moves experts or embeddings."""
    if axis == Axis.DP and op == "all_to_all":
        return Axis.EP.value
    return Axis.PP.value if op in P2P else axis
