"""On many tracks at once: which range encloses which, and which one is innermost at a moment? For nesting ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


_PART = 1 << 16
"""Rows that are looked up at once: what is made on the way stays small and near."""


@dataclass(frozen=True, slots=True)
class Tracks:
    """Ranges of several tracks (threads), sorted by track and start, with their depth and parent.

    An empty range lies in the range that begins where it lies, not in the one that ends there. All lookups are
    binary searches over one key made of track and time, so that a trace with hundreds of threads costs no loop.
    """

    order: Ints
    """Sorted position to the row as given."""
    depth: Ints
    """By given row: how many ranges enclose it."""
    parent: Ints
    """By given row: the row of the range that directly encloses it, -1 at the top."""
    _starts: Ints
    _ends: Ints
    _by_depth: Ints
    _tracks: Ints
    _span: int
    _first: int

    def innermost(self, track: Ints, at: Ints) -> Ints:
        """Give for each moment on a track the row of the innermost range around it; -1 where there is none."""
        rows = np.full(len(at), -1, np.int64)
        if len(self.order):
            for begin in range(0, len(at), _PART):
                part = slice(begin, begin + _PART)
                rows[part] = self._innermost(track[part], at[part])
        return rows

    def _innermost(self, track: Ints, at: Ints) -> Ints:
        rows = np.full(len(at), -1, np.int64)
        place = np.searchsorted(self._tracks, track)
        place = np.minimum(place, len(self._tracks) - 1)
        known = (self._tracks[place] == track) & (at >= self._first) & (at < self._first + self._span // 2)
        key = place[known] * self._span + 2 * (at[known] - self._first)
        before = np.searchsorted(self._starts, key, side="right")
        level = before - np.searchsorted(self._ends, key, side="right")
        found = _last_at_depth(self._by_depth, len(self.order), level - 1, before)
        found[found >= 0] = self.order[found[found >= 0]]
        rows[known] = found
        return rows


def nest(track: Ints, start: Ints, duration: Ints) -> Tracks:
    """Nest ranges; `track` may hold any integers, durations are not negative."""
    count = len(start)
    tracks, place = np.unique(track, return_inverse=True)
    first = int(start.min()) if count else 0
    span = 2 * (int((start + duration).max()) - first + 2) if count else 1
    if span * max(len(tracks), 1) >= 2**62:  # times that wide are damage; nothing useful nests in them
        duration = np.minimum(duration, 0)
        start = np.clip(start, first, first + 2**40)
        span = 2**42
    low = place * span + 2 * (start - first)
    high = low + np.maximum(2 * duration, 1)
    order = np.lexsort((-high, low))
    starts, ends = low[order], np.sort(high)
    del place, low, high
    before = np.arange(count)
    depth = np.maximum(before - np.searchsorted(ends, starts, side="right"), 0)
    by_depth = np.sort(depth * (count + 1) + before)
    parent = _last_at_depth(by_depth, count, depth - 1, before)
    parent[parent >= 0] = order[parent[parent >= 0]]
    row_depth, row_parent = np.empty(count, np.int64), np.empty(count, np.int64)
    row_depth[order], row_parent[order] = depth, parent
    return Tracks(order, row_depth, row_parent, starts, ends, by_depth, tracks, span, first)


def _last_at_depth(by_depth: Ints, count: int, depth: Ints, before: Ints) -> Ints:
    """Give the last sorted position below `before` that has this depth; -1 without any."""
    out = np.full(len(depth), -1, np.int64)
    if not len(by_depth):
        return out
    for begin in range(0, len(depth), _PART):
        part = slice(begin, begin + _PART)
        place = np.searchsorted(by_depth, depth[part] * (count + 1) + before[part], side="left") - 1
        hit = by_depth[np.maximum(place, 0)]
        good = (depth[part] >= 0) & (place >= 0) & (hit // (count + 1) == depth[part])
        out[part] = np.where(good, hit % (count + 1), -1)
    return out
