"""Shared calls: the calls that two ranks ran together, before steps and clocks are known.

Calls are matched by sequence number if both ranks have it. Otherwise they are matched in order, shifted so that their
ends are closest, since members leave a collective together. Sends and receives are used only if no collective connects
the two ranks.
"""

from __future__ import annotations

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import group_codes, rows_by_code, sorted_by, stacked_codes
from usp_prof.columns.table import Columns
from usp_prof.tables.communication.posts import P2P
from usp_prof.tables.matching.same_calls import UNMATCHED

_CLOSE = 0.25
"""Maximum distance of call ends, as a share of the period, at which ends identify the same call."""
_SHIFTS = 64
"""Maximum shift between the two recordings, in calls, beyond the difference in call counts."""


def shared_calls(first: Columns, first_rank: int, other: Columns, other_rank: int, period_ns: int) -> tuple[Ints, Ints]:
    """Return matching rows of both ranks' `collectives`; sends and receives are used only if no collective matches.

    If one of the ranks names no group at all, all calls are matched by order alone.
    """
    rows = _collectives(first, other, period_ns)
    if not len(rows[0]):
        rows = _transfers(first, first_rank, other, other_rank, period_ns)
    if not len(rows[0]) and any(columns.matches("group", "").all() for columns in (first, other)):
        first_rows, other_rows = (np.argsort(columns["start_ns"], kind="stable") for columns in (first, other))
        if len(first_rows) and len(other_rows):
            return _in_order(first, first_rows, other, other_rows, period_ns)
    return rows


def _collectives(first: Columns, other: Columns, period_ns: int) -> tuple[Ints, Ints]:
    """Match the calls of groups that both ranks know, and of unnamed groups with the same operations."""
    first_by_kind, other_by_kind = _rows_by_kind(first, other)
    pairs: list[tuple[Ints, Ints]] = []
    for kind, first_rows in first_by_kind.items():
        if kind not in other_by_kind:
            continue
        other_rows = other_by_kind[kind]
        first_number, other_number = first["sequence"][first_rows], other["sequence"][other_rows]
        if (first_number >= 0).all() and (other_number >= 0).all():
            _, first_place, other_place = np.intersect1d(first_number, other_number, return_indices=True)
            pairs.append((first_rows[first_place], other_rows[other_place]))
        else:
            pairs.append(_in_order(first, first_rows, other, other_rows, period_ns))
    return _concatenated(pairs)


def _rows_by_kind(first: Columns, other: Columns) -> tuple[dict[int, Ints], dict[int, Ints]]:
    """Return both ranks' rows of each kind of collective by start time; kinds are in order of appearance in `first`.

    A kind is a group and an operation, plus the size if no sequence numbers are recorded.
    """
    ranks = (first, other)
    # One entry per row of both ranks in all three arrays; the first rank's rows come first.
    group, op = (stacked_codes(columns.codes(name) for columns in ranks)[0] for name in ("group", "op"))
    size = np.concatenate([_size_without_number(columns) for columns in ranks])
    is_collective = np.concatenate([_is_collective(columns) for columns in ranks])
    kind = np.where(is_collective, group_codes(group, op, size), UNMATCHED)
    first_by_kind, other_by_kind = rows_by_code(kind[: len(first)]), rows_by_code(kind[len(first) :])
    kinds = sorted(first_by_kind.keys() - {UNMATCHED}, key=lambda code: int(first_by_kind[code][0]))
    first_sorted = {code: sorted_by(first["start_ns"], first_by_kind[code]) for code in kinds}
    return first_sorted, {code: sorted_by(other["start_ns"], rows) for code, rows in other_by_kind.items()}


def _size_without_number(columns: Columns) -> Ints:
    """Return the bytes of each part without a sequence number, which distinguish it from others; 0 if it has one."""
    size = np.maximum(columns["in_bytes"], columns["out_bytes"])
    return np.where(columns["sequence"] >= 0, 0, size)


def _is_collective(columns: Columns) -> Flags:
    """Mark collectives of several ranks; a `send_recv` without group and peer is an all-to-all."""
    nameless = columns.matches("op", "send_recv") & columns.matches("group", "") & (columns["peer"] < 0)
    return np.asarray((~columns.matches("op", *P2P) | nameless) & (columns["group_size"] != 1))


def _transfers(first: Columns, first_rank: int, other: Columns, other_rank: int, period_ns: int) -> tuple[Ints, Ints]:
    """Match the sends of each rank with the receives of the other, in order."""
    pairs = []
    for op, other_op in (("send", "recv"), ("recv", "send"), ("send_recv", "send_recv")):
        first_rows = np.flatnonzero(first.matches("op", op) & (first["peer"] == other_rank))
        other_rows = np.flatnonzero(other.matches("op", other_op) & (other["peer"] == first_rank))
        if len(first_rows) and len(other_rows):
            pairs.append(_in_order(first, first_rows, other, other_rows, period_ns))
    return _concatenated(pairs)


def _in_order(first: Columns, first_rows: Ints, other: Columns, other_rows: Ints, period_ns: int) -> tuple[Ints, Ints]:
    """Match two lists of calls one to one, with the second shifted so that the ends are closest.

    A rank that started recording two calls earlier has two extra calls at the beginning: with a shift of 2, its call 2
    is the other's call 0. If no shift brings the ends close together, the last calls of both are matched.
    """
    first_end = first["start_ns"][first_rows] + first["dur_ns"][first_rows]
    other_end = other["start_ns"][other_rows] + other["dur_ns"][other_rows]
    from_end = len(first_rows) - len(other_rows)  # shift that matches the last calls of both
    reach = abs(from_end) + min(_SHIFTS, min(len(first_rows), len(other_rows)) // 2)
    # The first of several equally good shifts is used: the one closest to `from_end`.
    shifts = sorted(range(-reach, reach + 1), key=lambda shift: (abs(shift - from_end), shift))
    distances = [_distance(first_end, other_end, shift) for shift in shifts]
    best = int(np.argmin(distances))
    shift = shifts[best] if distances[best] <= _CLOSE * period_ns else from_end
    first_part, other_part = _shifted(len(first_rows), len(other_rows), shift)
    return first_rows[first_part], other_rows[other_part]


def _shifted(first_count: int, other_count: int, shift: int) -> tuple[slice, slice]:
    """Return the slices of two lists that overlap if item i of the first is item i - shift of the second."""
    first = max(shift, 0)
    count = max(min(first_count, other_count + shift) - first, 0)
    return slice(first, first + count), slice(first - shift, first - shift + count)


def _distance(first_end: Ints, other_end: Ints, shift: int) -> float:
    """Return the median distance of the ends with this shift; infinite if no calls overlap."""
    first_part, other_part = _shifted(len(first_end), len(other_end), shift)
    distance_ns = np.abs(first_end[first_part] - other_end[other_part])
    return float(np.median(distance_ns)) if len(distance_ns) else float("inf")


def _concatenated(pairs: list[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """Concatenate the matched rows of several kinds."""
    nothing = np.zeros(0, np.int64)
    first_rows = np.concatenate([nothing, *(rows for rows, _ in pairs)])
    return first_rows, np.concatenate([nothing, *(rows for _, rows in pairs)])
