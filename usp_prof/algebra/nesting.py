"""Which interval encloses which? Innermost enclosing interval of points and of intervals, for one thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

OUTSIDE = -1


def innermost(start: ArrayLike, end: ArrayLike, points: ArrayLike) -> NDArray[np.int64]:
    """Give for each point the index of the innermost interval that holds it; -1 outside all of them.

    The intervals must be properly nested or disjoint, as the ranges of one thread are. The innermost is then the last
    begun among those not ended, which a walk along parents finds in as many vector steps as the nesting is deep.
    """
    low, high = np.asarray(start, np.int64), np.asarray(end, np.int64)
    where = np.asarray(points, np.int64)
    if not len(low):
        return np.full(len(where), OUTSIDE, np.int64)
    order = np.lexsort((-high, low))
    ordered_high = high[order]
    parent = _parents(low[order], ordered_high)
    found = np.searchsorted(low[order], where, side="right") - 1
    return _climb(found, where, ordered_high, parent, order)


def parents(start: ArrayLike, end: ArrayLike) -> NDArray[np.int64]:
    """Give for each interval the index of the one that directly encloses it; -1 at the top."""
    low, high = np.asarray(start, np.int64), np.asarray(end, np.int64)
    order = np.lexsort((-high, low))
    above = _parents(low[order], high[order])
    result = np.full(len(low), OUTSIDE, np.int64)
    result[order] = np.where(above == OUTSIDE, OUTSIDE, order[above]) if len(low) else above
    return result


def _parents(low: NDArray[np.int64], high: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find parents of sorted intervals: climb from the one before until one has not ended."""
    above = np.arange(len(low), dtype=np.int64) - 1
    # Each pass lifts every unresolved row to its candidate's candidate; a candidate that is itself unresolved is
    # lifted by its own rule first, so rows resolve from left to right and the passes stay as few as the depth.
    open_rows = np.arange(len(low))
    while len(open_rows):
        candidate = above[open_rows]
        ended = (candidate != OUTSIDE) & (high[candidate] < high[open_rows])
        ended |= (candidate != OUTSIDE) & (high[candidate] <= low[open_rows])
        open_rows = open_rows[ended]
        above[open_rows] = above[above[open_rows]]
    return above


def _climb(
    found: NDArray[np.int64],
    where: NDArray[np.int64],
    high: NDArray[np.int64],
    parent: NDArray[np.int64],
    order: NDArray[np.int64],
) -> NDArray[np.int64]:
    current = found.copy()
    rows = np.flatnonzero((current != OUTSIDE) & (high[current] <= where))
    while len(rows):
        current[rows] = parent[current[rows]]
        rows = rows[(current[rows] != OUTSIDE) & (high[current[rows]] <= where[rows])]
    return np.where(current == OUTSIDE, OUTSIDE, order[current])
