"""Measured calls: arrivals, waits and transfer time of each call in a block."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from usp_prof.columns.arrow import coded
from usp_prof.columns.rows import by_appearance, per_code
from usp_prof.tables.matching.members import (
    group_size,
    inter_node,
    last_ranks,
    members_of,
    on_one_clock,
    sequence_numbers,
    times_of,
)
from usp_prof.tables.matching.same_calls import MatchedBy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.columns.arrays import Ints
    from usp_prof.tables.matching.clocks import Clock
    from usp_prof.tables.matching.members import MarkLate, Nodes
    from usp_prof.tables.matching.same_calls import MatchedParts
    from usp_prof.tables.matching.shelves import Folder, Shelf


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredBlock:
    """Measured calls of a block of groups, by first arrival, and their parts, by call and rank."""

    calls: dict[str, NDArray[Any]]
    """Columns of `calls`, and `last_rank`; text columns hold codes into `texts`."""
    texts: dict[str, list[str]]
    """Distinct values per text column; identical for all blocks that have calls."""
    number: Ints
    """Number among the matched calls of the run, by call."""
    rank: Ints
    parts: dict[str, NDArray[Any]]


@dataclass(slots=True, eq=False)
class Measured:
    """Calls of several blocks, block after block, each ordered by first arrival as in `MeasuredBlock`."""

    calls: Shelf
    texts: dict[str, list[str]] = field(default_factory=dict)
    numbers: list[Ints] = field(default_factory=list)

    def put(self, block: MeasuredBlock) -> None:
        """Append the calls of a block."""
        self.calls.put(block.calls)
        self.numbers.append(block.number)
        if len(block.number) or not self.texts:
            self.texts = block.texts

    def in_order(self, folder: Folder | None) -> tuple[dict[str, Any], Ints]:
        """Sort the calls of all blocks by first arrival; return the columns, and new call numbers block by block.

        If `folder` is given, the columns are memory-mapped files in it.
        """
        all_columns, tie = self.calls.columns(), np.concatenate(self.numbers)
        every = slice(0, len(tie))
        order = np.lexsort((tie, all_columns["first_ns"][every]))
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order))
        columns: dict[str, Any] = {}
        for name in ("call", *all_columns):
            values = np.arange(len(order)) if name == "call" else all_columns[name][every][order]
            texts = self.texts.get(name)
            if texts is not None:
                codes, texts = by_appearance(values, texts)
                values = codes.astype(np.int32)
            if folder is not None:
                values = folder.mapped(name, values)
            columns[name] = values if texts is None else coded(values, texts)
        return columns, number


def measure(matched: MatchedParts, clocks: Clock, nodes: Nodes, mark_late: MarkLate) -> MeasuredBlock:
    """Measure each call of a block from its members."""
    members = members_of(matched, clocks)
    columns, call, count = members.columns, members.call, members.count
    # Indexed by call: its first member, its expected size, and the number of members seen.
    head = np.searchsorted(call, np.arange(count))
    size, n_members = group_size(members, head), np.bincount(call, minlength=count)
    complete = (n_members == size) & on_one_clock(members, clocks)
    is_known = complete[call]
    times = times_of(members, is_known, mark_late)
    last_rank, is_tied = last_ranks(members, clocks)
    largest = np.maximum(columns["in_bytes"], columns["out_bytes"])
    calls = {
        "op": columns.narrow_codes("op")[0][head],
        "group": columns.narrow_codes("group")[0][head],
        "axis": columns.narrow_codes("axis")[0][head],
        "sequence": sequence_numbers(members, head),
        "matched_by": members.by[head],
        "members": n_members,
        "group_size": size,
        "complete": complete,
        "bytes": per_code(call, largest, np.maximum, count),
        "first_ns": per_code(call, members.start, np.minimum, count),
        "last_ns": times.last,
        "end_ns": times.end,
        "late_rank": np.where(complete & (size > 1) & ~is_tied, last_rank, -1),
        "last_rank": last_rank.astype(np.int32),
        "transfer_ns": np.where(complete, np.maximum(times.end - times.last, 0), -1),
        "wait_ns": np.where(complete, per_code(call, times.wait, np.add, count), -1),
        "inter_node": inter_node(members, nodes),
        "step": np.maximum(per_code(call, columns["step"], np.maximum, count), -1),
    }
    texts = {name: columns.narrow_codes(name)[1] for name in ("op", "group", "axis")}
    texts["matched_by"] = [str(how) for how in MatchedBy]
    parts = {
        "call": call,
        "part": members.part,
        "wait_ns": np.where(is_known, times.wait, -1),
        "transfer_ns": np.where(is_known, times.transfer, -1),
        "delivered_ns": times.delivered,
    }
    return MeasuredBlock(calls, texts, members.number, members.rank, parts)
