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
    from usp_prof.columns.arrays import Flags, Floats, Ints
    from usp_prof.model.selection import Selection
    from usp_prof.tables.table_set import TableSet

SMALL_NS = 10_000
# What is known of an op's product, from all of its kernels; the largest of their codes counts.
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
        """Add the kernels by name."""
        dur, names = work.dur_ns, len(work.names)
        count = np.bincount(work.name, minlength=names)
        total = _sums(work.name, dur, names)
        small = _sums(work.name, np.where(dur < SMALL_NS, dur, 0), names)
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
        groups = _group(work)
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
        rows = np.flatnonzero(is_bounded & _first_of_each_op(work))
        steps, place = numbered(work.step)
        allowed = np.bincount(place[rows], weights=ideal[group[rows]], minlength=len(steps))
        taken = _sums(place[is_bounded], work.dur_ns[is_bounded], len(steps))
        for step, allowed_ns, taken_ns in zip(steps.tolist(), allowed.tolist(), taken.tolist(), strict=True):
            allowed_before, taken_before = self._steps.get(step, (0.0, 0))
            self._steps[step] = (allowed_before + allowed_ns, taken_before + taken_ns)

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


def _sums(codes: Ints, values: Ints, count: int) -> Ints:
    """Add up the values of each code 0..count-1, exactly."""
    total = np.zeros(count, np.int64)
    np.add.at(total, codes, values)
    return total


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """Kernels of one rank in groups: of ops of one kind with one arithmetic, or of no op."""

    of_kernel: Ints
    """By kernel: its group."""
    is_paced: Flags
    """By kernel: it stands for compute, and no op launched it."""
    arithmetic: Ints
    """By kernel: what is known of its op's product (`_NO_PRODUCT` to `_IN_TF32`)."""
    first: Ints
    """By group, as all that follow: row of its first kernel."""
    kernels: Ints
    calls: Ints
    """Ops, each once however many kernels it launched; a kernel without an op counts itself."""
    time_ns: Ints
    matrix_core_ns: Ints
    unknown_core_ns: Ints


def _group(work: RankWork) -> _Groups:
    """Group the kernels of one rank, and sum each group."""
    is_paced = lookup([_is_paced(name) for name in work.names], work.name, missing=False) & (work.kind < 0)
    place, arithmetic = _products(work)
    group = group_codes(work.kind, 4 * is_paced + arithmetic)
    first = first_rows(group)
    count = len(first)
    on_matrix_cores = place == _PLACES.index(Cores.MATRIX)
    on_unknown_cores = place == _PLACES.index(Cores.UNKNOWN)
    return _Groups(
        group,
        is_paced,
        arithmetic,
        first,
        kernels=np.bincount(group, minlength=count),
        calls=_calls(work, group, count),
        time_ns=_sums(group, work.dur_ns, count),
        matrix_core_ns=_sums(group, np.where(on_matrix_cores, work.dur_ns, 0), count),
        unknown_core_ns=_sums(group, np.where(on_unknown_cores, work.dur_ns, 0), count),
    )


def _products(work: RankWork) -> tuple[Ints, Ints]:
    """Say for each kernel where it multiplies (a place in `_PLACES`; CPU: -1), and what is known of the op's product.

    An op whose kernels here hold no product is one of which a part was not recorded, or lies in another step.
    """
    if not work.on_gpu:
        return np.full(len(work.name), -1), np.full(len(work.name), _AS_STATED)
    # Each kind of op with each kernel name is looked at once.
    pair = group_codes(work.kind, work.name)
    first = first_rows(pair)
    place_of_pair, product_of_pair = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
    for code, row in enumerate(first.tolist()):
        cost = work.kinds[work.kind[row]].cost if work.kind[row] >= 0 else None
        where, product_of_pair[code] = _product(work.names[work.name[row]], cost)
        place_of_pair[code] = _PLACES.index(where)
    # By op: the largest code of its kernels counts.
    is_owned = work.owner >= 0
    product_of_op = np.zeros(int(work.owner.max(initial=-1)) + 1, np.int64)
    np.maximum.at(product_of_op, work.owner[is_owned], product_of_pair[pair][is_owned])
    return place_of_pair[pair], np.where(is_owned, lookup(product_of_op, work.owner, missing=_AS_STATED), _AS_STATED)


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


def _first_of_each_op(work: RankWork) -> Flags:
    """Mark one kernel of each op, however many it launched; a kernel without an op stands for itself."""
    chosen = work.owner < 0
    chosen[first_rows(work.owner)] = True
    return chosen


def _calls(work: RankWork, group: Ints, groups: int) -> Ints:
    """Count the ops of each group, each once however many kernels it launched; unowned kernels count themselves."""
    is_owned = work.owner >= 0
    ops = int(work.owner.max(initial=-1)) + 1
    group_and_op = distinct(group[is_owned] * ops + work.owner[is_owned])
    alone = np.bincount(group[~is_owned], minlength=groups)
    return np.asarray(alone + np.bincount(group_and_op // max(ops, 1), minlength=groups), np.int64)
