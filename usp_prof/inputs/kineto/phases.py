"""Begin and end events (phases B and E), joined into complete events: old traces write durations that way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from usp_prof.columns.arrow import coded, numbers_of

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


def join_begin_end(columns: dict[str, Any], rows: int) -> tuple[NDArray[np.bool_], int]:
    """Turn each B that has its E into an X with a duration; say which rows stay, and how many had no partner."""
    keep = np.ones(rows, bool)
    phase: pa.DictionaryArray = columns["phase"]
    known = phase.dictionary.to_pylist()
    if "B" not in known and "E" not in known:
        return keep, 0
    letters = numbers_of(phase.indices)
    begins = letters == (known.index("B") if "B" in known else -1)
    ends = letters == (known.index("E") if "E" in known else -1)
    marks = np.flatnonzero(begins | ends)
    process = numbers_of(columns["process"].indices)[marks].astype(np.int64)
    lane = process * (1 << 32) + numbers_of(columns["thread"].indices)[marks]
    order = np.lexsort((marks, columns["start_ns"][marks], lane))
    marks, lane, opens = marks[order], lane[order], begins[marks[order]]
    first, last = _pairs(lane, opens)
    opened, closed = marks[first], marks[last]
    starts = columns["start_ns"]
    columns["dur_ns"][opened] = starts[closed] - starts[opened]
    values = [*known, "X"] if "X" not in known else known
    letters = letters.copy()
    letters[opened] = values.index("X")
    columns["phase"] = coded(letters, values)
    keep[closed] = False
    lonely_ends = np.flatnonzero(ends & keep)
    keep[lonely_ends] = False
    return keep, len(marks) - 2 * len(opened)


def _pairs(lane: NDArray[np.int64], opens: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pair within each lane like brackets: a begin and the next end at the same depth."""
    change = np.where(opens, 1, -1)
    depth = np.cumsum(change)
    level = np.where(opens, depth, depth + 1)
    first_of_lane = np.flatnonzero(np.r_[True, lane[1:] != lane[:-1]])
    before = np.r_[0, depth][first_of_lane]
    level = level - np.repeat(before, np.diff(np.r_[first_of_lane, len(lane)]))
    order = np.lexsort((np.arange(len(lane)), level, lane))
    a, b = order[:-1], order[1:]
    match = (lane[a] == lane[b]) & (level[a] == level[b]) & opens[a] & ~opens[b]
    return a[match], b[match]
