"""Arrivals: the last rank at each collective call, how much of its lateness it caused, and the others' waiting.

A rank that is late because it waited for another rank is a victim. So each participant's own time is measured: the
time since its arrival at the group's previous call, without the time in which it waited for others. (Work done during
a waiting call counts.) The late rank caused the excess of its own time over the longest own time of the others.
This is at most the time by which it was last.

Broadcasts and scatters have no late rank. Their receivers block no other rank. Only the root has the data (a last
stage's loss or sampled tokens), so the others depend on it. A slow root is late in other calls too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from usp_prof.analyses.measures import partition
from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.intervals import union, union_of
from usp_prof.columns.rows import distinct, latest_of_each, numbered, per_code
from usp_prof.model.selection import Selection
from usp_prof.model.topology import Axis
from usp_prof.tables import calls as call_table
from usp_prof.tables import clock
from usp_prof.tables.calls import Rows
from usp_prof.tables.table_set import TableSet, memoized

FROM_ONE_RANK = ("broadcast", "scatter")
"""Operations that carry data of a single rank."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """One row per complete call of a group with several ranks, in order of first arrival."""

    step: Ints
    axis: NDArray[np.integer]
    """Index into `axes`."""
    axes: list[str]
    late_rank: Ints
    """-1 if the last arrivals are tied within the clocks' accuracy."""
    late_by_ns: Ints
    """Last minus second-last arrival."""
    own_ns: Ints
    """The part that the late rank caused itself; 0 if the data comes from one rank."""
    is_from_one_rank: Flags
    """Whether the others depend on data of one rank, so that no rank counts as late."""
    row_of_call: NDArray[np.int32]
    """By call number: its row here; -1 for calls that are left out."""


@memoized("arrivals")
def arrivals(tables: TableSet) -> Arrivals:
    """Return the arrivals at all complete collectives of several ranks.

    1. A participant's own time is the time since its arrival at the group's previous call, minus its stalls.
    2. The last to arrive is late by its distance to the second-last.
    3. It caused the excess of its own time over all others', between 0 and that distance.
    """
    matched = call_table.match_calls(tables)
    calls = matched.columns().take(matched.is_collective)
    row_of_call = np.full(len(matched.is_collective), -1, np.int32)
    row_of_call[matched.is_collective] = np.arange(len(calls))
    # One entry per row: how much later the last participant arrives, and how much longer its own time is.
    late_by, own_by = np.zeros(len(calls), np.int64), np.zeros(len(calls), np.int64)
    measure = partial(_own_times, begin=_first_begin(tables))
    own_times = call_table.of_each_rank(tables, measure, matched.parts.ranks, partition.stalls_of_share)
    parts = matched.parts.by_call("call", "arrival", "own", extra_columns=own_times)
    # Only parts of calls that have a row.
    row = row_of_call[parts["call"]]
    members = np.flatnonzero(row >= 0)
    rows, place = numbered(row[members])
    late_by[rows], own_by[rows] = _margins(place, parts["arrival"][members], parts["own"][members], len(rows))
    late, from_one = calls["late_rank"], calls.matches("op", *FROM_ONE_RANK)
    own = np.where((late >= 0) & ~from_one, np.clip(own_by, 0, late_by), 0)
    return Arrivals(calls["step"], *calls.narrow_codes("axis"), late, late_by, own, from_one, row_of_call)


def _own_times(tables: TableSet, rank: int, begin: int) -> Rows:
    """Return one rank's arrivals at its calls and its own time before each, one entry per row of its `collectives`."""
    matched, clocks = call_table.match_calls(tables), clock.fit_clocks(tables)
    start = tables.columns("collectives", rank)["start_ns"]
    parts = matched.parts.of_rank(rank, "call", "part")
    is_measured = matched.is_collective[parts["call"]]
    group = matched.columns().narrow_codes("group")[0][parts["call"][is_measured]]
    rows = parts["part"][is_measured]
    since = _arrival_before(group, start[rows], int(clocks.local(rank, begin)))
    own = np.zeros(len(start), np.int64)
    own[rows] = start[rows] - since - partition.stalls(tables, rank).within(since, start[rows])
    return {"arrival": clocks.align(rank, start), "own": own}


def _arrival_before(group: Ints, start: Ints, first: int) -> Ints:
    """Return for each part the rank's arrival at the group's previous call, or `first` for the first call."""
    # In this order a part follows the previous one of the same group.
    order = np.lexsort((start, group))
    before = np.full(len(start), first, np.int64)
    follows = group[order][1:] == group[order][:-1]
    before[order[1:][follows]] = start[order[:-1][follows]]
    return before


def _first_begin(tables: TableSet) -> int:
    """Return the earliest begin of a step of ranks with such calls, on the common clock; own times begin there."""
    matched, clocks = call_table.match_calls(tables), clock.fit_clocks(tables)
    ranks = [rank for rank in tables.ranks if matched.is_collective[matched.parts.of_rank(rank, "call")["call"]].any()]
    begins = [clocks.align(rank, tables.columns("steps", rank)["start_ns"][:1]) for rank in ranks]
    return int(np.concatenate(begins).min()) if any(map(len, begins)) else 0


def _margins(row: Ints, arrival: Ints, own: Ints, calls: int) -> tuple[Ints, Ints]:
    """Return per call how much the last participant exceeds all others in arrival time and in own time."""
    last = latest_of_each(row, arrival, calls)
    is_other = np.ones(len(row), bool)
    is_other[last] = False
    second_last = per_code(row[is_other], arrival[is_other], np.maximum, calls)
    longest_own = per_code(row[is_other], own[is_other], np.maximum, calls)
    return arrival[last] - second_last, own[last] - longest_own


EVERY_AXIS = ""
"""All axes together; their communication may overlap."""


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """Communication per rank, step and axis, until and after the last arrival; the two are disjoint."""

    rank: Ints
    step: Ints
    axis: NDArray[np.object_]
    """`EVERY_AXIS` for all axes together."""
    wait_ns: Ints
    transfer_ns: Ints


def waiting_of(tables: TableSet, selection: Selection) -> Waiting:
    """Split the communication of complete calls into wait and transfer, per axis, rank and step."""
    ranks = selection.ranks_among(tables.ranks)
    of_ranks = list(call_table.of_each_rank(tables, partial(_waiting_of_rank, selection=selection), ranks))
    occurring_axes = {axis for _, by_axis in of_ranks for axis in by_axis}
    axes = sorted(occurring_axes, key=partition.place_of_axis)
    counts = [len(steps) for steps, _ in of_ranks]
    no_calls = [np.zeros((2, count), np.int64) for count in counts]
    # One row for waits and one for transfers. Columns: axis by axis, the steps of each rank.
    sums = np.concatenate(
        [
            np.zeros((2, 0), np.int64),
            *(
                by_axis.get(axis, zeros)
                for axis in axes
                for (_, by_axis), zeros in zip(of_ranks, no_calls, strict=True)
            ),
        ],
        axis=1,
    )
    return Waiting(
        rank=np.tile(np.repeat(np.array(ranks, np.int64), counts), len(axes)),
        step=np.tile(np.concatenate([np.zeros(0, np.int64), *(steps for steps, _ in of_ranks)]), len(axes)),
        axis=np.repeat(np.array(axes, object), sum(counts)),
        wait_ns=sums[0],
        transfer_ns=sums[1],
    )


def _waiting_of_rank(tables: TableSet, rank: int, selection: Selection) -> tuple[Ints, dict[str, Ints]]:
    """Return the steps of one rank, and per axis an array with a row of waits and a row of transfers, per step.

    A moment in which any call of the axis transfers counts as transfer, even if other calls wait.
    """
    matched = call_table.match_calls(tables)
    windows, calls = tables.columns("steps", rank), matched.columns()
    windows = windows.take(tables.selects(selection, windows["step"]))
    parts = matched.parts.of_rank(rank, "call", "part", "wait_ns", "transfer_ns")
    rows = np.flatnonzero(calls["complete"][parts["call"]] & (parts["wait_ns"] >= 0))
    codes, names = calls.narrow_codes("axis")
    axis = codes[parts["call"][rows]]
    begin = tables.columns("collectives", rank)["start_ns"][parts["part"][rows]]
    arrived = begin + parts["wait_ns"][rows]
    end = arrived + parts["transfer_ns"][rows]
    comm = partition.sets_of(tables, rank).axes
    split = {}
    for code in distinct(axis).tolist():
        of_axis, name = axis == code, names[code] or str(Axis.UNKNOWN)
        # Without device events, only the calls' own ranges are known.
        communication = comm.get(name, union(begin[of_axis], end[of_axis]))
        transfer = communication & union(arrived[of_axis], end[of_axis])
        split[name] = ((communication & union(begin[of_axis], arrived[of_axis])) - transfer, transfer)
    if split:
        waits, transfers = (union_of([of_axis[place] for of_axis in split.values()]) for place in (0, 1))
        split[EVERY_AXIS] = (waits - transfers, transfers)
    measured = {
        name: np.stack([part.within(windows["start_ns"], windows["end_ns"]) for part in parts_of_axis])
        for name, parts_of_axis in split.items()
    }
    in_steps = {name: sums for name, sums in measured.items() if sums.any()}
    return windows["step"], in_steps
