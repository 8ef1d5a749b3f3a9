"""Which parts on different ranks are the same operation? Matched without clocks, so that clocks can be solved from it.

Recorded sequence numbers decide where a group has them. Without, parts of one group, operation and size are matched
in order: inside each step when all ranks saw equally many there, else counted from the end, since recording begins
at different moments more often than it ends so. Sends and receives pair by (source, destination, order).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.order import group_codes, numbered, occurrence, occurrence_from_end, per_code

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.columns.table import Columns
    from usp_prof.tables.table_set import TableSet

UNMATCHED = -1
_PAIRED = ("send", "recv", "send_recv")
_UNEVEN = ("all_to_all", "send_recv", "gather", "scatter", "broadcast", "reduce")


class MatchedBy(StrEnum):
    """How the parts of a call found each other."""

    SEQUENCE = "sequence"
    ORDER = "order"
    P2P = "p2p"


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """All ranks' parts in one list; `call` is -1 for a part whose group or peer is not known."""

    columns: Columns
    rank: NDArray[np.int64]
    part: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    call: NDArray[np.int64]
    by: NDArray[np.int64]
    """Position in `MatchedBy`; -1 when unmatched."""
    calls: int


def of(tables: TableSet) -> Parts:
    """Match the parts of a run, once; those of a predicted run as they were matched where they were recorded."""
    return tables.memo("matching", lambda: _matched(tables))


def _matched(tables: TableSet) -> Parts:
    columns = tables.together("collectives")
    return _match(columns) if tables.recorded is None else _matched_as(of(tables.recorded), columns)


def _matched_as(recorded: Parts, columns: Columns) -> Parts:
    """Match parts, of which there may be less here, as those of the same ranks and numbers are."""
    rank, part = columns["rank"], columns["part"]
    row = np.searchsorted(recorded.rank, rank) + part
    call, start = recorded.call[row], columns["start_ns"]
    known = call != UNMATCHED
    numbers, call[known] = numbered(call[known])
    return Parts(columns, rank, part, start, start + columns["dur_ns"], call, recorded.by[row], len(numbers))


def _match(columns: Columns) -> Parts:
    rank, start = columns["rank"], columns["start_ns"]
    named = ~columns.matches("group", "") & (columns["group_size"] != 1)
    # An exchange of a known group without a peer is an all-to-all, which runs by the kernel of sends.
    exchange = named & columns.matches("op", "send_recv") & (columns["peer"] < 0)
    paired = columns.matches("op", *_PAIRED) & ~exchange
    keys = np.full((len(columns), 7), 0, np.int64)
    by = np.full(len(columns), UNMATCHED, np.int64)
    numbered = _numbered(columns, named & ~paired)
    for rows, how, key in (
        (numbered, MatchedBy.SEQUENCE, _by_sequence),
        (named & ~paired & ~numbered, MatchedBy.ORDER, _by_order),
        (paired & (columns["peer"] >= 0), MatchedBy.P2P, _by_pair),
    ):
        index = np.flatnonzero(rows)
        if not len(index):
            continue
        found, matched = key(columns.take(index))
        keys[index, 1 : found.shape[1] + 1] = found
        keys[index, 0] = list(MatchedBy).index(how)
        by[index[matched]] = list(MatchedBy).index(how)
    call = np.full(len(columns), UNMATCHED, np.int64)
    known = by != UNMATCHED
    call[known] = group_codes(*keys[known].T) if known.any() else call[known]
    calls = int(call.max()) + 1 if len(call) else 0
    return Parts(columns, rank, columns["part"], start, start + columns["dur_ns"], call, by, max(calls, 0))


def _numbered(columns: Columns, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Keep the parts of the groups all of whose parts carry a sequence number."""
    group, names = columns.codes("group")
    bare = np.zeros(len(names) + 1, bool)
    bare[group[rows & (columns["sequence"] < 0)]] = True
    return np.asarray(rows & ~bare[group])


def _by_sequence(c: Columns) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Key by group, operation and number; several parts of one number (coalesced) by their order."""
    group, op = c.codes("group")[0], c.codes("op")[0]
    again = occurrence(group_codes(c["rank"], group, op, c["sequence"]), c["start_ns"])
    return np.stack([group, op, c["sequence"], again], axis=1), np.ones(len(c), bool)


def _by_order(c: Columns) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    group, op = c.codes("group")[0], c.codes("op")[0]
    size = np.where(c.matches("op", *_UNEVEN), 0, np.maximum(c["in_bytes"], c["out_bytes"]))
    return _ordered(c, group_codes(group, op, size))


def _by_pair(c: Columns) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Key by direction; a batch that sends and receives stands for both, so its pair has no direction."""
    group, rank, peer = c.codes("group")[0], c["rank"], c["peer"]
    sends, both = c.matches("op", "send"), c.matches("op", "send_recv")
    source = np.where(both, np.minimum(rank, peer), np.where(sends, rank, peer))
    target = np.where(both, np.maximum(rank, peer), np.where(sends, peer, rank))
    return _ordered(c, group_codes(group, both.astype(np.int64), source, target), side=sends.astype(np.int64))


def _ordered(
    c: Columns, kind: NDArray[np.int64], side: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Give the parts of a kind on each rank numbers: inside steps where these agree over ranks, else from the end."""
    member = c["rank"] if side is None else c["rank"] * 2 + side
    step = c["step"]
    in_step = group_codes(kind, step, member)
    tally = np.bincount(in_step)[in_step]
    cell = group_codes(kind, step)
    cells = int(cell.max()) + 1
    equal = (per_code(cell, tally, np.maximum, cells) == per_code(cell, tally, np.minimum, cells))[cell]
    kinds = int(kind.max()) + 1
    agree = per_code(kind, equal | (step < 0), np.minimum, kinds) & per_code(kind, step >= 0, np.maximum, kinds)
    stepped = agree[kind].astype(bool)
    place = np.where(
        stepped, occurrence(in_step, c["start_ns"]), occurrence_from_end(group_codes(kind, member), c["start_ns"])
    )
    return np.stack([kind, np.where(stepped, step, -2), place], axis=1), ~stepped | equal
