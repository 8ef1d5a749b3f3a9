"""Overlap: how much communication compute hides, which kernels hide it, and how much more could be hidden."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from usp_prof.analyses.measures import partition
from usp_prof.analyses.measures.partition import Partition
from usp_prof.analyses.result import Listing, Result, in_order, spread, spread_ratio
from usp_prof.columns.arrays import Ints
from usp_prof.columns.intervals import Intervals, union
from usp_prof.columns.rows import first_rows, group_codes, lookup
from usp_prof.model.health import HealthRow
from usp_prof.model.metric import Better, Metric, Unit, Value, Values
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.tables import calls
from usp_prof.tables.completeness.losses import ranks_without_work, withheld
from usp_prof.tables.table_set import TableSet

COMM_TIME = Metric(
    "comm_time", Unit.NS, Better.LOWER, "Communication",
    "Time in which communication runs (the union of its intervals), hidden or not.",
    ("rank", "step", "axis", "collective"),
)  # fmt: skip
HIDDEN_COMM_TIME = Metric(
    "hidden_comm_time", Unit.NS, Better.NEITHER, "Hidden communication",
    "Communication time during which compute runs.",
    ("rank", "step", "axis", "collective"),
)  # fmt: skip
CONTENDED_COMM_TIME = Metric(
    "contended_comm_time", Unit.NS, Better.LOWER, "Contended communication",
    "Communication time of an axis without compute that is attributed to another axis, which ends later.",
    ("rank", "step", "axis"),
)  # fmt: skip
OVERLAP_FRACTION = Metric(
    "overlap_fraction", Unit.FRACTION, Better.HIGHER, "Overlap",
    "Hidden communication divided by all communication.",
    ("rank", "step", "axis", "collective"),
)  # fmt: skip
HIDEABLE_COMM_TIME = Metric(
    "hideable_comm_time", Unit.NS, Better.LOWER, "Could be hidden",
    "Exposed communication that the step's own compute could hide if no dependency prevented it: an upper "
    "limit.",
    ("rank", "step", "axis"),
)  # fmt: skip
METRICS = (COMM_TIME, HIDDEN_COMM_TIME, CONTENDED_COMM_TIME, OVERLAP_FRACTION, HIDEABLE_COMM_TIME)
_HIDERS = 10


@dataclass(frozen=True, slots=True)
class KindOverlap:
    """Communication of one axis and kind of collective: mean per step over ranks."""

    axis: str
    collective: str
    comm_ns: float
    hidden_ns: float


@dataclass(frozen=True, slots=True)
class Hider:
    """A compute kernel that ran during communication of an axis: total over the selected ranks and steps."""

    axis: str
    name: str
    hidden_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class OverlapResult(Result):
    """Parts of communication per selected (rank, step), axis and kind, and the kernels that hide it."""

    parts: Partition
    kinds: tuple[KindOverlap, ...]
    hiders: tuple[Hider, ...]
    notes: tuple[HealthRow, ...] = ()

    def hideable(self, axis: int | None = None) -> Ints:
        """Return how much more could be hidden per row: exposed time, at most the compute that hides nothing yet."""
        p = self.parts
        exposed = p.exposed.sum(axis=1) if axis is None else p.exposed[:, axis]
        return np.asarray(np.minimum(exposed, p.compute - p.any_hidden))

    def values(self) -> Values:
        """Return the metric values, sorted by dimension."""
        p = self.parts
        values = _levels(p, p.any_comm, p.any_hidden)
        values += spread(HIDEABLE_COMM_TIME, p.rank, p.step, self.hideable())
        for i, axis in enumerate(p.axes):
            values += _levels(p, p.comm[:, i], p.hidden[:, i], axis=axis)
            values += spread(CONTENDED_COMM_TIME, p.rank, p.step, p.contended[:, i], axis=axis)
            values += spread(HIDEABLE_COMM_TIME, p.rank, p.step, self.hideable(i), axis=axis)
        for kind in self.kinds:
            dims = {"axis": kind.axis, "collective": kind.collective}
            values += [Value(COMM_TIME, kind.comm_ns, dims), Value(HIDDEN_COMM_TIME, kind.hidden_ns, dims)]
            if kind.comm_ns:
                values.append(Value(OVERLAP_FRACTION, kind.hidden_ns / kind.comm_ns, dims))
        return in_order(values)

    def listing(self) -> Listing:
        """Return one row per rank, step and axis; the overlap without communication is NaN."""
        p = self.parts
        figures = {
            "comm_ns": p.comm,
            "exposed_ns": p.exposed,
            "hidden_ns": p.hidden,
            "contended_ns": p.contended,
            "overlap_fraction": p.hidden / np.where(p.comm > 0, p.comm, np.nan),
        }
        return {
            "rank": np.tile(p.rank, len(p.axes)),
            "step": np.tile(p.step, len(p.axes)),
            "axis": np.repeat(np.array(p.axes, object), len(p.rank)),
            **{name: figure.T.ravel() for name, figure in figures.items()},
        }


def compute(tables: TableSet, selection: Selection = EVERYTHING) -> OverlapResult:
    """Compute the overlap in the selected steps."""
    parts = partition.divide_run(tables, selection)
    # If a rank lost device work, the length of its communication and the compute that hides it are unknown.
    damaged = np.isin(parts.rank, sorted(ranks_without_work(tables)))
    notes = withheld(tables, "communication and its overlap are not shown for these ranks") if damaged.any() else []
    parts = parts.take(~damaged)
    kinds: dict[tuple[str, str], list[tuple[float, float]]] = {}
    hiders: dict[tuple[str, str], int] = {}
    ranks = np.unique(parts.rank).tolist()
    for kinds_of_rank, hiders_of_rank in calls.of_each_rank(tables, partial(_of_rank, selection=selection), ranks):
        for key, comm_and_hidden in kinds_of_rank.items():
            kinds.setdefault(key, []).append(comm_and_hidden)
        for key, hidden in hiders_of_rank.items():
            hiders[key] = hiders.get(key, 0) + hidden
    means = []
    for (axis, collective), of_ranks in sorted(kinds.items()):
        comm_ns, hidden_ns = (float(sum(column)) / len(ranks) for column in zip(*of_ranks, strict=True))
        means.append(KindOverlap(axis, collective, comm_ns, hidden_ns))
    return OverlapResult(parts, tuple(means), tuple(_top(hiders)), tuple(notes))


def _levels(p: Partition, comm: Ints, hidden: Ints, **dims: int | str) -> list[Value]:
    values = spread(COMM_TIME, p.rank, p.step, comm, **dims)
    values += spread(HIDDEN_COMM_TIME, p.rank, p.step, hidden, **dims)
    return values + spread_ratio(OVERLAP_FRACTION, p.rank, p.step, hidden, comm, **dims)


def _of_rank(
    tables: TableSet, rank: int, selection: Selection
) -> tuple[dict[tuple[str, str], tuple[float, float]], dict[tuple[str, str], int]]:
    """Return one rank's times per kind of collective, and the kernels that hide them, in the selected steps."""
    windows = tables.columns("steps", rank)
    chosen = tables.selects(selection, windows["step"])
    window = union(windows["start_ns"][chosen], windows["end_ns"][chosen])
    return _kinds(tables, rank, window, int(chosen.sum())), _hiders(tables, rank, window)


def _kinds(tables: TableSet, rank: int, window: Intervals, steps: int) -> dict[tuple[str, str], tuple[float, float]]:
    """Return one rank's communication and its hidden part per axis and kind of collective, mean per step."""
    activities, collectives = tables.columns("activities", rank), tables.columns("collectives", rank)
    sets = partition.sets_of(tables, rank)
    is_communication = activities.matches("kind", "communication")
    start, end = sets.begin[is_communication], sets.done[is_communication]
    axis_code, axes = activities.codes("axis")
    axis_code = axis_code[is_communication]
    # Row of `collectives` per communication activity; -1 if none is known, shown as "other".
    part = activities["collective"][is_communication]
    part = np.where(part < len(collectives), part, -1)
    op_of_part, ops = collectives.codes("op")
    op_code = lookup(op_of_part, part, missing=len(ops))
    kind = group_codes(axis_code, op_code)
    # Name of each kind. Several kinds can have the same name if their collective is unknown.
    names = [(axes[axis_code[row]], [*ops, "other"][op_code[row]]) for row in first_rows(kind).tolist()]
    measured = {}
    for axis, op in sorted(set(names)):
        rows = np.array([name == (axis, op) for name in names])[kind]
        comm = union(start[rows], end[rows]) & window
        if comm.length:
            measured[axis or "unknown", op] = (comm.length / steps, (comm & sets.compute).length / steps)
    return measured


def _hiders(tables: TableSet, rank: int, window: Intervals) -> dict[tuple[str, str], int]:
    """Return how long each axis' communication ran during each compute kernel of one rank."""
    return {
        (axis, name): ns
        for axis, comm in partition.sets_of(tables, rank).axes.items()
        for name, ns in partition.compute_times(tables, rank, comm & window).items()
    }


def _top(hiders: dict[tuple[str, str], int]) -> list[Hider]:
    """Return the kernels that hide the most communication, at most `_HIDERS` per axis, sorted by axis."""
    rows = [Hider(axis, name, ns) for (axis, name), ns in hiders.items()]
    top_hiders: list[Hider] = []
    for row in sorted(rows, key=lambda row: (row.axis, -row.hidden_ns, row.name)):
        if sum(other.axis == row.axis for other in top_hiders) < _HIDERS:
            top_hiders.append(row)
    return top_hiders
