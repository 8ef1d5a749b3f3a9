"""How long, and where? Sets of half-open time intervals on int64 nanoseconds: union, intersection, difference, cover.

`Intervals` is in normal form: sorted, disjoint, not touching, none of them empty. Every operation is a sweep over
sorted arrays; nothing loops over intervals, and all lengths are exact integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from usp_prof.algebra.order import distinct, numbered

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Int = np.int64
_ONE, _OTHER = 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """A set of points in time as sorted, disjoint, non-touching half-open intervals. Make it with `union`."""

    start: NDArray[Int]
    end: NDArray[Int]

    def __len__(self) -> int:
        """Count the intervals."""
        return len(self.start)

    def __eq__(self, other: object) -> bool:
        """Say whether two sets hold the same points."""
        if not isinstance(other, Intervals):
            return NotImplemented
        return np.array_equal(self.start, other.start) and np.array_equal(self.end, other.end)

    __hash__ = None  # type: ignore[assignment] # arrays do not hash

    @property
    def length(self) -> int:
        """Measure the whole set."""
        return int((self.end - self.start).sum())

    def __or__(self, other: Intervals) -> Intervals:
        """Give the points of either."""
        return union(np.concatenate([self.start, other.start]), np.concatenate([self.end, other.end]))

    def __and__(self, other: Intervals) -> Intervals:
        """Give the points of both."""
        if not len(self) or not len(other):
            return EMPTY
        points, within = self._beside(other)
        return _kept(points, within[:-1] == _ONE + _OTHER)

    def __sub__(self, other: Intervals) -> Intervals:
        """Give the points of this set that are not in the other."""
        if not len(self) or not len(other):
            return self
        points, within = self._beside(other)
        return _kept(points, within[:-1] == _ONE)

    def holds(self, points: ArrayLike) -> NDArray[np.bool_]:
        """Say for each point whether it lies inside."""
        begun = np.searchsorted(self.start, points, side="right")
        return np.asarray(begun > np.searchsorted(self.end, points, side="right"))

    def before(self, points: ArrayLike) -> NDArray[Int]:
        """Measure for each point how much of the set lies before it."""
        where = np.asarray(points, Int)
        return self._before(where, self._sums) if len(self) else np.zeros(where.shape, Int)

    def within(self, start: ArrayLike, end: ArrayLike) -> NDArray[Int]:
        """Measure how much of the set lies inside each of the given windows."""
        first, last = np.asarray(start, Int), np.asarray(end, Int)
        if not len(self):
            return np.zeros(np.broadcast_shapes(first.shape, last.shape), Int)
        sums = self._sums
        return np.asarray(self._before(last, sums) - self._before(first, sums))

    def clip(self, start: int, end: int) -> Intervals:
        """Give the part inside one window."""
        low, high = np.maximum(self.start, start), np.minimum(self.end, end)
        kept = high > low
        return Intervals(low[kept], high[kept])

    def gaps(self, start: int, end: int) -> Intervals:
        """Give the part of one window that is not in the set."""
        return union([start], [end]) - self

    @property
    def _sums(self) -> NDArray[Int]:
        """Measure what lies before each interval, and the whole."""
        sums = np.zeros(len(self) + 1, Int)
        np.cumsum(self.end - self.start, out=sums[1:])
        return sums

    def _before(self, where: NDArray[Int], sums: NDArray[Int]) -> NDArray[Int]:
        index = np.searchsorted(self.start, where, side="right")
        over = np.where(index > 0, np.maximum(self.end[index - 1] - where, 0), 0)
        return np.asarray(sums[index] - over)

    def _beside(self, other: Intervals) -> tuple[NDArray[Int], NDArray[np.int8]]:
        """Give all borders, and in which of the sets what lies behind each of them is."""
        borders = np.concatenate([self.start, self.end, other.start, other.end])
        steps = np.repeat(np.array([_ONE, -_ONE, _OTHER, -_OTHER], np.int8), np.repeat([len(self), len(other)], 2))
        order = np.argsort(borders, kind="stable")
        points, within = borders[order], np.cumsum(steps[order], dtype=np.int8)
        last = np.append(points[1:] != points[:-1], True)  # of several borders at a point
        return points[last], within[last]


def union(start: ArrayLike, end: ArrayLike) -> Intervals:
    """Bring any intervals into normal form; empty and negative ones hold no points."""
    low, high = np.asarray(start, Int), np.asarray(end, Int)
    if (high <= low).any():
        kept = high > low
        low, high = low[kept], high[kept]
    if not len(low):
        return EMPTY
    if (low[1:] < low[:-1]).any():
        order = np.argsort(low, kind="stable")
        low, high = low[order], high[order]
    reach = np.maximum.accumulate(high)
    first = np.concatenate([[True], low[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Intervals(low[first], reach[last])


def union_by(
    group: NDArray[Int], start: NDArray[Int], end: NDArray[Int]
) -> tuple[NDArray[Int], NDArray[Int], NDArray[Int]]:
    """Bring the intervals of each group (numbered from 0) into normal form at once: group, start, end, in order."""
    kept = np.flatnonzero(end > start)
    rows = kept[np.lexsort((start[kept], group[kept]))]
    group, low = group[rows], start[rows]
    if not len(rows):
        return group, low, low
    # How far a group has reached is a running maximum over all: places of ends, each group's above all before it.
    ends, place = numbered(end[rows])
    reach = ends[np.maximum.accumulate(group * len(ends) + place) - group * len(ends)]
    first = np.append(True, (group[1:] != group[:-1]) | (low[1:] > reach[:-1]))
    last = np.append(first[1:], True)
    return group[first], low[first], reach[last]


def union_of(sets: list[Intervals]) -> Intervals:
    """Give the points of any of several sets."""
    if not sets:
        return EMPTY
    return union(np.concatenate([s.start for s in sets]), np.concatenate([s.end for s in sets]))


def at_least(sets: list[Intervals], count: int) -> Intervals:
    """Give the points that lie in at least `count` of the sets."""
    if len(sets) < count:
        return EMPTY
    starts = np.concatenate([s.start for s in sets])
    ends = np.concatenate([s.end for s in sets])
    points = distinct(np.concatenate([starts, ends]))
    if not len(points):
        return EMPTY
    begun = np.searchsorted(np.sort(starts), points[:-1], side="right")
    ended = np.searchsorted(np.sort(ends), points[:-1], side="right")
    return _kept(points, begun - ended >= count)


def _kept(points: NDArray[Int], kept: NDArray[np.bool_]) -> Intervals:
    """Join neighbouring elementary intervals that are kept."""
    padded = np.concatenate([[False], kept, [False]])
    edges = np.flatnonzero(padded[1:] != padded[:-1])
    return Intervals(points[edges[::2]], points[edges[1::2]])


def _empty() -> Intervals:
    nothing: NDArray[Any] = np.zeros(0, Int)
    nothing.flags.writeable = False
    return Intervals(nothing, nothing)


EMPTY = _empty()
