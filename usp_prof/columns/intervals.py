"""Sets of half-open time intervals on int64 nanoseconds: union, intersection, difference, coverage.

`Intervals` is in normal form: sorted, disjoint, not touching, not empty. Every operation is a sweep over sorted arrays.
Nothing loops over intervals, and all lengths are exact integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import distinct, first_of_run, last_of_run, numbered
from usp_prof.columns.table import Columns

_ONE, _OTHER = 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """A set of times as sorted, disjoint, non-touching half-open intervals. Build it with `union`."""

    start: Ints
    end: Ints

    def __len__(self) -> int:
        """Return the number of intervals."""
        return len(self.start)

    def __eq__(self, other: object) -> bool:
        """Return whether two sets have the same points."""
        if not isinstance(other, Intervals):
            return NotImplemented
        return np.array_equal(self.start, other.start) and np.array_equal(self.end, other.end)

    __hash__ = None  # type: ignore[assignment] # arrays do not hash

    @property
    def length(self) -> int:
        """Return the total length."""
        return int((self.end - self.start).sum())

    def __or__(self, other: Intervals) -> Intervals:
        """Return the union."""
        return union(np.concatenate([self.start, other.start]), np.concatenate([self.end, other.end]))

    def __and__(self, other: Intervals) -> Intervals:
        """Return the intersection."""
        if not len(self) or not len(other):
            return EMPTY
        points, within = self._beside(other)
        return _runs_of(points, within[:-1] == _ONE + _OTHER)

    def __sub__(self, other: Intervals) -> Intervals:
        """Return the points of this set that are not in the other."""
        if not len(self) or not len(other):
            return self
        points, within = self._beside(other)
        return _runs_of(points, within[:-1] == _ONE)

    def holds(self, points: ArrayLike) -> Flags:
        """Return for each point whether it is inside."""
        started = np.searchsorted(self.start, points, side="right")
        return np.asarray(started > np.searchsorted(self.end, points, side="right"))

    def before(self, points: ArrayLike) -> Ints:
        """Return for each point the length of the set before it."""
        where = np.asarray(points, np.int64)
        return self._before(where, self._sums) if len(self) else np.zeros(where.shape, np.int64)

    def within(self, start: ArrayLike, end: ArrayLike) -> Ints:
        """Return the length of the set inside each window."""
        first, last = np.asarray(start, np.int64), np.asarray(end, np.int64)
        if not len(self):
            return np.zeros(np.broadcast_shapes(first.shape, last.shape), np.int64)
        sums = self._sums
        return np.asarray(self._before(last, sums) - self._before(first, sums))

    def clip(self, start: int, end: int) -> Intervals:
        """Return the part inside one window."""
        low, high = np.maximum(self.start, start), np.minimum(self.end, end)
        is_positive = high > low
        return Intervals(low[is_positive], high[is_positive])

    @property
    def _sums(self) -> Ints:
        """Return the length before each interval, and the total."""
        sums = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.end - self.start, out=sums[1:])
        return sums

    def _before(self, where: Ints, sums: Ints) -> Ints:
        # Count all intervals that started by then, minus the part of the last one after the point.
        index = np.searchsorted(self.start, where, side="right")
        over = np.where(index > 0, np.maximum(self.end[index - 1] - where, 0), 0)
        return np.asarray(sums[index] - over)

    def _beside(self, other: Intervals) -> tuple[Ints, NDArray[np.int8]]:
        """Return all borders, and which of the two sets contain the points after each border."""
        borders = np.concatenate([self.start, self.end, other.start, other.end])
        # +1 and -1 at start and end of this set, +2 and -2 for the other: the running sum tells which sets contain a
        # point.
        steps = np.repeat(np.array([_ONE, -_ONE, _OTHER, -_OTHER], np.int8), np.repeat([len(self), len(other)], 2))
        order = np.argsort(borders, kind="stable")
        points, within = borders[order], np.cumsum(steps[order], dtype=np.int8)
        last = last_of_run(points)  # with several borders at one point
        return points[last], within[last]


def union(start: ArrayLike, end: ArrayLike) -> Intervals:
    """Bring any intervals into normal form; empty and negative ones have no points."""
    low, high = np.asarray(start, np.int64), np.asarray(end, np.int64)
    if (high <= low).any():
        is_positive = high > low
        low, high = low[is_positive], high[is_positive]
    if not len(low):
        return EMPTY
    if (low[1:] < low[:-1]).any():
        order = np.argsort(low, kind="stable")
        low, high = low[order], high[order]
    reach = np.maximum.accumulate(high)
    first = np.concatenate([[True], low[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Intervals(low[first], reach[last])


def time_of(ranges: Columns, rows: Flags) -> Intervals:
    """Return the times in which any of the selected rows of a table ran."""
    if not rows.any():
        return EMPTY  # times are not read
    start = ranges["start_ns"][rows]
    return union(start, start + ranges["dur_ns"][rows])


def union_by(group: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Bring the intervals of each group (numbered from 0) into normal form: group, start and end, sorted."""
    positive = np.flatnonzero(end > start)
    rows = positive[np.lexsort((start[positive], group[positive]))]
    group, low = group[rows], start[rows]
    if not len(rows):
        return group, low, low
    # The latest end in a group is a running maximum. One maximum over all groups is enough, because each group's
    # numbers are larger than those of earlier groups: an end is its rank among the distinct ends, plus an offset per
    # group.
    ends, place = numbered(end[rows])
    base_of_group = group * len(ends)
    reach = ends[np.maximum.accumulate(base_of_group + place) - base_of_group]
    first = np.append(True, (group[1:] != group[:-1]) | (low[1:] > reach[:-1]))
    last = np.append(first[1:], True)
    return group[first], low[first], reach[last]


def union_of(sets: list[Intervals]) -> Intervals:
    """Return the union of several sets."""
    if not sets:
        return EMPTY
    return union(np.concatenate([s.start for s in sets]), np.concatenate([s.end for s in sets]))


def _runs_of(points: Ints, is_inside: Flags) -> Intervals:
    """Merge adjacent elementary intervals that are selected."""
    padded = np.concatenate([[False], is_inside, [False]])
    edges = np.flatnonzero(padded[1:] != padded[:-1])
    return Intervals(points[edges[::2]], points[edges[1::2]])


_NOTHING: Ints = np.zeros(0, np.int64)
_NOTHING.flags.writeable = False
EMPTY = Intervals(_NOTHING, _NOTHING)


# Labels: one owner per time, by priority or by latest end, and the time of each owner per window.


NOBODY = -1


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Disjoint, sorted segments, each with a label (an index of the caller's); gaps have the label -1."""

    start: Ints
    end: Ints
    label: Ints

    def at(self, points: ArrayLike) -> Ints:
        """Return the label at each point; -1 in gaps."""
        where = np.asarray(points, np.int64)
        if not len(self.start):
            return np.full(where.shape, NOBODY, np.int64)
        index = np.searchsorted(self.start, where, side="right") - 1
        owned = (index >= 0) & (where < self.end[index])
        return np.where(owned, self.label[index], NOBODY)

    def times_of(self, label: int) -> Intervals:
        """Return the times of one label."""
        is_owned = self.label == label
        return union(self.start[is_owned], self.end[is_owned])

    def cut(self, window_start: ArrayLike, window_end: ArrayLike, labels: int) -> Ints:
        """Return the time per window (rows) and label 0..labels-1 (columns)."""
        sums = [self.times_of(label).within(window_start, window_end) for label in range(labels)]
        return np.stack(sums, axis=-1) if sums else np.zeros((len(np.asarray(window_start)), 0), np.int64)


UNOWNED = Labels(_NOTHING, _NOTHING, _NOTHING)


def by_priority(sets: Sequence[Intervals]) -> Labels:
    """Label each time with the first set that contains it; labels are positions in `sets`."""
    if not sets:
        return UNOWNED
    points = distinct(np.concatenate([edge for s in sets for edge in (s.start, s.end)]))
    if not len(points):
        return UNOWNED
    # Owner of each elementary interval, from one point to the next. The last set is written first, so that the first
    # set overwrites all others.
    label = np.full(len(points) - 1, NOBODY, np.int64)
    for index in range(len(sets) - 1, -1, -1):
        borders = np.zeros(len(points), np.int8)
        borders[np.searchsorted(points, sets[index].start)] = 1
        borders[np.searchsorted(points, sets[index].end)] = -1
        label[np.cumsum(borders[:-1], dtype=np.int8) > 0] = index
    return _merged(points, label)


def by_latest_end(start: ArrayLike, end: ArrayLike, label: ArrayLike) -> Labels:
    """Label each time with the running interval that ends last (ties: the lower label).

    At any time, the running interval that ends last has the largest end of all that started before. A running maximum
    over intervals sorted by start therefore finds it.
    """
    low, high, tag = np.asarray(start, np.int64), np.asarray(end, np.int64), np.asarray(label, np.int64)
    is_positive = high > low
    low, high, tag = low[is_positive], high[is_positive], tag[is_positive]
    if not len(low):
        return UNOWNED
    order = np.lexsort((tag, -high, low))
    low, high, tag = low[order], high[order], tag[order]
    owner = _running_best(high, tag)
    # The owner changes if an interval starts, or if the owner ends.
    points = distinct(np.concatenate([low, high[distinct(owner)]]))
    last_started = owner[np.searchsorted(low, points[:-1], side="right") - 1]
    return _merged(points, np.where(high[last_started] > points[:-1], tag[last_started], NOBODY))


def _running_best(high: Ints, tag: Ints) -> Ints:
    """Return for each position the index of the best so far: largest end, then lowest tag."""
    ends = distinct(high)
    # One number that grows with the end and, for equal ends, with a lower tag.
    score = np.searchsorted(ends, high) * (int(tag.max() - tag.min()) + 1) + (tag.max() - tag)
    best = np.maximum.accumulate(score)
    new = np.concatenate([[True], best[1:] > best[:-1]])
    return np.maximum.accumulate(np.where(new, np.arange(len(high)), 0))


def _merged(points: Ints, label: Ints) -> Labels:
    """Drop segments without an owner and merge adjacent ones of one owner; `label[i]` owns points i to i + 1."""
    first = np.flatnonzero(first_of_run(label))
    starts, tags = points[:-1][first], label[first]
    ends = np.concatenate([starts[1:], points[-1:]]) if len(first) else starts
    owned = tags != NOBODY
    return Labels(starts[owned], ends[owned], tags[owned])
