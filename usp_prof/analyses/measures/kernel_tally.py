"""Kernel tally: the work of all ranks by op and shape and by kernel name, with true statistics over calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, nan, sqrt
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses.measures import op_work
from usp_prof.analyses.measures.kernel_groups import (
    IN_TF32,
    NO_PRODUCT,
    UNKNOWN_ARITHMETIC,
    first_of_each_op,
    group_kernels,
    sums,
)
from usp_prof.columns.rows import numbered
from usp_prof.model.hardware import Precision

if TYPE_CHECKING:
    from usp_prof.analyses.formulas import Cost
    from usp_prof.analyses.measures.device_bounds import Roof
    from usp_prof.analyses.measures.op_work import OpKind, RankWork
    from usp_prof.columns.arrays import Floats, Ints
    from usp_prof.model.selection import Selection
    from usp_prof.tables.table_set import TableSet

SMALL_NS = 10_000
_NO_OP = "(no CPU op known)"
PACED = "(paced wait)"
"""Timed waits that stand for compute: no work, and said so."""


@dataclass(slots=True)
class KernelStat:
    """The calls of one kernel name."""

    name: str
    count: int = 0
    total_ns: int = 0
    squares: float = 0.0
    min_ns: float = inf
    max_ns: int = 0
    small_ns: int = 0

    @property
    def mean_ns(self) -> float:
        """Mean over calls."""
        return self.total_ns / self.count if self.count else nan

    @property
    def std_ns(self) -> float:
        """Standard deviation over calls."""
        return sqrt(max(0.0, self.squares / self.count - self.mean_ns**2)) if self.count else nan


@dataclass(slots=True)
class OpStat:
    """The calls of one op and shape; an op without formula has no family and no shapes."""

    name: str
    dims: str
    family: str
    precision: str
    known: bool
    calls: int = 0
    kernels: int = 0
    time_ns: int = 0
    flop: float = 0.0
    bytes: float = 0.0
    ideal_ns: float = 0.0
    matrix_core_ns: int = 0
    unknown_core_ns: int = 0
    bound: str = ""

    @property
    def intensity(self) -> float:
        """FLOP for each byte that must be moved."""
        return self.flop / self.bytes if self.bytes else nan

    @property
    def rate(self) -> float:
        """FLOP per second over the kernels' time."""
        return self.flop / self.time_ns * 1e9 if self.flop and self.time_ns else nan

    @property
    def is_bounded(self) -> bool:
        """Whether the roofline bounds it: data that lie in the cache, or work that the shapes overstate, beat it."""
        return 0 < self.ideal_ns <= self.time_ns

    @property
    def efficiency(self) -> float:
        """Time that the roofline allows over time taken; NaN where there is no bound, or it is beaten."""
        return self.ideal_ns / self.time_ns if self.is_bounded else nan


@dataclass(slots=True)
class Tally:
    """Sums over ranks."""

    roof: Roof
    _kernels: dict[str, KernelStat] = field(default_factory=dict)
    _ops: dict[tuple[str, str, str, bool], OpStat] = field(default_factory=dict)
    _steps: dict[int, tuple[float, int]] = field(default_factory=dict)

    def add(self, tables: TableSet, rank: int, selection: Selection) -> None:
        """Add one rank's compute."""
        work = op_work.of_rank(tables, rank, selection)
        if len(work.name):
            self._add_kernels(work)
            self._add_ops(work)

    def kernels(self) -> tuple[KernelStat, ...]:
        """Give the kernels, longest first."""
        return tuple(sorted(self._kernels.values(), key=lambda kernel: (-kernel.total_ns, kernel.name)))

    def ops(self) -> tuple[OpStat, ...]:
        """Give the ops, longest first."""
        return tuple(sorted(self._ops.values(), key=lambda op: (-op.time_ns, op.name, op.dims)))

    def efficiency_by_step(self) -> dict[int, float]:
        """Give the roofline's time over the time taken, of the ops with a bound, for each step."""
        return {step: ideal / taken for step, (ideal, taken) in sorted(self._steps.items()) if taken}

    def _add_kernels(self, work: RankWork) -> None:
        """Add the kernels by name."""
        dur, names = work.dur_ns, len(work.names)
        count = np.bincount(work.name, minlength=names)
        total = sums(work.name, dur, names)
        small = sums(work.name, np.where(dur < SMALL_NS, dur, 0), names)
        squares = np.bincount(work.name, weights=dur.astype(float) ** 2, minlength=names)
        shortest, longest = np.full(names, np.iinfo(np.int64).max), np.zeros(names, np.int64)
        np.minimum.at(shortest, work.name, dur)
        np.maximum.at(longest, work.name, dur)
        for code in np.flatnonzero(count).tolist():
            stat = self._kernels.setdefault(work.names[code], KernelStat(work.names[code]))
            stat.count += int(count[code])
            stat.total_ns += int(total[code])
            stat.squares += float(squares[code])
            stat.small_ns += int(small[code])
            stat.min_ns = min(stat.min_ns, int(shortest[code]))
            stat.max_ns = max(stat.max_ns, int(longest[code]))

    def _add_ops(self, work: RankWork) -> None:
        """Add the ops by name, shapes and arithmetic.

        1. Group the kernels: those of ops of one kind (name and shapes) with one arithmetic, and paced waits apart.
        2. Sum each group, and add it to the op's statistics.
        3. Where the op has a formula, give one op of the group the time that the roofline allows.
        4. Add these times step by step, but for groups that are faster: what beats its bound has none.

            kernels  gemm of op 1, bias of op 1, gemm of op 2 (alike)     one group: 2 calls, 3 kernels
        """
        groups = group_kernels(work)
        ideal = np.zeros(len(groups.first))  # ns that the roofline allows one op of the group; 0: it has no bound
        for code, row in enumerate(groups.first.tolist()):
            kind = work.kinds[work.kind[row]] if work.kind[row] >= 0 else None
            stat = self._stat(kind, arithmetic=int(groups.arithmetic[row]), paced=bool(groups.is_paced[row]))
            calls = int(groups.calls[code])
            stat.calls += calls
            stat.kernels += int(groups.kernels[code])
            stat.time_ns += int(groups.time_ns[code])
            stat.matrix_core_ns += int(groups.matrix_core_ns[code])
            stat.unknown_core_ns += int(groups.unknown_core_ns[code])
            if kind is not None and kind.cost is not None and stat.family:
                ideal[code] = self._bound(stat, kind.cost, calls)
        ideal[ideal * groups.calls > groups.time_ns] = 0.0
        self._add_steps(work, groups.of_kernel, ideal)

    def _add_steps(self, work: RankWork, group: Ints, ideal: Floats) -> None:
        """Add what the roofline allows and what was taken, step by step, of the groups that have a bound."""
        is_bounded = ideal[group] > 0
        # An op's time counts once, in the step of its first kernel.
        rows = np.flatnonzero(is_bounded & first_of_each_op(work))
        steps, place = numbered(work.step)
        allowed = np.bincount(place[rows], weights=ideal[group[rows]], minlength=len(steps))
        took = sums(place[is_bounded], work.dur_ns[is_bounded], len(steps))
        for step, allowed_ns, taken_ns in zip(steps.tolist(), allowed.tolist(), took.tolist(), strict=True):
            allowed_before, taken_before = self._steps.get(step, (0.0, 0))
            self._steps[step] = (allowed_before + allowed_ns, taken_before + taken_ns)

    def _stat(self, kind: OpKind | None, *, arithmetic: int, paced: bool) -> OpStat:
        cost = kind.cost if kind is not None and arithmetic != NO_PRODUCT else None
        name = kind.name if kind is not None else PACED if paced else _NO_OP
        precision = cost.precision if cost is not None else None
        if arithmetic in {IN_TF32, UNKNOWN_ARITHMETIC}:
            precision = Precision.TF32 if arithmetic == IN_TF32 else None
        dims = kind.dims if kind is not None and cost is not None and cost.bytes else ""
        key = (name, dims, str(precision or ""), cost is not None)
        if key not in self._ops:
            family = str(cost.family) if cost is not None else ""
            self._ops[key] = OpStat(name, dims, family, str(precision or ""), known=kind is not None or paced)
        return self._ops[key]

    def _bound(self, stat: OpStat, cost: Cost, calls: int) -> float:
        """Add what the ops cost, and the time that the roofline allows for them; give that of one in ns."""
        stat.flop += cost.flop * calls
        stat.bytes += cost.bytes * calls
        peak = self.roof.op_peak(Precision(stat.precision) if stat.precision else None)
        by_flop = cost.flop / peak * 1e9 if peak else 0.0
        by_bytes = cost.bytes / self.roof.memory_rate * 1e9 if self.roof.memory_rate else 0.0
        if cost.flop and not peak:
            return 0.0
        stat.ideal_ns += max(by_flop, by_bytes) * calls
        if by_flop or by_bytes:
            stat.bound = "compute" if by_flop >= by_bytes else "memory"
        return max(by_flop, by_bytes)
