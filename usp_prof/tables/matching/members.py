"""Members of calls: matched parts on aligned clocks, sorted by call and rank, and what follows for each call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import group_codes, is_uniform, occurrence, per_code, rows_by_code, text_codes
from usp_prof.columns.table import Columns
from usp_prof.tables.communication.posts import P2P, asked_late
from usp_prof.tables.matching.clocks import Clock, hosts_of
from usp_prof.tables.matching.same_calls import MatchedBy, MatchedParts
from usp_prof.tables.table_set import TableSet


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Matched parts, sorted by call and rank, with one entry per part."""

    columns: Columns
    """Columns of `collectives`."""
    call: Ints
    """Number of the part's call; calls are numbered by first arrival."""
    count: int
    """Number of calls."""
    rank: Ints
    part: Ints
    """Row in its rank's `collectives`."""
    start: Ints
    end: Ints
    """Start and end are aligned times."""
    by: NDArray[np.int8]
    """How the part was matched: index into `MatchedBy`."""


def members_of(matched: MatchedParts, clocks: Clock) -> Members:
    """Sort the matched parts by call and rank; calls are numbered by first arrival on aligned clocks."""
    rows = np.flatnonzero(matched.call >= 0)  # -1: parts without a call
    call = matched.call[rows].astype(np.int64)
    rank, started = matched.columns["rank"], matched.columns["start_ns"]
    start = clocks.align(rank[rows], started[rows])
    calls = matched.calls
    first_arrival = per_code(call, start, np.minimum, calls)
    by_arrival = np.argsort(first_arrival, kind="stable")
    number_of_call = np.empty(calls, np.int64)
    number_of_call[by_arrival] = np.arange(calls)
    number = number_of_call[call]
    order = np.lexsort((rank[rows], number))
    rows = rows[order]
    ended = started[rows] + matched.columns["dur_ns"][rows]
    return Members(
        columns=matched.columns.take(rows),
        call=number[order],
        count=calls,
        rank=rank[rows],
        part=matched.columns["part"][rows],
        start=start[order],
        end=clocks.align(rank[rows], ended),
        by=matched.by[rows],
    )


def group_size(members: Members, head: Ints) -> Ints:
    """Return the expected number of members per call: 2 for a pair, the declared group size, or the number seen."""
    declared = per_code(members.call, members.columns["group_size"], np.maximum, members.count)
    n_members = np.bincount(members.call, minlength=members.count)
    paired = members.by[head] == list(MatchedBy).index(MatchedBy.P2P)
    return np.where(paired, 2, np.where(declared > 0, declared, n_members))


def last_ranks(members: Members, clocks: Clock) -> tuple[Ints, Flags]:
    """Return the last rank to arrive at each call, and a mask of calls for which it is uncertain.

    It is uncertain if the call has one member, or if the last two arrivals differ by no more than the clock tolerance.
    """
    # Sorted by call and arrival. The entry before the last is another member, or belongs to another call.
    by_arrival = np.lexsort((members.start, members.call))
    calls = np.arange(members.count)
    place_of_last = np.searchsorted(members.call[by_arrival], calls, side="right") - 1
    last = by_arrival[place_of_last]
    before = by_arrival[np.maximum(place_of_last - 1, 0)]
    is_alone = (members.call[before] != calls) | (last == before)
    gap_ns = members.start[last] - members.start[before]
    is_tied = gap_ns <= clocks.tolerance_ns(members.rank[last], members.rank[before])
    return members.rank[last], np.asarray(is_alone | is_tied)


def inter_node(members: Members, tables: TableSet) -> Flags:
    """Return for each call whether its members are on several hosts; `devices_per_node` replaces missing host names."""
    hosts = hosts_of(tables)
    per_node = tables.declared.devices_per_node
    if not all(hosts) and per_node > 0:
        hosts = [str(rank // per_node) for rank in tables.ranks]
    node_of_rank = text_codes(hosts)[0]
    return ~is_uniform(members.call, node_of_rank[np.searchsorted(tables.ranks, members.rank)], members.count)


def sequence_numbers(members: Members, head: Ints) -> Ints:
    """Return the recorded sequence number; without one, count the group's calls of an operation by first arrival."""
    columns = members.columns
    # One code per pair of group and operation; calls with the same code are counted from 0 in order.
    kind_of_call = group_codes(columns.codes("group")[0][head], columns.codes("op")[0][head])
    counted = occurrence(kind_of_call)
    is_recorded = members.by[head] == list(MatchedBy).index(MatchedBy.SEQUENCE)
    return np.where(is_recorded, columns["sequence"][head], counted)


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """When the members of calls waited, and when they transferred data."""

    last: Ints
    """Last arrival, by call."""
    end: Ints
    """Time at which the data was delivered, by call."""
    delivered: Ints
    """How long the range continues after delivery, by member."""
    wait: Ints
    """Time until the last arrival, by member."""
    transfer: Ints
    """Time from the end of the wait to delivery, by member."""


def times_of(members: Members, is_known: Flags, tables: TableSet) -> Times:
    """Split the time of each member into wait and transfer; `is_known` marks the members of complete calls.

    Example: three members of an all-reduce arrive at 0, 4 and 10 and leave at 14. They wait 10, 6 and 0, and the
    transfer takes 4. The range of a posted send continues until its handle is waited for. The time after delivery does
    not count as transfer. A batch's kernel ends with the last of its messages, so a message had arrived when the first
    of its two kernels ended.
    """
    call, count = members.call, members.count
    last = per_code(call, members.start, np.maximum, count)
    delivered = np.where(is_known, _delivered_ns(members, tables), 0)
    # When the first member of each call ended, but not before the last one started.
    earliest_end = np.maximum(per_code(call, members.end, np.minimum, count), last)
    over = np.where(_in_batch(members) & is_known, earliest_end[call], members.end - delivered)
    duration = np.maximum(members.end - members.start, 0)
    wait = np.minimum(np.maximum(last[call] - members.start, 0), duration)
    transfer = np.maximum(over - members.start - wait, 0)
    return Times(last, per_code(call, over, np.maximum, count), delivered, wait, transfer)


def _in_batch(members: Members) -> Flags:
    """Mark the sends and receives whose kernel runs others too, which have the same start and end on their rank."""
    is_batched = np.zeros(len(members.call), dtype=bool)
    rows = np.flatnonzero(members.columns.matches("op", *P2P) & ~members.columns.matches("library", "gloo"))
    if len(rows):
        kernel = group_codes(members.rank[rows], members.start[rows], members.end[rows])
        is_batched[rows] = np.bincount(kernel)[kernel] > 1
    return is_batched


def _delivered_ns(members: Members, tables: TableSet) -> Ints:
    """Return how long the range of each posted send or receive continues after the receiver had the data.

    gloo's ranges last until their handles are waited for, which can be long after delivery. The receive's end marks
    delivery, unless the receiver itself waited late. Then the transfer is assumed to take the median time of the
    receives on its axis that were waited for in time. Without any, the receive's end is used.
    """
    columns = members.columns
    on_gloo = columns.matches("library", "gloo")
    is_send, is_receive = columns.matches("op", "send") & on_gloo, columns.matches("op", "recv")
    # For each part's call: when both sides had posted, and when the receive's range ended (-1: no receive was read).
    both = per_code(members.call, members.start, np.maximum, members.count)[members.call]
    received = per_code(members.call, np.where(is_receive, members.end, -1), np.maximum, members.count)[members.call]
    is_posted_receive = is_receive & on_gloo
    late = _late_by_compute(members, is_posted_receive, tables)
    axes, names = columns.codes("axis")
    for axis in range(len(names)):
        on_axis = is_posted_receive & (axes == axis)
        waited = on_axis & ~late
        if not waited.any():
            continue
        typical = max(int(np.median((received - both)[waited])), 0)
        shortened = np.isin(members.call, members.call[on_axis & late])
        received = np.where(shortened, np.minimum(received, both + typical), received)
    after = np.minimum(members.end - np.maximum(received, members.start), members.end - members.start)
    return np.where((is_send | is_posted_receive) & (received >= 0), np.maximum(after, 0), 0)


def _late_by_compute(members: Members, receives: Flags, tables: TableSet) -> Flags:
    """Mark the posted receives that were waited for only after later compute had finished."""
    late = np.zeros(len(members.call), dtype=bool)
    receive_rows = np.flatnonzero(receives)
    for rank, places in rows_by_code(members.rank[receive_rows]).items():
        rows = receive_rows[places]
        collectives, activities = tables.columns("collectives", rank), tables.columns("activities", rank)
        part = members.part[rows]
        start, duration = collectives["start_ns"][part], collectives["dur_ns"][part]
        computes = activities.matches("kind", "compute")
        compute_end = (activities["start_ns"] + activities["dur_ns"])[computes]
        late[rows], _ = asked_late(start, start + duration, compute_end, duration)
    return late
