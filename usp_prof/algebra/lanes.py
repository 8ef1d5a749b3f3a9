"""How many lanes do overlapping ranges need, and which range goes where?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


def split_lanes(track: Ints, start: Ints, end: Ints) -> Ints:
    """Give each range a lane within its track so that ranges of one lane never overlap.

    Lane 0 takes the first range and always the next one that begins when it is free; what is left goes to lane 1 by
    the same rule, and so on. Ranges that touch do not overlap.
    """
    lanes = np.zeros(len(start), np.int64)
    left = np.lexsort((end, start, track))
    lane = 0
    while len(left):
        taken = _greedy(track[left], start[left], end[left])
        lanes[left[taken]] = lane
        left = left[~taken]
        lane += 1
    return lanes


def _greedy(track: Ints, start: Ints, end: Ints) -> NDArray[np.bool_]:
    """Mark the ranges that lane 0 takes; all sorted by track and start."""
    count = len(start)
    border = np.r_[True, track[1:] != track[:-1]]
    place = np.cumsum(border) - 1
    first = start.min()
    span = np.int64(max(end.max(), start.max()) - first + 2)
    low, high = place * span + (start - first), place * span + (np.maximum(end, start) - first)
    latest = np.maximum.accumulate(high)
    chains: NDArray[np.bool_] = np.r_[True, low[1:] >= latest[:-1]]
    if chains.all():
        return chains
    # The next range of a lane is the first that begins at or after this one's end and is not this one.
    following = np.maximum(np.searchsorted(low, high, side="left"), np.arange(count) + 1)
    following = np.r_[following, count]
    marked = np.r_[chains, False]
    step = 1
    while step < count:  # reach 1, 2, 4, ... ranges ahead: the chain in log2(n) passes
        reached = following[np.flatnonzero(marked)]
        marked[reached] = True
        following = following[following]
        step *= 2
    return np.asarray(marked[:-1], dtype=bool)
