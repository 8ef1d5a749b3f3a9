"""Matching: parts on different ranks that are the same operation, without clocks, which are solved from the matches.

Recorded sequence numbers decide where a group has them. Otherwise parts of one group, operation and size are matched
in order: inside each step if all ranks have equally many there, else counted from the end, since ranks begin recording
at different moments more often than they end. Sends and receives pair by (source, destination, order).

Before steps are known, two ranks are matched by sequence number, else in order, shifted so that the ends of the calls
lie closest (members leave a collective together).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import group_codes, numbered, occurrence, occurrence_from_end, per_code, rows_by_code
from usp_prof.tables.communication.posts import P2P

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.columns.table import Columns
    from usp_prof.tables.table_set import TableSet

    Ints = NDArray[np.int64]
    Keys = tuple[Ints, ...]
    """Columns that are alike in all parts of a call, and in no two calls."""


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
    by: NDArray[np.int8]
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
    numbered = _numbered(columns, named & ~paired)
    # By part: how it was matched, and its call. Calls are numbered kind by kind, and by their keys within each.
    by = np.full(len(columns), UNMATCHED, np.int8)
    call = np.full(len(columns), UNMATCHED, np.int64)
    calls = 0
    for rows, how, key in (
        (numbered, MatchedBy.SEQUENCE, _by_sequence),
        (named & ~paired & ~numbered, MatchedBy.ORDER, _by_order),
        (paired & (columns["peer"] >= 0), MatchedBy.P2P, _by_pair),
    ):
        index = np.flatnonzero(rows)
        if not len(index):
            continue
        found, matched = key(columns.take(index))
        index = index[matched]
        by[index] = list(MatchedBy).index(how)
        call[index] = calls + group_codes(*(each[matched] for each in found))
        calls = int(call[index].max(initial=calls - 1)) + 1
    return Parts(columns, rank, columns["part"], start, start + columns["dur_ns"], call, by, calls)


def _numbered(columns: Columns, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Keep the parts of the groups all of whose parts carry a sequence number."""
    group, names = columns.codes("group")
    bare = np.zeros(len(names) + 1, bool)
    bare[group[rows & (columns["sequence"] < 0)]] = True
    return np.asarray(rows & ~bare[group])


def _by_sequence(c: Columns) -> tuple[Keys, NDArray[np.bool_]]:
    """Key by group, operation and number; several parts of one number (coalesced) by their order."""
    group, op = c.codes("group")[0], c.codes("op")[0]
    again = occurrence(group_codes(c["rank"], group, op, c["sequence"]), c["start_ns"])
    return (group, op, c["sequence"], again), np.ones(len(c), bool)


def _by_order(c: Columns) -> tuple[Keys, NDArray[np.bool_]]:
    """Key by group, operation and size, in order; members of some operations carry different sizes."""
    group, op = c.codes("group")[0], c.codes("op")[0]
    size = np.where(c.matches("op", *_UNEVEN), 0, np.maximum(c["in_bytes"], c["out_bytes"]))
    return _ordered(c, group_codes(group, op, size), c["rank"])


def _by_pair(c: Columns) -> tuple[Keys, NDArray[np.bool_]]:
    """Key by direction, in order; a batch that sends and receives stands for both, so its pair has no direction."""
    group, rank, peer = c.codes("group")[0], c["rank"], c["peer"]
    is_send, is_both = c.matches("op", "send"), c.matches("op", "send_recv")
    low, high = np.minimum(rank, peer), np.maximum(rank, peer)
    source = np.where(is_both, low, np.where(is_send, rank, peer))
    target = np.where(is_both, high, np.where(is_send, peer, rank))
    kind = group_codes(group, is_both.astype(np.int64), source, target)
    # Each end of a pair counts its own: a rank's sends apart from its receives.
    return _ordered(c, kind, c["rank"] * 2 + is_send)


def _ordered(c: Columns, kind: Ints, member: Ints) -> tuple[Keys, NDArray[np.bool_]]:
    """Key the parts of a kind by their places in order, and say which of them have a place that can be trusted.

    Places count from 0 inside a step where all members have equally many parts of the kind in every step:

        rank 0   step 3: a b   step 4: a b        keys (3, 0) (3, 1) (4, 0) (4, 1)
        rank 1   step 3: a b   step 4: a b        the same

    Else they count from the end of the recording, with -2 for the step: ranks begin to record at different moments more
    often than they end. Parts outside of all steps can be trusted only where members have as many of them.
    """
    step = c["step"]
    # Parts of each kind, step and member; then, whether all members have as many in that step.
    in_step = group_codes(kind, step, member)
    tally = np.bincount(in_step)[in_step]
    cell = group_codes(kind, step)
    cells = int(cell.max()) + 1
    fewest, most = (per_code(cell, tally, how, cells) for how in (np.minimum, np.maximum))
    is_equal = (fewest == most)[cell]
    kinds = int(kind.max()) + 1
    agrees = per_code(kind, is_equal | (step < 0), np.minimum, kinds)
    has_steps = per_code(kind, step >= 0, np.maximum, kinds)
    by_step = (agrees & has_steps)[kind].astype(bool)
    from_start = occurrence(in_step, c["start_ns"])
    from_end = occurrence_from_end(group_codes(kind, member), c["start_ns"])
    place = np.where(by_step, from_start, from_end)
    return (kind, np.where(by_step, step, -2), place), ~by_step | is_equal


_CLOSE = 0.25
"""Share of the period by which ends of calls may differ for clocks to tell which calls are the same."""
_SHIFTS = 64
"""Calls by which one rank's recording may begin or end apart from the other's, beyond the difference in number."""


def shared_calls(one: Columns, one_rank: int, other: Columns, other_rank: int, period_ns: int) -> tuple[Ints, Ints]:
    """Give the rows of both ranks' `collectives` that are the same calls; sends and receives only without others.

    Where one of the ranks names no group at all, nothing but the order of its calls is known: all are taken together.
    """
    rows = _collectives(one, other, period_ns)
    if not len(rows[0]):
        rows = _transfers(one, one_rank, other, other_rank, period_ns)
    if not len(rows[0]) and any(columns.matches("group", "").all() for columns in (one, other)):
        mine, theirs = (np.argsort(columns["start_ns"], kind="stable") for columns in (one, other))
        rows = _in_order(one, mine, other, theirs, period_ns) if len(mine) and len(theirs) else rows
    return rows


def _collectives(one: Columns, other: Columns, period_ns: int) -> tuple[Ints, Ints]:
    """Match calls of groups that both ranks know, and of no known group, where all ranks run the same operations."""
    rows_of_kind = _rows_by_kind(one, other)
    found: list[tuple[Ints, Ints]] = []
    for kind in (kind for kind in rows_of_kind[0] if kind in rows_of_kind[1]):
        mine, theirs = rows_of_kind[0][kind], rows_of_kind[1][kind]
        numbers, others = one["sequence"][mine], other["sequence"][theirs]
        if (numbers >= 0).all() and (others >= 0).all():
            _, a, b = np.intersect1d(numbers, others, return_indices=True)
            found.append((mine[a], theirs[b]))
        else:
            found.append(_in_order(one, mine, other, theirs, period_ns))
    return _joined(found)


def _rows_by_kind(one: Columns, other: Columns) -> tuple[dict[int, Ints], dict[int, Ints]]:
    """List both ranks' rows of each kind of collective, in order of start: the kind that comes first in `one` first.

    A kind is a group and an operation, and a size where no numbers are recorded.
    """
    ranks = (one, other)
    size = [np.where(each["sequence"] >= 0, 0, np.maximum(each["in_bytes"], each["out_bytes"])) for each in ranks]
    kind = group_codes(_common_codes(one, other, "group"), _common_codes(one, other, "op"), np.concatenate(size))
    kind = np.where(np.concatenate([_is_collective(each) for each in ranks]), kind, UNMATCHED)
    rows = [rows_by_code(kind[: len(one)]), rows_by_code(kind[len(one) :])]
    in_order = sorted(rows[0].keys() - {UNMATCHED}, key=lambda code: int(rows[0][code][0]))
    by_start = [
        {code: own[np.argsort(each["start_ns"][own], kind="stable")] for code, own in found.items()}
        for each, found in zip(ranks, rows, strict=True)
    ]
    return {code: by_start[0][code] for code in in_order}, by_start[1]


def _is_collective(columns: Columns) -> NDArray[np.bool_]:
    """Mark collectives of several ranks; an all-to-all without a known group and peer runs by the kernel of sends."""
    nameless = columns.matches("op", "send_recv") & columns.matches("group", "") & (columns["peer"] < 0)
    return np.asarray((~columns.matches("op", *P2P) | nameless) & (columns["group_size"] != 1))


def _common_codes(one: Columns, other: Columns, name: str) -> Ints:
    """Give a text column of both ranks, one below the other, in codes that mean the same in both."""
    coded = [one.codes(name), other.codes(name)]
    place = {text: code for code, text in enumerate(dict.fromkeys(text for _, texts in coded for text in texts))}
    return np.concatenate([np.array([place[text] for text in texts] or [0], np.int64)[codes] for codes, texts in coded])


def _transfers(one: Columns, one_rank: int, other: Columns, other_rank: int, period_ns: int) -> tuple[Ints, Ints]:
    """Match the sends of each rank with the receives of the other, in order."""
    found = []
    for sends, receives in (("send", "recv"), ("recv", "send"), ("send_recv", "send_recv")):
        mine = np.flatnonzero(one.matches("op", sends) & (one["peer"] == other_rank))
        theirs = np.flatnonzero(other.matches("op", receives) & (other["peer"] == one_rank))
        if len(mine) and len(theirs):
            found.append(_in_order(one, mine, other, theirs, period_ns))
    return _joined(found)


def _in_order(one: Columns, mine: Ints, other: Columns, theirs: Ints, period_ns: int) -> tuple[Ints, Ints]:
    """Match two lists of calls one to one, the second shifted by the number of calls at which ends lie closest."""
    ends = one["start_ns"][mine] + one["dur_ns"][mine]
    other_ends = other["start_ns"][theirs] + other["dur_ns"][theirs]
    apart = len(mine) - len(theirs)
    reach = abs(apart) + min(_SHIFTS, min(len(mine), len(theirs)) // 2)
    shifts = sorted(range(-reach, reach + 1), key=lambda shift: (abs(shift - apart), shift))  # first: from the end
    distances = [_distance(ends, other_ends, shift) for shift in shifts]
    best = int(np.argmin(distances))
    shift = shifts[best] if distances[best] <= _CLOSE * period_ns else apart
    first = max(shift, 0)
    count = min(len(mine), len(theirs) + shift) - first
    return mine[first : first + count], theirs[first - shift : first - shift + count]


def _distance(ends: Ints, other_ends: Ints, shift: int) -> float:
    """Give the median distance of ends when call i of the first is call i - shift of the second."""
    first = max(shift, 0)
    count = min(len(ends), len(other_ends) + shift) - first
    if count <= 0:
        return float("inf")
    return float(np.median(np.abs(ends[first : first + count] - other_ends[first - shift : first - shift + count])))


def _joined(found: list[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    nothing = np.zeros(0, np.int64)
    return (
        np.concatenate([nothing, *(rows for rows, _ in found)]),
        np.concatenate([nothing, *(rows for _, rows in found)]),
    )
