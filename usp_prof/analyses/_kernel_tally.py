"""How do the work of ranks add up? By op and shape, and by kernel name, with true statistics over calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, nan, sqrt
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.algebra.order import distinct, first_rows, group_codes, numbered
from usp_prof.analyses import _op_work
from usp_prof.analyses._tensor_cores import rounds_to_tf32, uses_matrix_cores
from usp_prof.contract import parse_mark
from usp_prof.model.hardware import Precision

if TYPE_CHECKING:
    from usp_prof.analyses._device import Roof
    from usp_prof.analyses._formulas import Cost
    from usp_prof.analyses._op_work import OpKind, RankWork
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
    def efficiency(self) -> float:
        """Time that the roofline allows over time taken."""
        return self.ideal_ns / self.time_ns if self.ideal_ns and self.time_ns else nan


@dataclass(slots=True)
class Tally:
    """Sums over ranks."""

    roof: Roof
    _kernels: dict[str, KernelStat] = field(default_factory=dict)
    _ops: dict[tuple[str, str, str, bool], OpStat] = field(default_factory=dict)
    _steps: dict[int, tuple[float, int]] = field(default_factory=dict)

    def add(self, tables: TableSet, rank: int, selection: Selection) -> None:
        """Add one rank's compute."""
        work = _op_work.of_rank(tables, rank, selection)
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
        size = len(work.names)
        count = np.bincount(work.name, minlength=size)
        exact = np.zeros(size, np.int64)
        np.add.at(exact, work.name, work.dur_ns)
        squares = np.bincount(work.name, weights=work.dur_ns.astype(float) ** 2, minlength=size)
        small = np.zeros(size, np.int64)
        np.add.at(small, work.name, np.where(work.dur_ns < SMALL_NS, work.dur_ns, 0))
        low, high = np.full(size, np.iinfo(np.int64).max), np.zeros(size, np.int64)
        np.minimum.at(low, work.name, work.dur_ns)
        np.maximum.at(high, work.name, work.dur_ns)
        for code in np.flatnonzero(count).tolist():
            stat = self._kernels.setdefault(work.names[code], KernelStat(work.names[code]))
            stat.count += int(count[code])
            stat.total_ns += int(exact[code])
            stat.squares += float(squares[code])
            stat.small_ns += int(small[code])
            stat.min_ns = min(stat.min_ns, int(low[code]))
            stat.max_ns = max(stat.max_ns, int(high[code]))

    def _add_ops(self, work: RankWork) -> None:
        matrix = np.array([uses_matrix_cores(name) for name in work.names], dtype=bool)[work.name]
        tf32 = np.array([rounds_to_tf32(name) for name in work.names], dtype=bool)[work.name]
        paced = np.array([_is_paced(name) for name in work.names], dtype=bool)[work.name] & (work.kind < 0)
        group = group_codes(work.kind, 2 * paced + tf32.astype(np.int64))
        first = first_rows(group)
        time, on_matrix = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
        np.add.at(time, group, work.dur_ns)
        np.add.at(on_matrix, group, np.where(matrix, work.dur_ns, 0))
        kernels = np.bincount(group, minlength=len(first))
        instances = _instances(work, group, len(first))
        ideal = np.zeros(len(first))
        for code, row in enumerate(first.tolist()):
            kind = work.kinds[work.kind[row]] if work.kind[row] >= 0 else None
            stat = self._stat(kind, rounded=bool(tf32[row]), paced=bool(paced[row]))
            stat.calls += instances[code]
            stat.kernels += int(kernels[code])
            stat.time_ns += int(time[code])
            stat.matrix_core_ns += int(on_matrix[code])
            if kind is not None and kind.cost is not None:
                ideal[code] = self._bound(stat, kind.cost, instances[code])
        self._add_steps(work, group, ideal)

    def _add_steps(self, work: RankWork, group: np.ndarray, ideal: np.ndarray) -> None:
        """Add what the roofline allows and what was taken, step by step, of the groups that have a bound."""
        bounded = ideal[group] > 0
        rows = np.flatnonzero(bounded & _first_of_each_op(work))
        numbers, place = numbered(work.step)
        allowed = np.bincount(place[rows], weights=ideal[group[rows]], minlength=len(numbers))
        taken = np.zeros(len(numbers), np.int64)
        np.add.at(taken, place[bounded], work.dur_ns[bounded])
        for number, more, spent in zip(numbers.tolist(), allowed.tolist(), taken.tolist(), strict=True):
            before, until = self._steps.get(number, (0.0, 0))
            self._steps[number] = (before + more, until + spent)

    def _stat(self, kind: OpKind | None, *, rounded: bool, paced: bool) -> OpStat:
        cost = kind.cost if kind is not None else None
        name = kind.name if kind is not None else PACED if paced else _NO_OP
        precision = cost.precision if cost is not None else None
        if precision is Precision.FP32 and rounded:
            precision = Precision.TF32
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
        peak = self.roof.peak(Precision(stat.precision) if stat.precision else None)
        by_flop = cost.flop / peak * 1e9 if peak else 0.0
        by_bytes = cost.bytes / self.roof.memory_rate * 1e9 if self.roof.memory_rate else 0.0
        if cost.flop and not peak:
            return 0.0
        stat.ideal_ns += max(by_flop, by_bytes) * calls
        if by_flop or by_bytes:
            stat.bound = "compute" if by_flop >= by_bytes else "memory"
        return max(by_flop, by_bytes)


def _is_paced(name: str) -> bool:
    mark = parse_mark(name)
    return mark is not None and mark.area == "pace"


def _first_of_each_op(work: RankWork) -> np.ndarray:
    """Mark one row for each op, however many kernels it launched; a row without an op stands for itself."""
    chosen = work.owner < 0
    chosen[first_rows(work.owner)] = True
    return chosen


def _instances(work: RankWork, group: np.ndarray, groups: int) -> list[int]:
    """Count the ops of each group, each once however many kernels it launched; unowned kernels count themselves."""
    owned, owners = work.owner >= 0, int(work.owner.max(initial=-1)) + 1
    pairs = distinct(group[owned] * owners + work.owner[owned])
    alone = np.bincount(group[~owned], minlength=groups)
    return list((alone + np.bincount(pairs // max(owners, 1), minlength=groups)).tolist())
