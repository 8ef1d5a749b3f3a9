"""Members of calls: the matched parts, sorted by call and rank, on aligned clocks, and what they tell of each call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import group_codes, occurrence, per_code, rows_by_code
from usp_prof.tables import clock
from usp_prof.tables.communication.posts import asked_late
from usp_prof.tables.matching.same_calls import MatchedBy

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.columns.table import Columns
    from usp_prof.tables.clock import Clock
    from usp_prof.tables.matching.same_calls import MatchedParts
    from usp_prof.tables.table_set import TableSet

    MarkLate = Callable[["Members", Flags], Flags]
    """Marks which of these posted receives were asked late."""


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """The matched parts of a block, sorted by call and rank: one entry a part in each array but the last."""

    columns: Columns
    """Columns of `collectives`."""
    call: Ints
    """Number of its call in the block; calls are numbered by their first arrival."""
    count: int
    """How many calls the block has."""
    rank: Ints
    part: Ints
    """Row of its rank's `collectives`."""
    start: Ints
    end: Ints
    """Aligned times."""
    by: NDArray[np.int8]
    """How it was matched: its place in `MatchedBy`."""
    number: Ints
    """By call: its number among the matched calls of the run."""


def members_of(matched: MatchedParts, clocks: Clock) -> Members:
    """Sort the matched parts by call and rank; calls are numbered by first arrival on aligned clocks."""
    rows = np.flatnonzero(matched.call >= 0)  # -1: parts that no call was found for
    call = matched.call[rows]
    start = clocks.align_rows(matched.rank[rows], matched.start[rows])
    calls = len(matched.number)
    first_arrival = per_code(call, start, np.minimum, calls)
    by_arrival = np.argsort(first_arrival, kind="stable")
    number_of_call = np.empty(calls, np.int64)
    number_of_call[by_arrival] = np.arange(calls)
    number = number_of_call[call]
    order = np.lexsort((matched.rank[rows], number))
    rows = rows[order]
    return Members(
        columns=matched.columns.take(rows),
        call=number[order],
        count=calls,
        rank=matched.rank[rows],
        part=matched.part[rows],
        start=start[order],
        end=clocks.align_rows(matched.rank[rows], matched.end[rows]),
        by=matched.by[rows],
        number=matched.number[by_arrival],
    )


def group_size(members: Members, head: Ints) -> Ints:
    """Return the number of members each call should have: 2 for a pair, else what the group says, else who was seen."""
    declared = per_code(members.call, members.columns["group_size"], np.maximum, members.count)
    seen = np.bincount(members.call, minlength=members.count)
    paired = members.by[head] == list(MatchedBy).index(MatchedBy.P2P)
    return np.where(paired, 2, np.where(declared > 0, declared, seen))


def on_one_clock(members: Members, clocks: Clock) -> Flags:
    """Return for each call whether its members' clocks are tied to each other."""
    component = clocks.component_rows(members.rank)
    low, high = (per_code(members.call, component, how, members.count) for how in (np.minimum, np.maximum))
    return np.asarray(low == high)


def last_ranks(members: Members, clocks: Clock) -> tuple[Ints, Flags]:
    """Name the last to arrive at each call, and mark the calls in which nobody is known to be.

    These have one member, or the next before the last is within what the clocks leave open.
    """
    # Call by call, in each by arrival. Before the last lies another member, or a part of another call.
    by_arrival = np.lexsort((members.start, members.call))
    calls = np.arange(members.count)
    place_of_last = np.searchsorted(members.call[by_arrival], calls, side="right") - 1
    last = by_arrival[place_of_last]
    before = by_arrival[np.maximum(place_of_last - 1, 0)]
    is_alone = (members.call[before] != calls) | (last == before)
    apart = members.start[last] - members.start[before]
    is_tied = apart <= clocks.tolerance_ns(members.rank[last], members.rank[before])
    return members.rank[last], np.asarray(is_alone | is_tied)


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """The host of each rank, by a number."""

    ranks: Ints
    node: Ints


def inter_node(members: Members, nodes: Nodes) -> Flags:
    """Return for each call whether its members lie on several hosts."""
    node = nodes.node[np.searchsorted(nodes.ranks, members.rank)]
    low, high = (per_code(members.call, node, how, members.count) for how in (np.minimum, np.maximum))
    return np.asarray(low != high)


def nodes_of(tables: TableSet) -> Nodes:
    """Return for each rank the number of its host, or by rank numbers if hosts have no names."""
    hosts = clock.hosts_of(tables)
    per_node = tables.manifest.devices_per_node if tables.manifest else 0
    if not all(hosts) and per_node > 0:
        hosts = [str(rank // per_node) for rank in tables.ranks]
    numbers = {host: i for i, host in enumerate(dict.fromkeys(hosts))}
    return Nodes(np.asarray(tables.ranks, np.int64), np.array([numbers[host] for host in hosts], np.int64))


def sequence_numbers(members: Members, head: Ints) -> Ints:
    """Take the recorded number, else count the group's calls of an operation by first arrival."""
    columns = members.columns
    # One code for each group with an operation; calls of a code are counted from 0 in the order of their numbers.
    kind_of_call = group_codes(columns.codes("group")[0][head], columns.codes("op")[0][head])
    counted = occurrence(kind_of_call)
    is_recorded = members.by[head] == list(MatchedBy).index(MatchedBy.SEQUENCE)
    return np.where(is_recorded, columns["sequence"][head], counted)


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """When the members of calls waited, and when they carried data."""

    last: Ints
    """By call: its last arrival."""
    end: Ints
    """By call: when its data was across."""
    delivered: Ints
    """By member: how long its range goes on after the data was across."""
    wait: Ints
    """By member: until the last arrived."""
    transfer: Ints
    """By member: after that, until its data was across."""


def times_of(members: Members, is_known: Flags, mark_late: MarkLate) -> Times:
    """Divide the time of each member; `is_known` marks the members of complete calls.

    Three members of an all-reduce that arrive at 0, 4 and 10 and leave at 14: they wait 10, 6 and 0, and the transfer
    takes 4. Of a posted send, whose range goes on until somebody asks, what lies behind the delivery is no transfer.
    """
    call, count = members.call, members.count
    last = per_code(call, members.start, np.maximum, count)
    delivered = np.where(is_known, _delivered_ns(members, mark_late), 0)
    over = members.end - delivered
    lasting = np.maximum(members.end - members.start, 0)
    wait = np.minimum(np.maximum(last[call] - members.start, 0), lasting)
    transfer = np.maximum(over - members.start - wait, 0)
    return Times(last, per_code(call, over, np.maximum, count), delivered, wait, transfer)


def _delivered_ns(members: Members, mark_late: MarkLate) -> Ints:
    """Measure how long the range of a posted send or receive goes on after the receiver had the data.

    gloo's ranges last until someone waits for their handles, which can be long after the data is across. The receive's
    end tells when it was, unless the receiver asked late itself: then the transfer is taken to be as long as the
    median of those of its axis that were waited for (where there is one; else the receive's end stands).
    """
    columns = members.columns
    on_gloo = columns.matches("library", "gloo")
    is_send, is_receive = columns.matches("op", "send") & on_gloo, columns.matches("op", "recv")
    # Of each call, by part: when both sides had posted, and when the receive's range ended (-1: no receive was read).
    both = per_code(members.call, members.start, np.maximum, members.count)[members.call]
    received = per_code(members.call, np.where(is_receive, members.end, -1), np.maximum, members.count)[members.call]
    is_posted_receive = is_receive & on_gloo
    late = mark_late(members, is_posted_receive)
    axes, names = columns.codes("axis")
    for axis in range(len(names)):
        on_axis = is_posted_receive & (axes == axis)
        waited = on_axis & ~late
        if not waited.any():
            continue
        typical = max(int(np.median((received - both)[waited])), 0)
        shortened = _of_call(members, on_axis & late)
        received = np.where(shortened, np.minimum(received, both + typical), received)
    after = np.minimum(members.end - np.maximum(received, members.start), members.end - members.start)
    return np.where((is_send | is_posted_receive) & (received >= 0), np.maximum(after, 0), 0)


def _of_call(members: Members, parts: Flags) -> Flags:
    """Mark all parts of the calls that have one of these parts."""
    marked = np.zeros(members.count, dtype=bool)
    marked[members.call[parts]] = True
    return marked[members.call]


def none_late(members: Members, _: Flags) -> Flags:
    """Mark none, where nothing was posted."""
    return np.zeros(len(members.call), bool)


def late_by_compute(members: Members, receives: Flags, tables: TableSet) -> Flags:
    """Mark the posted receives that nobody waited for until later work was done."""
    late = np.zeros(len(members.call), dtype=bool)
    receive_rows = np.flatnonzero(receives)
    for rank, places in rows_by_code(members.rank[receive_rows]).items():
        rows = receive_rows[places]
        collectives, activities = tables.columns("collectives", rank), tables.columns("activities", rank)
        part = members.part[rows]
        start, lasting = collectives["start_ns"][part], collectives["dur_ns"][part]
        computes = activities.matches("kind", "compute")
        compute_end = (activities["start_ns"] + activities["dur_ns"])[computes]
        late[rows], _ = asked_late(start, start + lasting, compute_end, lasting)
    return late
