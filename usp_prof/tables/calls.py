"""Table of calls: parts of one collective, send or receive matched over ranks, on aligned clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.arrow import coded
from usp_prof.columns.rows import by_appearance, distinct, is_uniform, numbered, per_code
from usp_prof.columns.table import Columns
from usp_prof.model.schema import STEP, Schema, Scope, flag, integer, text
from usp_prof.tables import clock, shares
from usp_prof.tables.build import table
from usp_prof.tables.matching.members import (
    group_size,
    inter_node,
    last_ranks,
    members_of,
    sequence_numbers,
    times_of,
)
from usp_prof.tables.matching.same_calls import MatchedBy, matched_parts
from usp_prof.tables.shares import Facts
from usp_prof.tables.table_set import TableSet, memoized

Made = TypeVar("Made")

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
        integer("members", "Number of members whose part was read."),
        integer("group_size", "Number of members of the group."),
        flag("complete", "All members' parts were read."),
        integer("bytes", "Bytes of the operation (largest in or out of a member).", "bytes"),
        integer("first_ns", "First member's arrival, aligned.", "ns"),
        integer("last_ns", "Last member's arrival, aligned.", "ns"),
        integer(
            "end_ns", "Last member's end, aligned; for a posted transfer, the time at which its data had arrived.", "ns"
        ),
        integer("late_rank", "The rank that arrived last; -1 if the difference is within the clock residual."),
        integer("transfer_ns", "From last arrival to the end.", "ns"),
        integer("wait_ns", "Sum over members of the time until the last arrived.", "ns"),
        flag("inter_node", "Members are on several hosts."),
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


Rows = Mapping[str, NDArray[Any]]
"""Columns of parts, by name."""


_TYPES = {"call": np.int32, "part": np.int32, "wait_ns": np.int64, "transfer_ns": np.int64, "delivered_ns": np.int64}
COLUMNS = tuple(_TYPES)
"""Columns of one rank's parts; with narrow types, a part takes 32 bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Parts of a run's matched calls, sorted by rank and call."""

    ranks: list[int]
    """Ranks that have parts, in order."""
    _first_row: Ints
    """Row of the first part, by index of the rank; the last entry is the number of parts."""
    _columns: Rows

    @classmethod
    def by_rank(cls, rank: Ints, columns: Rows) -> Parts:
        """Store the parts of calls; rows are sorted by call."""
        order = np.argsort(rank, kind="stable")
        ranks = distinct(rank)
        first_row = np.append(np.searchsorted(rank[order], ranks), len(rank))
        stored = {name: columns[name][order].astype(kind) for name, kind in _TYPES.items()}
        return cls(ranks.tolist(), first_row, stored)

    def __len__(self) -> int:
        """Return the number of parts."""
        return int(self._first_row[-1])

    def of_each_call(self) -> Ints:
        """Return the number of parts of each call."""
        return np.bincount(self._columns["call"])

    def of_rank(self, rank: int, *names: str) -> Rows:
        """Return columns of one rank's parts, sorted by call."""
        low, high = np.searchsorted(self.ranks, (rank, rank + 1)).tolist()
        rows = slice(int(self._first_row[low]), int(self._first_row[high]))
        return {name: self._columns[name][rows].astype(np.int64) for name in names}

    def by_call(self, *names: str, extra_columns: Iterable[Rows] = ()) -> Rows:
        """Return columns of all parts, sorted by call and rank.

        Columns that are not in `COLUMNS` come from `extra_columns`, which yields those of each rank in `ranks`, in
        order, with one entry per row of its `collectives`.
        """
        rank = np.repeat(np.array(self.ranks, np.int64), np.diff(self._first_row))
        columns = {name: [values] for name, values in self._columns.items()} | {"rank": [rank]}
        for number, of_rank in zip(self.ranks, extra_columns, strict=False):
            part = self.of_rank(number, "part")["part"]
            for name, values in of_rank.items():
                columns.setdefault(name, []).append(values[part])
        order = np.argsort(self._columns["call"], kind="stable")
        nothing = np.zeros(0, np.int64)
        return {name: np.concatenate([nothing, *columns.get(name, ())])[order] for name in ("rank", *names)}

    def members_of(self, call: int) -> list[tuple[int, int]]:
        """Return the members of a call as pairs of rank and row in its `collectives`."""
        rows = np.flatnonzero(self._columns["call"] == call)
        place = np.searchsorted(self._first_row, rows, side="right") - 1
        return [
            (self.ranks[at], part)
            for at, part in zip(place.tolist(), self._columns["part"][rows].tolist(), strict=True)
        ]


@dataclass(frozen=True, eq=False)
class Calls:
    """Calls of a run, and their parts."""

    calls: pa.Table
    parts: Parts
    """Columns of `call_parts`, plus `delivered_ns`: how long the range continues after the data arrived."""
    last_rank: NDArray[np.int32]
    """Rank that arrived last in each call, even if close; -1 if it is not among the parts."""

    @cached_property
    def _columns(self) -> Columns:
        return Columns(self.calls)

    def columns(self) -> Columns:
        """Return the calls as arrays."""
        return self._columns

    @cached_property
    def is_pair(self) -> Flags:
        """Whether each call is a send or receive whose two sides were read."""
        return self._columns["complete"] & self._columns.matches("matched_by", str(MatchedBy.P2P))

    @cached_property
    def is_collective(self) -> Flags:
        """Whether each call is a collective of several ranks, all of whose parts were read."""
        return self._columns["complete"] & (self._columns["group_size"] > 1) & ~self.is_pair

    def touching(self, ranks: Iterable[int]) -> Flags:
        """Mark the calls in which any of these ranks participates."""
        touched = np.zeros(len(self._columns), bool)
        for rank in ranks:
            touched[self.parts.of_rank(rank, "call")["call"]] = True
        return touched

    def among(self, ranks: Sequence[int]) -> Calls:
        """Return the calls in which these ranks participate, and their parts.

        Values of a call still come from all participants; a last rank that is not among these becomes -1.
        """
        parts_of = {rank: self.parts.of_rank(rank, *COLUMNS) for rank in ranks}
        rows = {name: np.concatenate([parts[name] for parts in parts_of.values()]) for name in COLUMNS}
        rank = np.repeat(ranks, [len(parts["call"]) for parts in parts_of.values()])
        call_rows, rows["call"] = numbered(rows["call"])
        order = np.lexsort((rank, rows["call"]))
        parts = Parts.by_rank(rank[order], {name: values[order] for name, values in rows.items()})
        late_rank, last_rank = (
            np.where(np.isin(of_call, ranks), of_call, -1)
            for of_call in (self._columns["late_rank"][call_rows], self.last_rank[call_rows])
        )
        calls = _with_columns(self.calls.take(call_rows), call=np.arange(len(call_rows)), late_rank=late_rank)
        return Calls(calls, parts, last_rank)

    def pairs_of(self, rank: int, *names: str) -> Rows:
        """Return columns of one rank's sends and receives whose other side was read."""
        parts = self.parts.of_rank(rank, "call", *names)
        is_pair = self.is_pair[parts["call"]]
        return {name: parts[name][is_pair] for name in names}


def _with_columns(rows: pa.Table, **columns: Ints) -> pa.Table:
    """Return a table with some integer columns replaced."""
    for name, values in columns.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(name), pa.array(values))
    return rows


def of_each_rank(
    tables: TableSet,
    measure: Callable[[TableSet, int], Made],
    ranks: Sequence[int] | None = None,
    more: Callable[[TableSet, Sequence[int]], Facts] = lambda *_: {},
) -> Iterator[Made]:
    """Return `measure(tables, rank)` of each rank, in order, computed by workers if there are any (see `shares`).

    Of the whole run, `measure` may use the clocks, the calls in which its rank participates (renumbered), and what
    `more` returns.
    """

    def facts_for(of_share: Sequence[int]) -> Facts:
        return {
            "clock": clock.fit_clocks(tables),
            "calls": match_calls(tables).among(of_share),
            **more(tables, of_share),
        }

    return shares.of_each_rank(tables, measure, ranks, facts_for)


def build(tables: TableSet) -> pa.Table:
    """Build the table of calls."""
    return match_calls(tables).calls


def build_parts(tables: TableSet) -> pa.Table:
    """Build the table of parts and their calls."""
    return table(PARTS, match_calls(tables).parts.by_call("call", "part", "wait_ns", "transfer_ns"))


_TEXTS = ("op", "group", "axis")


@memoized("calls")
def match_calls(tables: TableSet) -> Calls:
    """Measure each call of a run from its members."""
    clocks = clock.fit_clocks(tables)
    members = members_of(matched_parts(tables), clocks)
    columns, call, count = members.columns, members.call, members.count
    # Indexed by call: its first member, its expected size, and the number of members seen.
    head = np.searchsorted(call, np.arange(count))
    size, n_members = group_size(members, head), np.bincount(call, minlength=count)
    # Times can be compared only if the members' clocks are tied to each other.
    complete = (n_members == size) & is_uniform(call, clocks.component_rows(members.rank), count)
    is_known = complete[call]
    times = times_of(members, is_known, tables)
    last_rank, is_tied = last_ranks(members, clocks)
    largest = np.maximum(columns["in_bytes"], columns["out_bytes"])
    texts = {name: (columns.narrow_codes(name)[0][head], columns.narrow_codes(name)[1]) for name in _TEXTS}
    texts["matched_by"] = members.by[head], [str(how) for how in MatchedBy]
    calls = {
        **{name: coded(*by_appearance(codes, values)) for name, (codes, values) in texts.items()},
        "call": np.arange(count),
        "sequence": sequence_numbers(members, head),
        "members": n_members,
        "group_size": size,
        "complete": complete,
        "bytes": per_code(call, largest, np.maximum, count),
        "first_ns": per_code(call, members.start, np.minimum, count),
        "last_ns": times.last,
        "end_ns": times.end,
        "late_rank": np.where(complete & (size > 1) & ~is_tied, last_rank, -1),
        "transfer_ns": np.where(complete, np.maximum(times.end - times.last, 0), -1),
        "wait_ns": np.where(complete, per_code(call, times.wait, np.add, count), -1),
        "inter_node": inter_node(members, tables),
        "step": np.maximum(per_code(call, columns["step"], np.maximum, count), -1),
    }
    parts = {
        "call": call,
        "part": members.part,
        "wait_ns": np.where(is_known, times.wait, -1),
        "transfer_ns": np.where(is_known, times.transfer, -1),
        "delivered_ns": times.delivered,
    }
    return Calls(table(SCHEMA, calls), Parts.by_rank(members.rank, parts), last_rank.astype(np.int32))


@dataclass(frozen=True, slots=True, eq=False)
class Idling:
    """Time without data transfer at start and end of each range, by row of a rank's `collectives`."""

    waiting_ns: Ints
    """A receive waits for its sender, or a posted send for its receiver; the peer determines the cause."""
    delivered_ns: Ints
    """The data of a posted send or receive has arrived, and the rank has not asked yet."""


def paired(tables: TableSet, rank: int) -> Flags:
    """Return for each row of a rank's `collectives` whether it is a send or receive whose other side was read."""
    is_paired = np.zeros(len(tables.columns("collectives", rank)), bool)
    is_paired[match_calls(tables).pairs_of(rank, "part")["part"]] = True
    return is_paired


def idling(tables: TableSet, rank: int, axis: str) -> Idling:
    """Return the time without data transfer of a rank's sends and receives on one axis; 0 for other rows."""
    collectives = tables.columns("collectives", rank)
    pairs = match_calls(tables).pairs_of(rank, "part", "wait_ns", "delivered_ns")
    waiting, delivered = (np.zeros(len(collectives), np.int64) for _ in range(2))
    waiting[pairs["part"]] = pairs["wait_ns"]
    delivered[pairs["part"]] = pairs["delivered_ns"]
    on_axis = collectives.matches("axis", axis)
    # A send kernel counts as communication from its start; gloo's range of a send shows only when it was posted.
    is_posted_send = collectives.matches("op", "send") & collectives.matches("library", "gloo")
    may_wait = on_axis & (collectives.matches("op", "recv", "send_recv") | is_posted_send)
    return Idling(np.where(may_wait, waiting, 0), np.where(on_axis, delivered, 0))
