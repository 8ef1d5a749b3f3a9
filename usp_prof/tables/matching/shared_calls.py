"""Shared calls: the calls that two ranks ran together, before steps and clocks are known.

Calls are matched by sequence number where both ranks carry it, else in order, shifted so that their ends lie closest,
since members leave a collective together. Sends and receives are asked only where no collective connects the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import group_codes, rows_by_code, sorted_by, stacked_codes
from usp_prof.tables.communication.posts import P2P
from usp_prof.tables.matching.same_calls import UNMATCHED

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.columns.table import Columns


_CLOSE = 0.25
"""Share of the period by which ends of calls may differ for clocks to tell which calls are the same."""
_SHIFTS = 64
"""Calls by which one rank's recording may begin or end apart from the other's, beyond the difference in number."""


def shared_calls(one: Columns, one_rank: int, other: Columns, other_rank: int, period_ns: int) -> tuple[Ints, Ints]:
    """Return the rows of both ranks' `collectives` that are the same calls; sends and receives only without others.

    Where one of the ranks names no group at all, nothing but the order of its calls is known: all are taken together.
    """
    rows = _collectives(one, other, period_ns)
    if not len(rows[0]):
        rows = _transfers(one, one_rank, other, other_rank, period_ns)
    if not len(rows[0]) and any(columns.matches("group", "").all() for columns in (one, other)):
        one_rows, other_rows = (np.argsort(columns["start_ns"], kind="stable") for columns in (one, other))
        if len(one_rows) and len(other_rows):
            return _in_order(one, one_rows, other, other_rows, period_ns)
    return rows


def _collectives(one: Columns, other: Columns, period_ns: int) -> tuple[Ints, Ints]:
    """Match calls of groups that both ranks know, and of no known group, where all ranks run the same operations."""
    one_by_kind, other_by_kind = _rows_by_kind(one, other)
    pairs: list[tuple[Ints, Ints]] = []
    for kind, one_rows in one_by_kind.items():
        if kind not in other_by_kind:
            continue
        other_rows = other_by_kind[kind]
        one_number, other_number = one["sequence"][one_rows], other["sequence"][other_rows]
        if (one_number >= 0).all() and (other_number >= 0).all():
            _, one_place, other_place = np.intersect1d(one_number, other_number, return_indices=True)
            pairs.append((one_rows[one_place], other_rows[other_place]))
        else:
            pairs.append(_in_order(one, one_rows, other, other_rows, period_ns))
    return _joined(pairs)


def _rows_by_kind(one: Columns, other: Columns) -> tuple[dict[int, Ints], dict[int, Ints]]:
    """List both ranks' rows of each kind of collective, in order of start: the kind that comes first in `one` first.

    A kind is a group and an operation, and a size where no numbers are recorded.
    """
    ranks = (one, other)
    # All three: one entry a row of both ranks, the first rank's before the other's.
    group, op = (stacked_codes(columns.codes(name) for columns in ranks)[0] for name in ("group", "op"))
    size = np.concatenate([_size_without_number(columns) for columns in ranks])
    is_collective = np.concatenate([_is_collective(columns) for columns in ranks])
    kind = np.where(is_collective, group_codes(group, op, size), UNMATCHED)
    one_by_kind, other_by_kind = rows_by_code(kind[: len(one)]), rows_by_code(kind[len(one) :])
    kinds = sorted(one_by_kind.keys() - {UNMATCHED}, key=lambda code: int(one_by_kind[code][0]))
    one_sorted = {code: sorted_by(one["start_ns"], one_by_kind[code]) for code in kinds}
    return one_sorted, {code: sorted_by(other["start_ns"], rows) for code, rows in other_by_kind.items()}


def _size_without_number(columns: Columns) -> Ints:
    """Return the bytes of each part that carries no sequence number, by which it is told from others; else 0."""
    size = np.maximum(columns["in_bytes"], columns["out_bytes"])
    return np.where(columns["sequence"] >= 0, 0, size)


def _is_collective(columns: Columns) -> Flags:
    """Mark collectives of several ranks; an all-to-all without a known group and peer runs by the kernel of sends."""
    nameless = columns.matches("op", "send_recv") & columns.matches("group", "") & (columns["peer"] < 0)
    return np.asarray((~columns.matches("op", *P2P) | nameless) & (columns["group_size"] != 1))


def _transfers(one: Columns, one_rank: int, other: Columns, other_rank: int, period_ns: int) -> tuple[Ints, Ints]:
    """Match the sends of each rank with the receives of the other, in order."""
    pairs = []
    for op, other_op in (("send", "recv"), ("recv", "send"), ("send_recv", "send_recv")):
        one_rows = np.flatnonzero(one.matches("op", op) & (one["peer"] == other_rank))
        other_rows = np.flatnonzero(other.matches("op", other_op) & (other["peer"] == one_rank))
        if len(one_rows) and len(other_rows):
            pairs.append(_in_order(one, one_rows, other, other_rows, period_ns))
    return _joined(pairs)


def _in_order(one: Columns, one_rows: Ints, other: Columns, other_rows: Ints, period_ns: int) -> tuple[Ints, Ints]:
    """Match two lists of calls one to one, the second shifted by the number of calls at which ends lie closest.

    A rank that began to record two calls earlier has two calls more at its begin: with a shift of 2, its call 2 is the
    other's call 0. Where no shift brings the ends close, the last calls of both are taken for the same.
    """
    one_end = one["start_ns"][one_rows] + one["dur_ns"][one_rows]
    other_end = other["start_ns"][other_rows] + other["dur_ns"][other_rows]
    from_end = len(one_rows) - len(other_rows)  # the shift with which the last calls of both are the same
    reach = abs(from_end) + min(_SHIFTS, min(len(one_rows), len(other_rows)) // 2)
    # Of shifts that are equally good the first wins: the one closest to `from_end`.
    shifts = sorted(range(-reach, reach + 1), key=lambda shift: (abs(shift - from_end), shift))
    distances = [_distance(one_end, other_end, shift) for shift in shifts]
    best = int(np.argmin(distances))
    shift = shifts[best] if distances[best] <= _CLOSE * period_ns else from_end
    one_part, other_part = _shifted(len(one_rows), len(other_rows), shift)
    return one_rows[one_part], other_rows[other_part]


def _shifted(one_count: int, other_count: int, shift: int) -> tuple[slice, slice]:
    """Return the parts of two lists that overlap if item i of one is item i - shift of the other."""
    first = max(shift, 0)
    count = max(min(one_count, other_count + shift) - first, 0)
    return slice(first, first + count), slice(first - shift, first - shift + count)


def _distance(one_end: Ints, other_end: Ints, shift: int) -> float:
    """Return the median distance of ends with this shift; infinite where no calls lie beside each other."""
    one_part, other_part = _shifted(len(one_end), len(other_end), shift)
    apart = np.abs(one_end[one_part] - other_end[other_part])
    return float(np.median(apart)) if len(apart) else float("inf")


def _joined(pairs: list[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """Put the matched rows of several kinds behind each other."""
    nothing = np.zeros(0, np.int64)
    one_rows = np.concatenate([nothing, *(rows for rows, _ in pairs)])
    return one_rows, np.concatenate([nothing, *(rows for _, rows in pairs)])
