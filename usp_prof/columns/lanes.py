"""Lanes: the smallest number of rows that show overlapping ranges, and the row of each range."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import first_of_run, numbered, sorted_rows

_PASSES = 32
"""Number of lanes that are filled in vectorized passes; further lanes are filled one range at a time."""


def split_lanes(track: Ints, start: Ints, end: Ints) -> Ints:
    """Assign each range a lane within its track, so that ranges of one lane never overlap.

    Lane 0 takes the first range and always the next one that starts when it is free. The rest goes to lane 1 by the
    same rule, and so on. Ranges that touch do not overlap.
    """
    lanes = np.zeros(len(start), np.int64)
    left = np.lexsort((end, start, track))
    lane = 0
    while len(left) and lane < _PASSES:
        is_chosen = _greedy(track[left], start[left], end[left])
        lanes[left[is_chosen]] = lane
        left = left[~is_chosen]
        lane += 1
    if len(left):
        lanes[left] = lane + _first_free(track[left].tolist(), start[left].tolist(), end[left].tolist())
    return lanes


def _first_free(tracks: list[int], starts: list[int], ends: list[int]) -> Ints:
    """Assign each range the lowest free lane, one at a time; all sorted by track and start.

    O(n log n) for any number of overlaps: `busy` has (end, lane) of running ranges, `free` the lanes whose last range
    has ended.
    """
    lanes = np.zeros(len(starts), np.int64)
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    used, last = 0, None
    for row, (track, start, end) in enumerate(zip(tracks, starts, ends, strict=True)):
        if track != last:
            busy, free, used, last = [], [], 0, track
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        if not free:
            free.append(used)
            used += 1
        lanes[row] = heappop(free)
        heappush(busy, (end, int(lanes[row])))
    return lanes


def _greedy(track: Ints, start: Ints, end: Ints) -> Flags:
    """Mark the ranges of lane 0; all sorted by track and start."""
    count = len(start)
    # One time axis for all tracks: the times of each track are offset by `span` from the previous track.
    place = np.cumsum(first_of_run(track)) - 1
    first = start.min()
    span = np.int64(max(end.max(), start.max()) - first + 2)
    low = place * span + (start - first)
    high = place * span + (np.maximum(end, start) - first)
    # A range that starts after all earlier ones have ended is always taken: chains of ranges start there.
    latest = np.maximum.accumulate(high)
    chains: Flags = np.r_[True, low[1:] >= latest[:-1]]
    if chains.all():
        return chains
    # The next range of a lane is the first other one that starts at or after this one's end.
    following = np.maximum(np.searchsorted(low, high, side="left"), np.arange(count) + 1)
    following = np.r_[following, count]  # the last entry is the end, which follows itself
    marked = np.r_[chains, False]
    # Pointer doubling: in each pass `following` leads 1, 2, 4, ... ranges ahead, so log2(n) passes mark every chain.
    step = 1
    while step < count:
        reached = following[np.flatnonzero(marked)]
        marked[reached] = True
        following = following[following]
        step *= 2
    return np.asarray(marked[:-1], dtype=bool)


# Nesting: the enclosing range on each track, and the innermost range at a time.


_PART = 1 << 16
"""Rows per lookup, so that temporary arrays stay in the processor's cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Tracks:
    """Ranges of several tracks (threads), sorted by track and start, with depth and parent.

    An empty range belongs to the range that starts at its time, not to one that ends there. All lookups are binary
    searches over one key made of track and time, so hundreds of threads need no loop.
    """

    order: Ints
    """Original row of each sorted position."""
    depth: NDArray[np.int32]
    """Number of enclosing ranges, by original row; 32-bit integers save half the memory."""
    parent: NDArray[np.int32]
    """Row of the range that directly encloses it, by original row; -1 at the top."""
    _starts: Ints
    """Keys of the starts, by sorted position; a key is `track * span + 2 * time`, so that ends fit in between."""
    _ends: Ints
    """Keys of the ends, sorted."""
    _by_depth: Ints
    """`depth * (count + 1) + position` of every range, sorted: positions of one depth are contiguous."""
    _tracks: Ints
    """Distinct tracks; the index of a track is its number in the keys."""
    _span: int
    _first: int
    """Earliest start; keys count from it."""

    def innermost(self, track: Ints, at: Ints) -> Ints:
        """Return for each time on a track the row of the innermost range around it, or -1."""
        rows = np.full(len(at), -1, np.int64)
        if len(self.order):
            for begin in range(0, len(at), _PART):
                part = slice(begin, begin + _PART)
                rows[part] = self._innermost(track[part], at[part])
        return rows

    def _innermost(self, track: Ints, at: Ints) -> Ints:
        place = np.minimum(np.searchsorted(self._tracks, track), len(self._tracks) - 1)
        is_in_tile = (self._tracks[place] == track) & (at >= self._first) & (at < self._first + self._span // 2)
        if not is_in_tile.all():
            rows = np.full(len(at), -1, np.int64)
            rows[is_in_tile] = (
                self._innermost(track[is_in_tile], at[is_in_tile]) if is_in_tile.any() else rows[is_in_tile]
            )
            return rows
        key = place * self._span + 2 * (at - self._first)
        # Started ranges minus ended ranges are the open ones, nested in each other.
        before = np.searchsorted(self._starts, key, side="right")
        level = before - np.searchsorted(self._ends, key, side="right")
        # With `level` open ranges, the innermost is the last one that started at depth `level` - 1.
        wanted = (level - 1) * (len(self.order) + 1) + before
        begin_of_depth = wanted - before
        place_by_depth = np.searchsorted(self._by_depth, wanted, side="left") - 1
        key_of_range = self._by_depth[np.maximum(place_by_depth, 0)]
        inside = (level > 0) & (place_by_depth >= 0) & (key_of_range >= begin_of_depth)
        position = np.where(inside, key_of_range - begin_of_depth, 0)
        return np.where(inside, self.order[position], -1)


def nest(track: Ints, start: Ints, duration: Ints, *outer_first: Ints, rounded: bool = False) -> Tracks:
    """Nest ranges; `track` may contain any integers, durations are not negative.

    Of ranges with equal start and end, the one with the smallest keys `outer_first` encloses the others. The depth of a
    range is the number of ranges on its track that started before it and have not ended. Its parent is the last of them
    one level higher. If times are `rounded`, a range that reaches 1 ns into the next one ends before it.
    """
    count = len(start)
    tracks, place = numbered(track)
    first = int(start.min()) if count else 0
    span = 2 * (int((start + duration).max()) - first + 2) if count else 1
    if span * max(len(tracks), 1) >= 2**62:  # such a span is damage; nothing useful nests in it
        duration = np.minimum(duration, 0)
        start = np.clip(start, first, first + 2**40)
        span = 2**42
    # Times are doubled, so that an empty range ends half a unit after it starts, inside a range that starts there.
    low = place * span + 2 * (start - first)
    high = low + np.maximum(2 * duration, 1)
    order = sorted_rows(low, -high, *outer_first)
    starts, high = low[order], high[order]
    if rounded:
        _end_before_next(starts, high)
    ends = np.sort(high, kind="stable")
    del place, low, high
    level = np.maximum(np.arange(count) - np.searchsorted(ends, starts, side="right"), 0)
    rows_by_depth = _by_depth(level)
    by_depth = level[rows_by_depth] * (count + 1) + rows_by_depth
    above = np.searchsorted(by_depth, by_depth - (count + 1), side="left") - 1
    # The previous entry in that list is the parent, if it is one level higher and not the last of another level.
    has_parent = (above >= 0) & (level[rows_by_depth[above]] == level[rows_by_depth] - 1)
    depth, parent = np.empty(count, np.int32), np.empty(count, np.int32)
    depth[order] = level
    parent[order[rows_by_depth]] = np.where(has_parent, order[rows_by_depth[above]], -1)
    return Tracks(order, depth, parent, starts, ends, by_depth, tracks, span, first)


def _end_before_next(starts: Ints, ends: Ints) -> None:
    """Shorten ranges that reach 1 ns into the next one; starts and durations were rounded separately.

    Both are keys of `Tracks`, in the order of the starts. Otherwise the next range would be taken for a part of the
    first, and what is in it would be assigned to the first.
    """
    following = np.searchsorted(starts, ends - 2)
    row = np.minimum(following, len(starts) - 1)
    reaches = (starts[row] == ends - 2) & (following > np.arange(len(starts))) & (ends[row] > ends)
    ends[reaches] -= 2


def _by_depth(depth: Ints) -> Ints:
    """Sort positions by depth; narrow integers are sorted in one pass."""
    narrow = depth.astype(np.uint16) if int(depth.max(initial=0)) < 1 << 16 else depth
    return np.argsort(narrow, kind="stable")
