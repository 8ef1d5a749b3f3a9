"""Table of calls: parts of one collective, send or receive matched over ranks, on aligned clocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import group_codes, per_code, rows_by_code
from usp_prof.columns.table import Columns
from usp_prof.model.schema import STEP, Schema, Scope, flag, integer, text
from usp_prof.tables import clock
from usp_prof.tables.build import empty, table
from usp_prof.tables.communication.posts import asked_late
from usp_prof.tables.matching import same_calls
from usp_prof.tables.matching.same_calls import MatchedBy

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from usp_prof.tables.clock import Clock
    from usp_prof.tables.matching.same_calls import Parts
    from usp_prof.tables.table_set import TableSet

    Int = NDArray[np.int64]

SCHEMA = Schema(
    "calls",
    "The same operation on all members of a group: group and sequence number, with arrival and end on aligned clocks.",
    (
        integer("call", "Number of the call, by first arrival."),
        text("op", "Operation."),
        text("group", "Key of the group."),
        text("axis", "Parallel axis."),
        integer("sequence", "Sequence number, recorded or counted."),
        text("matched_by", "sequence, order (counted from the end), or p2p."),
        integer("members", "Members whose part was read."),
        integer("group_size", "Members that the group has."),
        flag("complete", "All members' parts were read."),
        integer("bytes", "Bytes of the operation (largest in or out of a member).", "bytes"),
        integer("first_ns", "First member's arrival, aligned.", "ns"),
        integer("last_ns", "Last member's arrival, aligned.", "ns"),
        integer("end_ns", "Last member's end, aligned; of a posted transfer when its data was across.", "ns"),
        integer("late_rank", "The rank that arrived last; -1 when tied within the clock's residual."),
        integer("transfer_ns", "From last arrival to the end.", "ns"),
        integer("wait_ns", "Sum over members of the time until the last arrived.", "ns"),
        flag("inter_node", "Members lie on several hosts."),
        STEP,
    ),
    Scope.RUN,
)

PARTS = Schema(
    "call_parts",
    "Which part of which rank belongs to which call.",
    (
        integer("call", "Number of the call."),
        integer("rank", "Rank."),
        integer("part", "Row of `collectives` of that rank."),
        integer("wait_ns", "Until the last member arrived; -1 when the call is not complete.", "ns"),
        integer("transfer_ns", "After it; -1 when the call is not complete.", "ns"),
    ),
    Scope.RUN,
)


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """Both tables, as Arrow and as columns."""

    calls: pa.Table
    parts: pa.Table
    delivered_ns: NDArray[np.int64]
    """By part: how long its range goes on after the data was across; 0 for all but posted sends and receives."""
    _call_columns: Columns = field(init=False)
    _part_columns: Columns = field(init=False)
    _of_rank: dict[int, Int] = field(init=False)

    def __post_init__(self) -> None:
        """Set up once what is asked for again and again, for every rank."""
        object.__setattr__(self, "_call_columns", Columns(self.calls))
        object.__setattr__(self, "_part_columns", Columns(self.parts))
        object.__setattr__(self, "_of_rank", rows_by_code(self._part_columns["rank"]))

    def columns(self) -> Columns:
        """Give the calls as arrays."""
        return self._call_columns

    def part_columns(self) -> Columns:
        """Give the parts as arrays, sorted by call and rank."""
        return self._part_columns

    def rows_of(self, rank: int) -> Int:
        """Give the rows of one rank's parts, in order."""
        return self._of_rank.get(rank, np.zeros(0, np.int64))

    def pairs_of(self, rank: int) -> Int:
        """Give the rows of one rank's sends and receives whose other side was read."""
        rows, calls = self.rows_of(rank), self._call_columns
        both = calls.matches("matched_by", str(MatchedBy.P2P)) & calls["complete"]
        return np.asarray(rows[both[self._part_columns["call"][rows]]])


def of(tables: TableSet) -> Calls:
    """Match the calls of a run and set them on one clock, once."""
    return tables.memo("calls", lambda: _make(tables))


def build(tables: TableSet) -> pa.Table:
    """Make the table of calls."""
    return of(tables).calls


def build_parts(tables: TableSet) -> pa.Table:
    """Make the table of which part belongs to which call."""
    return of(tables).parts


@dataclass(frozen=True, slots=True, eq=False)
class _Members:
    """The matched parts, sorted by call and rank; `call` numbers by first arrival, times are aligned."""

    columns: Columns
    call: Int
    count: int
    rank: Int
    part: Int
    start: Int
    end: Int
    by: Int


def _make(tables: TableSet) -> Calls:
    matched, clocks = same_calls.of(tables), clock.of(tables)
    if not matched.calls:
        return Calls(empty(SCHEMA), empty(PARTS), np.zeros(0, np.int64))
    members = _members(matched, clocks)
    call, count = members.call, members.count
    head = np.searchsorted(call, np.arange(count))
    size = _group_size(members, head)
    together = np.bincount(call, minlength=count)
    one_clock = _one_clock(members, clocks)
    complete = (together == size) & one_clock
    last = per_code(call, members.start, np.maximum, count)
    delivered = np.where(complete[call], _delivered(tables, members), 0)
    over = members.end - delivered
    end = per_code(call, over, np.maximum, count)
    wait = np.minimum(np.maximum(last[call] - members.start, 0), np.maximum(members.end - members.start, 0))
    transfer = np.maximum(over - members.start - wait, 0)
    c, known = members.columns, complete[call]
    steps = np.maximum(per_code(call, c["step"], np.maximum, count), -1)
    calls = table(
        SCHEMA,
        {
            "call": np.arange(count),
            "op": c["op"][head],
            "group": c["group"][head],
            "axis": c["axis"][head],
            "sequence": _sequence(members, head),
            "matched_by": np.array([str(how) for how in MatchedBy], object)[members.by[head]],
            "members": together,
            "group_size": size,
            "complete": complete,
            "bytes": per_code(call, np.maximum(c["in_bytes"], c["out_bytes"]), np.maximum, count),
            "first_ns": per_code(call, members.start, np.minimum, count),
            "last_ns": last,
            "end_ns": end,
            "late_rank": np.where(complete & (size > 1), _late(members, clocks), -1),
            "transfer_ns": np.where(complete, np.maximum(end - last, 0), -1),
            "wait_ns": np.where(complete, per_code(call, wait, np.add, count), -1),
            "inter_node": _inter_node(tables, members),
            "step": steps,
        },
        count,
    )
    columns = {"call": call, "rank": members.rank, "part": members.part}
    columns |= {"wait_ns": np.where(known, wait, -1), "transfer_ns": np.where(known, transfer, -1)}
    return Calls(calls, table(PARTS, columns, len(call)), delivered)


def _members(matched: Parts, clocks: Clock) -> _Members:
    rows = np.flatnonzero(matched.call >= 0)
    call, rank = matched.call[rows], matched.rank[rows]
    start = clocks.align_rows(rank, matched.start[rows])
    first = per_code(call, start, np.minimum, matched.calls)
    number = np.empty(matched.calls, np.int64)
    number[np.lexsort((np.arange(matched.calls), first))] = np.arange(matched.calls)
    call = number[call]
    order = np.lexsort((rank, call))
    rows = rows[order]
    end = clocks.align_rows(matched.rank[rows], matched.end[rows])
    return _Members(
        matched.columns.take(rows),
        call[order],
        matched.calls,
        matched.rank[rows],
        matched.part[rows],
        start[order],
        end,
        matched.by[rows],
    )


def _group_size(members: _Members, head: Int) -> Int:
    """Give the number of members each call should have: 2 for a pair, else what the group says, else who was seen."""
    declared = per_code(members.call, members.columns["group_size"], np.maximum, members.count)
    seen = np.bincount(members.call, minlength=members.count)
    paired = members.by[head] == list(MatchedBy).index(MatchedBy.P2P)
    return np.where(paired, 2, np.where(declared > 0, declared, seen))


def _one_clock(members: _Members, clocks: Clock) -> NDArray[np.bool_]:
    component = clocks.component_rows(members.rank)
    low, high = (per_code(members.call, component, how, members.count) for how in (np.minimum, np.maximum))
    return np.asarray(low == high)


def _late(members: _Members, clocks: Clock) -> Int:
    """Name the last to arrive, unless the next before it is within what the clocks leave open."""
    order = np.lexsort((members.start, members.call))
    call = members.call[order]
    tail = np.searchsorted(call, np.arange(members.count), side="right") - 1
    last, before = order[tail], order[np.maximum(tail - 1, 0)]
    alone = members.call[before] != np.arange(members.count)
    apart = members.start[last] - members.start[before]
    tied = apart <= clocks.tolerance_ns(members.rank[last], members.rank[before])
    return np.where(alone | tied | (last == before), -1, members.rank[last])


def _inter_node(tables: TableSet, members: _Members) -> NDArray[np.bool_]:
    hosts = [clock.host_of(tables, rank) for rank in tables.ranks]
    per_node = tables.manifest.devices_per_node if tables.manifest else 0
    if not all(hosts) and per_node > 0:
        hosts = [str(rank // per_node) for rank in tables.ranks]
    numbers = {host: i for i, host in enumerate(dict.fromkeys(hosts))}
    node = np.array([numbers[host] for host in hosts], np.int64)[np.searchsorted(tables.ranks, members.rank)]
    low, high = (per_code(members.call, node, how, members.count) for how in (np.minimum, np.maximum))
    return np.asarray(low != high)


def _sequence(members: _Members, head: Int) -> Int:
    """Take the recorded number, else count the group's calls of an operation by first arrival."""
    c = members.columns
    group, op = c.codes("group")[0][head], c.codes("op")[0][head]
    codes = group_codes(group, op)
    counted = np.empty(members.count, np.int64)
    order = np.lexsort((np.arange(members.count), codes))
    begin = np.searchsorted(codes[order], np.arange(int(codes.max()) + 1))
    counted[order] = np.arange(members.count) - begin[codes[order]]
    by_number = members.by[head] == list(MatchedBy).index(MatchedBy.SEQUENCE)
    return np.where(by_number, c["sequence"][head], counted)


def _delivered(tables: TableSet, members: _Members) -> Int:
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
    late = _asked_late(tables, members, is_posted_receive)
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


def _of_call(members: _Members, parts: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark all parts of the calls that have one of these parts."""
    marked = np.zeros(members.count, dtype=bool)
    marked[members.call[parts]] = True
    return marked[members.call]


def _asked_late(tables: TableSet, members: _Members, receives: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark the posted receives that nobody waited for until later work was done."""
    late = np.zeros(len(members.call), dtype=bool)
    for rank in np.unique(members.rank[receives]).tolist():
        rows = np.flatnonzero(receives & (members.rank == rank))
        collectives, activities = tables.columns("collectives", rank), tables.columns("activities", rank)
        part = members.part[rows]
        start, lasting = collectives["start_ns"][part], collectives["dur_ns"][part]
        computes = activities.matches("kind", "compute")
        compute_end = (activities["start_ns"] + activities["dur_ns"])[computes]
        late[rows], _ = asked_late(start, start + lasting, compute_end, lasting)
    return late


@dataclass(frozen=True, slots=True, eq=False)
class Idling:
    """By row of a rank's `collectives`: time at the range's begin and end in which nothing is carried."""

    waiting_ns: Int
    """A receive waits for its peer to send, or a posted send for its receiver: whoever keeps the peer costs it."""
    delivered_ns: Int
    """The data of a posted send or receive is across, and nobody has asked yet."""


def paired(tables: TableSet, rank: int) -> NDArray[np.bool_]:
    """Say for each row of a rank's `collectives` whether it is a send or receive whose other side was read."""
    found = np.zeros(len(tables.columns("collectives", rank)), bool)
    matched = of(tables)
    found[matched.part_columns()["part"][matched.pairs_of(rank)]] = True
    return found


def idling(tables: TableSet, rank: int, axis: str) -> Idling:
    """Give for the sends and receives of a rank on one axis the time in which they carry nothing; 0 elsewhere."""
    collectives = tables.columns("collectives", rank)
    calls = of(tables)
    parts, mine = calls.part_columns(), calls.pairs_of(rank)
    waiting, delivered = (np.zeros(len(collectives), np.int64) for _ in range(2))
    waiting[parts["part"][mine]] = parts["wait_ns"][mine]
    delivered[parts["part"][mine]] = calls.delivered_ns[mine]
    on_axis = collectives.matches("axis", axis)
    # A send kernel counts as communication from its start; gloo's range of a send says only when it was posted.
    posted = collectives.matches("op", "send") & collectives.matches("library", "gloo")
    waits = on_axis & (collectives.matches("op", "recv", "send_recv") | posted)
    return Idling(np.where(waits, waiting, 0), np.where(on_axis, delivered, 0))
