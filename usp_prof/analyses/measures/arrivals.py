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
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses.measures import partition
from usp_prof.columns.intervals import Intervals, union
from usp_prof.columns.rows import distinct, first_rows, group_codes, latest_of_each, per_code, rows_by_code
from usp_prof.tables import calls as call_table
from usp_prof.tables import clock

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.model.selection import Selection
    from usp_prof.tables.table_set import TableSet


FROM_ONE_RANK = ("broadcast", "scatter")
"""Operations that carry what one rank alone has."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """One row for each complete call of a group of several ranks, in order of first arrival."""

    step: Ints
    axis: NDArray[np.object_]
    op: NDArray[np.object_]
    group: NDArray[np.object_]
    late_rank: Ints
    """-1 when tied within what the clocks leave open."""
    late_by_ns: Ints
    """Last less second-last arrival."""
    own_ns: Ints
    """What of it is the late rank's own doing; 0 where the data comes from one rank."""
    is_from_one_rank: Flags
    """The others depend on what one rank alone has: nobody is late."""
    members: tuple[Ints, Ints]
    """Row of this table and rank, for each member."""


def arrivals(tables: TableSet) -> Arrivals:
    """Measure the arrivals of a run's calls, once."""
    return tables.memo("arrivals", lambda: _measure(tables))


def stalls(tables: TableSet, rank: int) -> Intervals:
    """Give the time (on the rank's own clock) in which it stood still for others: waits not hidden by compute."""
    return tables.memo_of_rank(rank, "stalls", lambda: _stalls(tables, rank))


def _stalls(tables: TableSet, rank: int) -> Intervals:
    calls, sets = call_table.of(tables), partition.sets_of(tables, rank)
    collectives = tables.columns("collectives", rank)
    parts, rows = calls.part_columns(), calls.rows_of(rank)
    # By row of `collectives`: the wait for the last member; 0 for parts of no call.
    waiting = np.zeros(len(collectives), np.int64)
    waiting[parts["part"][rows]] = np.maximum(parts["wait_ns"][rows], 0)
    start = collectives["start_ns"]
    return (union(start, start + waiting) | sets.bubble) - sets.compute


def _measure(tables: TableSet) -> Arrivals:
    """Measure the arrivals at all complete collectives of several ranks.

    1. A member's own way is the time from its arrival at the group's call before to this one, less what it stood still.
    2. The last to arrive is late by its distance to the second last.
    3. Its own doing is what its way is longer than all others', between nothing and that distance.
    """
    all_calls = call_table.of(tables).columns()
    is_taken = all_calls["complete"] & (all_calls["group_size"] > 1) & ~all_calls.matches("matched_by", "p2p")
    calls = all_calls.take(is_taken)
    # By number of a call: its row in `calls`, -1 for those that are left out.
    row_of_call = np.full(len(all_calls), -1, np.int64)
    row_of_call[is_taken] = np.arange(len(calls))
    # Members of these calls: one entry each in `row`, `rank`, `part`, `arrival` and `own`.
    parts = call_table.of(tables).part_columns()
    row = row_of_call[parts["call"]]
    is_member = row >= 0
    row, rank, part = row[is_member], parts["rank"][is_member], parts["part"][is_member]
    if not len(calls):
        nothing, words = np.zeros(0, np.int64), np.zeros(0, object)
        return Arrivals(nothing, words, words, words, nothing, nothing, nothing, np.zeros(0, bool), (nothing, nothing))
    arrival, own = np.zeros(len(row), np.int64), np.zeros(len(row), np.int64)
    first_begin = _first_begin(tables, np.unique(rank))
    group = calls.codes("group")[0]
    clocks = clock.of(tables)
    for member, members in rows_by_code(rank).items():
        start = tables.columns("collectives", member)["start_ns"][part[members]]
        arrival[members] = clocks.align(member, start)
        since = _arrival_before(group[row[members]], start, int(clocks.local(member, first_begin)))
        own[members] = start - since - stalls(tables, member).within(since, start)
    late_by, own_by = _margins(row, arrival, own, len(calls))
    late, from_one = calls["late_rank"], calls.matches("op", *FROM_ONE_RANK)
    return Arrivals(
        calls["step"],
        calls["axis"],
        calls["op"],
        calls["group"],
        late,
        late_by,
        np.where((late >= 0) & ~from_one, np.clip(own_by, 0, late_by), 0),
        from_one,
        (row, rank),
    )


def _arrival_before(group: Ints, start: Ints, first: int) -> Ints:
    """Give for each of a rank's parts its arrival at the group's call before; for the first the begin of all."""
    order = np.lexsort((start, group))
    before = np.full(len(start), first, np.int64)
    follows = group[order][1:] == group[order][:-1]
    before[order[1:][follows]] = start[order[:-1][follows]]
    return before


def _first_begin(tables: TableSet, ranks: Ints) -> int:
    """Give the begin of the first step over ranks, on the common clock; all ways are measured from it at first."""
    clocks = clock.of(tables)
    begins = [clocks.align(rank, tables.columns("steps", rank)["start_ns"][:1]) for rank in ranks.tolist()]
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
    calls, parts = call_table.of(tables).columns(), call_table.of(tables).part_columns()
    axis_codes, axis_names = calls.codes("axis")
    # One entry a part, taken from its call.
    step, axis, complete = calls["step"][parts["call"]], axis_codes[parts["call"]], calls["complete"][parts["call"]]
    kept = complete & (step >= 0) & (parts["wait_ns"] >= 0) & selection.takes_steps(step)
    if selection.ranks is not None:
        kept &= np.isin(parts["rank"], selection.ranks)
    # The result has a block of cells for each axis that occurs, and in each block a cell for each rank and step.
    cells = [
        (rank, number)
        for rank in tables.ranks
        if selection.ranks is None or rank in selection.ranks
        for number in tables.columns("steps", rank)["step"].tolist()
        if selection.takes_step(number)
    ]
    place_of_cell = {cell: place for place, cell in enumerate(cells)}
    rows = np.flatnonzero(kept)
    rank, number = parts["rank"][rows], step[rows]
    pair = group_codes(rank, number)
    first = first_rows(pair)
    pairs = zip(rank[first].tolist(), number[first].tolist(), strict=True)
    # Place of each pair of rank and step among the cells; -1: a step that the rank's own table does not have.
    place = np.array([place_of_cell.get(rank_and_step, -1) for rank_and_step in pairs], np.int64)[pair]
    rows, place = rows[place >= 0], place[place >= 0]
    axes = distinct(axis[kept])
    cell = np.searchsorted(axes, axis[rows]) * len(cells) + place
    size = len(axes) * len(cells)
    return Waiting(
        rank=np.tile(np.array([rank for rank, _ in cells], np.int64), len(axes)),
        step=np.tile(np.array([number for _, number in cells], np.int64), len(axes)),
        axis=np.repeat(np.array([axis_names[code] for code in axes], object), len(cells)),
        wait_ns=np.bincount(cell, parts["wait_ns"][rows], size).astype(np.int64),
        transfer_ns=np.bincount(cell, parts["transfer_ns"][rows], size).astype(np.int64),
    )
