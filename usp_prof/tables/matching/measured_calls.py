"""Measured calls: arrivals, waits and transfer time of each call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from usp_prof.columns.arrow import coded
from usp_prof.columns.rows import by_appearance, per_code
from usp_prof.tables.matching.clocks import Clock
from usp_prof.tables.matching.members import (
    group_size,
    inter_node,
    last_ranks,
    members_of,
    nodes_of,
    on_one_clock,
    sequence_numbers,
    times_of,
)
from usp_prof.tables.matching.parts import Parts
from usp_prof.tables.matching.same_calls import MatchedBy, matched_parts
from usp_prof.tables.table_set import TableSet


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredCalls:
    """Measured calls by first arrival, and their parts."""

    calls: dict[str, Any]
    """Columns of `calls`."""
    parts: Parts
    last_rank: NDArray[np.int32]
    """Rank that arrived last, by call."""


def measure(tables: TableSet, clocks: Clock) -> MeasuredCalls:
    """Measure each call of a run from its members."""
    members = members_of(matched_parts(tables), clocks)
    columns, call, count = members.columns, members.call, members.count
    # Indexed by call: its first member, its expected size, and the number of members seen.
    head = np.searchsorted(call, np.arange(count))
    size, n_members = group_size(members, head), np.bincount(call, minlength=count)
    complete = (n_members == size) & on_one_clock(members, clocks)
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
        "inter_node": inter_node(members, nodes_of(tables)),
        "step": np.maximum(per_code(call, columns["step"], np.maximum, count), -1),
    }
    parts = {
        "call": call,
        "part": members.part,
        "wait_ns": np.where(is_known, times.wait, -1),
        "transfer_ns": np.where(is_known, times.transfer, -1),
        "delivered_ns": times.delivered,
    }
    return MeasuredCalls(calls, Parts.by_rank(members.rank, parts), last_rank.astype(np.int32))


_TEXTS = ("op", "group", "axis")
