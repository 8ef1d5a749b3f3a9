"""Kernel tally: the work of all ranks by op and shape and by kernel name, with exact statistics over calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf, nan, sqrt

import numpy as np

from usp_prof.analyses.formulas import Cost
from usp_prof.analyses.measures import op_work
from usp_prof.analyses.measures.device_bounds import Roof
from usp_prof.analyses.measures.kernel_groups import (
    IN_TF32,
    NO_PRODUCT,
    UNKNOWN_ARITHMETIC,
    first_of_each_op,
    group_kernels,
)
from usp_prof.analyses.measures.op_work import OpKind, RankWork
from usp_prof.columns.arrays import Floats, Ints
from usp_prof.columns.rows import numbered, totals
from usp_prof.model.hardware import Precision
from usp_prof.model.selection import Selection
from usp_prof.tables.table_set import TableSet

SMALL_NS = 10_000
_NO_OP = "(no CPU op known)"
PACED = "(paced wait)"
"""Timed waits that replace compute. They are labeled as such and count as no work."""


@dataclass(slots=True)
class KernelStat:
    """Statistics of the calls of one kernel name."""

    name: str
    count: int = 0
    total_ns: int = 0
    squares: float = 0.0
    min_ns: float = inf
    max_ns: int = 0
    small_ns: int = 0

    def add(self, other: KernelStat) -> None:
        """Add more calls of the same kernel."""
        for name in ("count", "total_ns", "squares", "small_ns"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.min_ns, self.max_ns = min(self.min_ns, other.min_ns), max(self.max_ns, other.max_ns)

    @property
    def mean_ns(self) -> float:
        """Mean duration over calls."""
        return self.total_ns / self.count if self.count else nan

    @property
    def std_ns(self) -> float:
        """Standard deviation over calls."""
        return sqrt(max(0.0, self.squares / self.count - self.mean_ns**2)) if self.count else nan


@dataclass(slots=True)
class OpStat:
    """Statistics of the calls of one op and shape; an op without a formula has no family and no shapes."""

    name: str
    dims: str
    family: str
    precision: str
    is_attributed: bool
    calls: int = 0
    kernels: int = 0
    time_ns: int = 0
    flop: float = 0.0
    bytes: float = 0.0
    ideal_ns: float = 0.0
    matrix_core_ns: int = 0
    unknown_core_ns: int = 0
    bound: str = ""
    is_costed: bool = False
    """Whether a formula states its cost."""

    def add(self, other: OpStat) -> None:
        """Add more calls of the same op."""
        for name in ("calls", "kernels", "time_ns", "flop", "bytes", "ideal_ns", "matrix_core_ns", "unknown_core_ns"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.bound = other.bound or self.bound

    @property
    def intensity(self) -> float:
        """FLOP per byte that must be moved."""
        return self.flop / self.bytes if self.bytes else nan

    @property
    def rate(self) -> float:
        """FLOP per second over the kernels' time."""
        return self.flop / self.time_ns * 1e9 if self.flop and self.time_ns else nan

    @property
    def is_bounded(self) -> bool:
        """Whether the roofline bounds it. An op beats it if data are cached or the shapes overstate the work."""
        return 0 < self.ideal_ns <= self.time_ns

    @property
    def efficiency(self) -> float:
        """Roofline time over measured time; NaN if there is no bound or the op beats it."""
        return self.ideal_ns / self.time_ns if self.is_bounded else nan


@dataclass(frozen=True, slots=True)
class RankTally:
    """Compute of one rank."""

    kernels: list[KernelStat]
    ops: list[OpStat]
    """One entry per group of kernels; several groups can belong to the same op."""
    steps: list[tuple[int, float, int]]
    """Step, roofline time and measured time, of the groups that have a bound."""


def of_rank(tables: TableSet, rank: int, roof: Roof, selection: Selection) -> RankTally:
    """Return the compute of one rank's selected steps; empty if its device was not recorded."""
    work = op_work.of_rank(tables, rank, selection) if tables.has_device_work(rank) else None
    if work is None or not len(work.name):
        return RankTally([], [], [])
    return RankTally(_kernels(work), *_ops_and_steps(work, roof))


def sum_up(tallies: Iterable[RankTally]) -> tuple[tuple[KernelStat, ...], tuple[OpStat, ...], dict[int, float]]:
    """Return the kernels and the ops of all ranks, longest first, and the efficiency by step.

    Efficiency is roofline time over measured time, for ops with a bound.
    """
    kernels: dict[str, KernelStat] = {}
    ops: dict[tuple[str, str, str, bool], OpStat] = {}
    steps: dict[int, tuple[float, int]] = {}
    for tally in tallies:
        for kernel in tally.kernels:
            kernels.setdefault(kernel.name, KernelStat(kernel.name)).add(kernel)
        for op in tally.ops:
            key = (op.name, op.dims, op.precision, op.is_costed)
            if key in ops:
                ops[key].add(op)
            else:
                ops[key] = replace(op)
        for step, ideal, measured in tally.steps:
            ideal_before, measured_before = steps.get(step, (0.0, 0))
            steps[step] = (ideal_before + ideal, measured_before + measured)
    return (
        tuple(sorted(kernels.values(), key=lambda kernel: (-kernel.total_ns, kernel.name))),
        tuple(sorted(ops.values(), key=lambda op: (-op.time_ns, op.name, op.dims))),
        {step: ideal / measured for step, (ideal, measured) in sorted(steps.items()) if measured},
    )


def _kernels(work: RankWork) -> list[KernelStat]:
    """Return the statistics per kernel name."""
    dur, names = work.dur_ns, len(work.names)
    count = np.bincount(work.name, minlength=names)
    total = totals(work.name, dur, names)
    small = totals(work.name, np.where(dur < SMALL_NS, dur, 0), names)
    squares = np.bincount(work.name, weights=dur.astype(float) ** 2, minlength=names)
    shortest, longest = np.full(names, np.iinfo(np.int64).max), np.zeros(names, np.int64)
    np.minimum.at(shortest, work.name, dur)
    np.maximum.at(longest, work.name, dur)
    return [
        KernelStat(
            work.names[code],
            int(count[code]),
            int(total[code]),
            float(squares[code]),
            int(shortest[code]),
            int(longest[code]),
            int(small[code]),
        )
        for code in np.flatnonzero(count).tolist()
    ]


def _ops_and_steps(work: RankWork, roof: Roof) -> tuple[list[OpStat], list[tuple[int, float, int]]]:
    """Return the sums by op name, shapes and arithmetic, and the roofline and measured times by step.

    1. Group the kernels: one group per op kind (name and shapes) and arithmetic; paced waits are separate.
    2. Sum up each group.
    3. If the op has a formula, compute the roofline time of one op of the group.
    4. Add these times per step, except for groups that beat their bound.

        kernels  gemm of op 1, bias of op 1, gemm of op 2 (same kind)     one group: 2 calls, 3 kernels
    """
    groups = group_kernels(work)
    ideal = np.zeros(len(groups.first))  # roofline time in ns of one op of the group; 0: no bound
    ops = []
    for code, row in enumerate(groups.first.tolist()):
        kind = work.kinds[work.kind[row]] if work.kind[row] >= 0 else None
        stat = _stat(kind, arithmetic=int(groups.arithmetic[row]), paced=bool(groups.is_paced[row]))
        stat.calls = int(groups.calls[code])
        stat.kernels = int(groups.kernels[code])
        stat.time_ns = int(groups.time_ns[code])
        stat.matrix_core_ns = int(groups.matrix_core_ns[code])
        stat.unknown_core_ns = int(groups.unknown_core_ns[code])
        if kind is not None and kind.cost is not None and stat.family:
            ideal[code] = _bound(stat, kind.cost, roof)
        ops.append(stat)
    ideal[ideal * groups.calls > groups.time_ns] = 0.0
    return ops, _steps(work, groups.of_kernel, ideal)


def _steps(work: RankWork, group: Ints, ideal: Floats) -> list[tuple[int, float, int]]:
    """Return roofline time and measured time per step, for the groups that have a bound."""
    is_bounded = ideal[group] > 0
    # An op's time counts once, in the step of its first kernel.
    rows = np.flatnonzero(is_bounded & first_of_each_op(work))
    steps, place = numbered(work.step)
    ideal_ns = np.bincount(place[rows], weights=ideal[group[rows]], minlength=len(steps))
    measured_ns = totals(place[is_bounded], work.dur_ns[is_bounded], len(steps))
    return list(zip(steps.tolist(), ideal_ns.tolist(), measured_ns.tolist(), strict=True))


def _stat(kind: OpKind | None, *, arithmetic: int, paced: bool) -> OpStat:
    cost = kind.cost if kind is not None and arithmetic != NO_PRODUCT else None
    name = kind.name if kind is not None else PACED if paced else _NO_OP
    precision = cost.precision if cost is not None else None
    if arithmetic in {IN_TF32, UNKNOWN_ARITHMETIC}:
        precision = Precision.TF32 if arithmetic == IN_TF32 else None
    dims = kind.dims if kind is not None and cost is not None and cost.bytes else ""
    family = str(cost.family) if cost is not None else ""
    is_attributed = kind is not None or paced
    return OpStat(name, dims, family, str(precision or ""), is_attributed=is_attributed, is_costed=cost is not None)


def _bound(stat: OpStat, cost: Cost, roof: Roof) -> float:
    """Set the cost and the roofline time of the ops; return the roofline time of one op in ns, 0 if unbounded."""
    stat.flop, stat.bytes = cost.flop * stat.calls, cost.bytes * stat.calls
    peak = roof.op_peak(Precision(stat.precision) if stat.precision else None)
    by_flop = cost.flop / peak * 1e9 if peak else 0.0
    by_bytes = cost.bytes / roof.memory_rate * 1e9 if roof.memory_rate else 0.0
    if cost.flop and not peak:
        return 0.0
    stat.ideal_ns = max(by_flop, by_bytes) * stat.calls
    if by_flop or by_bytes:
        stat.bound = "compute" if by_flop >= by_bytes else "memory"
    return max(by_flop, by_bytes)
