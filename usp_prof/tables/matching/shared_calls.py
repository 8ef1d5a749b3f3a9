"""Calls that two ranks share: which part on one rank is the same operation as which part on the other.

Matched before steps are known, so steps cannot help: by recorded sequence numbers, else in order, shifted so that the
ends of the calls (members leave a collective together) lie closest; counted from the end where clocks say nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.order import rows_by_code
from usp_prof.tables.communication.posts import P2P

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.columns.table import Columns

    Ints = NDArray[np.int64]

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
    keys: dict[tuple[str, str, int], int] = {}
    rows_of_kind = [_rows_by_kind(columns, keys) for columns in (one, other)]
    found: list[tuple[Ints, Ints]] = []
    for kind in sorted(set(rows_of_kind[0]) & set(rows_of_kind[1])):
        mine, theirs = rows_of_kind[0][kind], rows_of_kind[1][kind]
        numbers, others = one["sequence"][mine], other["sequence"][theirs]
        if (numbers >= 0).all() and (others >= 0).all():
            _, a, b = np.intersect1d(numbers, others, return_indices=True)
            found.append((mine[a], theirs[b]))
        else:
            found.append(_in_order(one, mine, other, theirs, period_ns))
    return _joined(found)


def _rows_by_kind(columns: Columns, keys: dict[tuple[str, str, int], int]) -> dict[int, Ints]:
    """List the rows of each kind of collective, in order: group, operation, and size where no numbers are recorded."""
    group_code, groups = columns.codes("group")
    op_code, ops = columns.codes("op")
    size = np.where(columns["sequence"] >= 0, 0, np.maximum(columns["in_bytes"], columns["out_bytes"]))
    # An all-to-all runs by the kernel of sends; of no known group and peer, it is matched like a collective.
    nameless = columns.matches("op", "send_recv") & columns.matches("group", "") & (columns["peer"] < 0)
    taken = (~columns.matches("op", *P2P) | nameless) & (columns["group_size"] != 1)
    kind = np.array(
        [
            keys.setdefault((groups[group], ops[op], length), len(keys)) if used else -1
            for group, op, length, used in zip(
                group_code.tolist(), op_code.tolist(), size.tolist(), taken.tolist(), strict=True
            )
        ],
        np.int64,
    )
    rows = rows_by_code(kind)
    rows.pop(-1, None)
    return {code: own[np.argsort(columns["start_ns"][own], kind="stable")] for code, own in rows.items()}


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
