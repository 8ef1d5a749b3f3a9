"""Kernel tally: the work of all ranks by op and shape and by kernel name, with true statistics over calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, nan, sqrt
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses.measures import op_work
from usp_prof.analyses.measures.device_bounds import Cores, cores, single_precision_arithmetic
from usp_prof.columns.rows import distinct, first_rows, group_codes, lookup, numbered
from usp_prof.contract import parse_mark
from usp_prof.model.hardware import Precision

if TYPE_CHECKING:
    from usp_prof.analyses.formulas import Cost
    from usp_prof.analyses.measures.device_bounds import Roof
    from usp_prof.analyses.measures.op_work import OpKind, RankWork
    from usp_prof.model.selection import Selection
    from usp_prof.tables.table_set import TableSet

SMALL_NS = 10_000
# What is known of an op's product, from all of its kernels; the largest of its kernels' codes counts.
_NO_PRODUCT, _AS_STATED, _UNKNOWN_ARITHMETIC, _IN_TF32 = range(4)
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
        paced = np.array([_is_paced(name) for name in work.names], dtype=bool)[work.name] & (work.kind < 0)
        place, arithmetic = _products(work)
        group = group_codes(work.kind, 4 * paced + arithmetic)
        first = first_rows(group)
        time, on_matrix, unknown = (np.zeros(len(first), np.int64) for _ in range(3))
        np.add.at(time, group, work.dur_ns)
        np.add.at(on_matrix, group, np.where(place == _PLACES.index(Cores.MATRIX), work.dur_ns, 0))
        np.add.at(unknown, group, np.where(place == _PLACES.index(Cores.UNKNOWN), work.dur_ns, 0))
        kernels = np.bincount(group, minlength=len(first))
        instances = _instances(work, group, len(first))
        ideal = np.zeros(len(first))
        for code, row in enumerate(first.tolist()):
            kind = work.kinds[work.kind[row]] if work.kind[row] >= 0 else None
            stat = self._stat(kind, arithmetic=int(arithmetic[row]), paced=bool(paced[row]))
            stat.calls += instances[code]
            stat.kernels += int(kernels[code])
            stat.time_ns += int(time[code])
            stat.matrix_core_ns += int(on_matrix[code])
            stat.unknown_core_ns += int(unknown[code])
            if kind is not None and kind.cost is not None and stat.family:
                ideal[code] = self._bound(stat, kind.cost, instances[code])
        ideal[ideal * instances > time] = 0.0  # beaten bounds are none, see `OpStat.is_bounded`
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

    def _stat(self, kind: OpKind | None, *, arithmetic: int, paced: bool) -> OpStat:
        cost = kind.cost if kind is not None and arithmetic != _NO_PRODUCT else None
        name = kind.name if kind is not None else PACED if paced else _NO_OP
        precision = cost.precision if cost is not None else None
        if arithmetic in {_IN_TF32, _UNKNOWN_ARITHMETIC}:
            precision = Precision.TF32 if arithmetic == _IN_TF32 else None
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


_PLACES = tuple(Cores)


def _products(work: RankWork) -> tuple[np.ndarray, np.ndarray]:
    """Give for each row where its kernel multiplies (place in `_PLACES`), and what is known of its op's product.

    An op whose kernels here hold no product is one of which a part was not recorded, or lies in another step.
    """
    if not work.on_gpu:
        return np.full(len(work.name), -1), np.full(len(work.name), _AS_STATED)
    pair = group_codes(work.kind, work.name)
    place, known = (np.zeros(int(pair.max(initial=-1)) + 1, np.int64) for _ in range(2))
    for code, row in enumerate(first_rows(pair).tolist()):
        cost = work.kinds[work.kind[row]].cost if work.kind[row] >= 0 else None
        where, known[code] = _product(work.names[work.name[row]], cost)
        place[code] = _PLACES.index(where)
    of_op = np.zeros(int(work.owner.max(initial=-1)) + 1, np.int64)
    owned = work.owner >= 0
    np.maximum.at(of_op, work.owner[owned], known[pair][owned])
    return place[pair], np.where(owned, lookup(of_op, work.owner, missing=_AS_STATED), _AS_STATED)


def _product(kernel: str, cost: Cost | None) -> tuple[Cores, int]:
    if cost is None or not cost.flop:
        return Cores.NO_PRODUCT, _AS_STATED
    where = cores(kernel, cost.precision)
    if where is Cores.NO_PRODUCT:
        return where, _NO_PRODUCT
    if cost.precision is not Precision.FP32:
        return where, _AS_STATED
    match single_precision_arithmetic(kernel):
        case Precision.TF32:
            return where, _IN_TF32
        case Precision.FP32:
            return where, _AS_STATED
        case _:
            return where, _UNKNOWN_ARITHMETIC


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
