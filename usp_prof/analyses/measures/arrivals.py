"""Arrivals: the last rank at each collective call, how much of its lateness is its own, and the waiting of the others.

A rank that is late because it waited for somebody else is a victim. So each member's way since its arrival at the
group's call before is measured without the time in which it stood still for others (work done under a call that
waited counts): what the late one took longer than every other member on that way is its own doing, and never more
than the time by which it was last.

Of a broadcast or scatter nobody is blamed. Its receivers hold nobody up, and its root alone has the data (a last
stage's loss or sampled tokens): the others depend on it. A root that is slow is late in other calls too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses.measures import partition
from usp_prof.columns.rows import distinct, latest_of_each, numbered, per_code, rows_of
from usp_prof.tables import calls as call_table
from usp_prof.tables import clock

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.model.selection import Selection
    from usp_prof.tables.matching.parts import Rows
    from usp_prof.tables.table_set import TableSet


FROM_ONE_RANK = ("broadcast", "scatter")
"""Operations that carry what one rank alone has."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """One row for each complete call of a group of several ranks, in order of first arrival."""

    step: Ints
    axis: NDArray[np.integer]
    """Place in `axes`."""
    axes: list[str]
    late_rank: Ints
    """-1 when tied within what the clocks leave open."""
    late_by_ns: Ints
    """Last less second-last arrival."""
    own_ns: Ints
    """What of it is the late rank's own doing; 0 where the data comes from one rank."""
    is_from_one_rank: Flags
    """The others depend on what one rank alone has: nobody is late."""
    row_of_call: NDArray[np.int32]
    """By number of a call: its row here, -1 for those that are left out."""


def arrivals(tables: TableSet) -> Arrivals:
    """Measure the arrivals of a run's calls, once."""
    return tables.memo("arrivals", lambda: _measure(tables))


def _measure(tables: TableSet) -> Arrivals:
    """Measure the arrivals at all complete collectives of several ranks.

    1. A member's own way is the time from its arrival at the group's call before to this one, less what it stood still.
    2. The last to arrive is late by its distance to the second last.
    3. Its own doing is what its way is longer than all others', between nothing and that distance.
    """
    matched = call_table.of(tables)
    calls = matched.columns().take(matched.is_collective)
    row_of_call = np.full(len(matched.is_collective), -1, np.int32)
    row_of_call[matched.is_collective] = np.arange(len(calls))
    # One entry a row: by how much the last arrival is later, and its own way longer, than all others'.
    late_by, own_by = np.zeros(len(calls), np.int64), np.zeros(len(calls), np.int64)
    measure_ways = partial(_ways, begin=_first_begin(tables))
    ways = call_table.of_each_rank(tables, measure_ways, matched.parts.ranks, partition.stalls_of_share)
    for parts in matched.parts.each_block("call", beside=ways):
        # Only parts of calls that have a row; `place` numbers the rows that this block fills.
        row = row_of_call[parts["call"]]
        members = np.flatnonzero(row >= 0)
        rows, place = numbered(row[members])
        late_by[rows], own_by[rows] = _margins(place, parts["arrival"][members], parts["own"][members], len(rows))
    late, from_one = calls["late_rank"], calls.matches("op", *FROM_ONE_RANK)
    own = np.where((late >= 0) & ~from_one, np.clip(own_by, 0, late_by), 0)
    return Arrivals(calls["step"], *calls.narrow_codes("axis"), late, late_by, own, from_one, row_of_call)


def _ways(tables: TableSet, rank: int, begin: int) -> Rows:
    """Measure one rank's arrivals at its calls, and its own way to each: one entry a row of its `collectives`."""
    matched, clocks = call_table.of(tables), clock.of(tables)
    start = tables.columns("collectives", rank)["start_ns"]
    parts = matched.parts.of(rank, "call", "part")
    is_measured = matched.is_collective[parts["call"]]
    group = matched.columns().narrow_codes("group")[0][parts["call"][is_measured]]
    rows = parts["part"][is_measured]
    since = _arrival_before(group, start[rows], int(clocks.local(rank, begin)))
    own = np.zeros(len(start), np.int64)
    own[rows] = start[rows] - since - partition.stalls(tables, rank).within(since, start[rows])
    return {"arrival": clocks.align(rank, start), "own": own}


def _arrival_before(group: Ints, start: Ints, first: int) -> Ints:
    """Give for each of a rank's parts its arrival at the group's call before; for the first the begin of all."""
    # In this order a part follows the one before it of the same group.
    order = np.lexsort((start, group))
    before = np.full(len(start), first, np.int64)
    follows = group[order][1:] == group[order][:-1]
    before[order[1:][follows]] = start[order[:-1][follows]]
    return before


def _first_begin(tables: TableSet) -> int:
    """Give the begin of the first step of ranks with such calls, on the common clock: first ways begin there."""
    matched, clocks = call_table.of(tables), clock.of(tables)
    ranks = [rank for rank in tables.ranks if matched.is_collective[matched.parts.of(rank, "call")["call"]].any()]
    begins = [clocks.align(rank, tables.columns("steps", rank)["start_ns"][:1]) for rank in ranks]
    return int(np.concatenate(begins).min()) if any(map(len, begins)) else 0


def _margins(row: Ints, arrival: Ints, own: Ints, calls: int) -> tuple[Ints, Ints]:
    """Give for each call by how much the last arrival is later, and its own way longer, than all others'."""
    last = latest_of_each(row, arrival, calls)
    others = np.ones(len(row), bool)
    others[last] = False
    second_last = per_code(row[others], arrival[others], np.maximum, calls)
    longest_way = per_code(row[others], own[others], np.maximum, calls)
    return arrival[last] - second_last, own[last] - longest_way


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """Per rank, step and axis the time of the parts of complete calls, until and after the last arrival."""

    rank: Ints
    step: Ints
    axis: NDArray[np.object_]
    wait_ns: Ints
    transfer_ns: Ints


def waiting_of(tables: TableSet, selection: Selection) -> Waiting:
    """Add up the parts of complete calls per axis, rank and step; a step without any such part counts as zero."""
    ranks = [rank for rank in tables.ranks if selection.ranks is None or rank in selection.ranks]
    of_ranks = list(call_table.of_each_rank(tables, partial(_waiting_of_rank, selection=selection), ranks))
    occurring = {axis for _, of_axes in of_ranks for axis in of_axes}
    axes = [axis for axis in call_table.of(tables).columns().narrow_codes("axis")[1] if axis in occurring]
    counts = [len(steps) for steps, _ in of_ranks]
    nothing = [np.zeros((2, count), np.int64) for count in counts]
    # A row for waits and one for transfers; axis by axis a column for each step of each rank.
    sums = np.concatenate(
        [
            np.zeros((2, 0), np.int64),
            *(of_axes.get(axis, none) for axis in axes for (_, of_axes), none in zip(of_ranks, nothing, strict=True)),
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
    """Give the steps of one rank, and for each axis a row of its waits and one of its transfers, per step."""
    matched = call_table.of(tables)
    steps, calls = _chosen_steps(tables, rank, selection), matched.columns()
    parts = matched.parts.of(rank, "call", "wait_ns", "transfer_ns")
    call, step = parts["call"], calls["step"][parts["call"]]
    is_taken = calls["complete"][call] & (step >= 0) & selection.takes_steps(step)
    rows = np.flatnonzero(is_taken & (parts["wait_ns"] >= 0))
    codes, names = calls.narrow_codes("axis")
    axis, place = codes[call[rows]], rows_of(steps, step[rows])
    is_known = place >= 0  # -1: a step that the rank's own table does not have
    sums = np.zeros((len(names), 2, len(steps)), np.int64)
    for row, name in enumerate(("wait_ns", "transfer_ns")):
        np.add.at(sums[:, row], (axis[is_known], place[is_known]), parts[name][rows[is_known]])
    return steps, {names[code]: sums[code] for code in distinct(axis).tolist()}


def _chosen_steps(tables: TableSet, rank: int, selection: Selection) -> Ints:
    steps = tables.columns("steps", rank)["step"]
    return np.asarray(steps[selection.takes_steps(steps)])
