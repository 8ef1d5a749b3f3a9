"""Matching: parts on different ranks that are the same operation, found without aligned clocks.

Clocks are solved from the matches. Recorded sequence numbers decide if a group has them. Otherwise parts with the same
group, operation and size are matched in order. They are counted within each step if all ranks have equally many there,
else from the end, because ranks more often start recording at different moments than they stop. Sends and receives pair
by source, destination and order.

`shared_calls` matches the calls of two ranks before their steps are known.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import group_codes, is_uniform, numbered, occurrence, occurrence_from_end, per_code
from usp_prof.columns.table import Columns
from usp_prof.tables.communication.posts import P2P
from usp_prof.tables.table_set import TableSet, memoized

Keys = tuple[Ints, ...]
"""Columns that are equal for all parts of a call and differ between calls."""

UNMATCHED = -1
_UNEVEN = ("all_to_all", "send_recv", "gather", "scatter", "broadcast", "reduce")


class MatchedBy(StrEnum):
    """How the parts of a call were matched."""

    SEQUENCE = "sequence"
    ORDER = "order"
    P2P = "p2p"


_COLUMNS = (
    "rank", "part", "op", "library", "group", "axis", "sequence", "group_size", "in_bytes", "out_bytes", "peer",
    "start_ns", "dur_ns", "step",
)  # fmt: skip
"""Columns of `collectives` needed to match parts, to find clock ties, and to measure calls."""


@dataclass(frozen=True, slots=True, eq=False)
class MatchedParts:
    """All parts of a run, rank by rank, with the calls they belong to; one entry per part."""

    columns: Columns
    """Columns of `collectives`; `part` is the row in its rank's table, and times are on the rank's own clock."""
    call: NDArray[np.int32]
    """Number of the part's call, from 0; -1 for a part whose group or peer is unknown."""
    by: NDArray[np.int8]
    """Index into `MatchedBy`; -1 if unmatched."""

    @property
    def calls(self) -> int:
        """Number of calls."""
        return int(self.call.max(initial=UNMATCHED)) + 1


@memoized("matching")
def matched_parts(tables: TableSet) -> MatchedParts:
    """Return the matches of a run; a predicted run reuses those of the recorded run."""
    columns = tables.together("collectives", _COLUMNS)
    if tables.recorded is None:
        call, by = _match(columns)
        return MatchedParts(columns, call.astype(np.int32), by)
    # The recorded run may have more parts, and calls without a part here.
    recorded = matched_parts(tables.recorded)
    row = np.searchsorted(recorded.columns["rank"], columns["rank"]) + columns["part"]
    call = recorded.call[row]
    is_matched = call != UNMATCHED
    call[is_matched] = numbered(call[is_matched])[1]
    return MatchedParts(columns, call, recorded.by[row])


def _match(columns: Columns) -> tuple[Ints, NDArray[np.int8]]:
    """Return each part's call, and how it was matched.

    Calls are numbered by the way they were matched, by group, and by the remaining keys.
    """
    has_group = ~columns.matches("group", "") & (columns["group_size"] != 1)
    # An exchange in a known group without a peer is an all-to-all, which uses the same kernel as sends.
    is_exchange = has_group & columns.matches("op", "send_recv") & (columns["peer"] < 0)
    is_transfer = columns.matches("op", *P2P) & ~is_exchange
    is_collective = has_group & ~is_transfer
    # Numbers count only in groups in which every part has one.
    group = columns.codes("group")[0]
    has_number = is_collective & ~np.isin(group, group[is_collective & (columns["sequence"] < 0)])
    # How each part was matched, and its call.
    by = np.full(len(columns), UNMATCHED, np.int8)
    call = np.full(len(columns), UNMATCHED, np.int64)
    calls = 0
    for chosen, how, keys_of in (
        (has_number, MatchedBy.SEQUENCE, _by_sequence),
        (is_collective & ~has_number, MatchedBy.ORDER, _by_order),
        (is_transfer & (columns["peer"] >= 0), MatchedBy.P2P, _by_pair),
    ):
        rows = np.flatnonzero(chosen)
        if not len(rows):
            continue
        keys, is_sure = keys_of(columns.take(rows))
        rows = rows[is_sure]
        by[rows] = list(MatchedBy).index(how)
        call[rows] = calls + group_codes(*(key[is_sure] for key in keys))
        calls = int(call[rows].max(initial=calls - 1)) + 1
    return call, by


def _by_sequence(columns: Columns) -> tuple[Keys, Flags]:
    """Key by group, operation and number; parts with the same number (coalesced) also by their order."""
    group, op, sequence = columns.codes("group")[0], columns.codes("op")[0], columns["sequence"]
    nth_of_number = occurrence(group_codes(columns["rank"], group, op, sequence), columns["start_ns"])
    return (group, op, sequence, nth_of_number), np.ones(len(columns), bool)


def _by_order(columns: Columns) -> tuple[Keys, Flags]:
    """Key by group, operation and size, in order; size is ignored for operations whose members may differ in size."""
    group, op = columns.codes("group")[0], columns.codes("op")[0]
    largest = np.maximum(columns["in_bytes"], columns["out_bytes"])
    size = np.where(columns.matches("op", *_UNEVEN), 0, largest)
    return _ordered(columns, group_codes(group, op, size), columns["rank"])


def _by_pair(columns: Columns) -> tuple[Keys, Flags]:
    """Key by direction, in order; a batch that sends and receives is one call, so its pair has no direction."""
    group, rank, peer = columns.codes("group")[0], columns["rank"], columns["peer"]
    is_send, is_both = columns.matches("op", "send"), columns.matches("op", "send_recv")
    low, high = np.minimum(rank, peer), np.maximum(rank, peer)
    source = np.where(is_both, low, np.where(is_send, rank, peer))
    target = np.where(is_both, high, np.where(is_send, peer, rank))
    kind = group_codes(group, is_both.astype(np.int64), source, target)
    # Each end of a pair counts separately: a rank's sends independently of its receives.
    return _ordered(columns, kind, rank * 2 + is_send)


def _ordered(columns: Columns, kind: Ints, member: Ints) -> tuple[Keys, Flags]:
    """Key parts by kind and position, and mark the parts whose position is reliable.

    Positions count from 0 within a step if all members have equally many parts of the kind in every step:

            rank 0   step 3: a b   step 4: a b        keys (3, 0) (3, 1) (4, 0) (4, 1)
            rank 1   step 3: a b   step 4: a b        the same

    Otherwise they count from the end of the recording, with -2 as the step, because ranks more often start recording at
    different moments than they stop. Positions outside of all steps are reliable only if the members have equally many
    parts there.
    """
    step, start = columns["step"], columns["start_ns"]
    is_equal = _equally_many(kind, step, member)
    in_steps = _comparable_by_step(kind, step, is_equal)
    place_in_step = occurrence(group_codes(kind, step, member), start)
    place_from_end = occurrence_from_end(group_codes(kind, member), start)
    keys = (kind, np.where(in_steps, step, -2), np.where(in_steps, place_in_step, place_from_end))
    return keys, ~in_steps | is_equal


def _equally_many(kind: Ints, step: Ints, member: Ints) -> Flags:
    """Mark the parts for which all members in the step have equally many parts of the kind."""
    kind_of_member = group_codes(kind, step, member)
    parts_of_member = np.bincount(kind_of_member)[kind_of_member]
    in_step = group_codes(kind, step)
    return is_uniform(in_step, parts_of_member, int(in_step.max()) + 1)[in_step]


def _comparable_by_step(kind: Ints, step: Ints, is_equal: Flags) -> Flags:
    """Mark the parts of kinds that occur in some step and have equal counts on all members in every step."""
    kinds = int(kind.max()) + 1
    always_equal = per_code(kind, is_equal | (step < 0), np.logical_and, kinds)
    has_steps = per_code(kind, step >= 0, np.logical_or, kinds)
    return np.asarray((always_equal & has_steps)[kind])
