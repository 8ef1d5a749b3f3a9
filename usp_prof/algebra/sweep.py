"""Who owns each moment? Labels over time: sweep by priority, by latest end, and cuts at window borders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.algebra.intervals import Int, Intervals, union
from usp_prof.algebra.order import distinct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

NOBODY = -1


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Disjoint, sorted segments, each with a label (an index of the caller's); gaps belong to nobody (-1)."""

    start: NDArray[Int]
    end: NDArray[Int]
    label: NDArray[Int]

    def at(self, points: ArrayLike) -> NDArray[Int]:
        """Give the label at each point; -1 where nobody owns it."""
        where = np.asarray(points, Int)
        if not len(self.start):
            return np.full(where.shape, NOBODY, Int)
        index = np.searchsorted(self.start, where, side="right") - 1
        owned = (index >= 0) & (where < self.end[index])
        return np.where(owned, self.label[index], NOBODY)

    def of(self, label: int) -> Intervals:
        """Give the time that one label owns."""
        mine = self.label == label
        return union(self.start[mine], self.end[mine])

    def cut(self, window_start: ArrayLike, window_end: ArrayLike, labels: int) -> NDArray[Int]:
        """Measure per window (rows) and label 0..labels-1 (columns) the time owned."""
        sums = [self.of(label).within(window_start, window_end) for label in range(labels)]
        return np.stack(sums, axis=-1) if sums else np.zeros((len(np.asarray(window_start)), 0), Int)


def by_priority(sets: Sequence[Intervals]) -> Labels:
    """Give each moment to the first set that holds it; labels are positions in `sets`."""
    if not sets:
        return _nothing()
    points = distinct(np.concatenate([edge for s in sets for edge in (s.start, s.end)]))
    if not len(points):
        return _nothing()
    label = np.full(len(points) - 1, NOBODY, Int)
    for index in range(len(sets) - 1, -1, -1):
        borders = np.zeros(len(points), np.int8)
        borders[np.searchsorted(points, sets[index].start)] = 1
        borders[np.searchsorted(points, sets[index].end)] = -1
        label[np.cumsum(borders[:-1], dtype=np.int8) > 0] = index
    return _joined(points, label)


def by_latest_end(start: ArrayLike, end: ArrayLike, label: ArrayLike) -> Labels:
    """Give each moment to the label of the interval, among those running, that ends last (ties: the lower label).

    At any moment the running interval that ends last has the largest end of all that began before, so a running
    maximum over intervals sorted by start finds it.
    """
    low, high, tag = np.asarray(start, Int), np.asarray(end, Int), np.asarray(label, Int)
    kept = high > low
    low, high, tag = low[kept], high[kept], tag[kept]
    if not len(low):
        return _nothing()
    order = np.lexsort((tag, -high, low))
    low, high, tag = low[order], high[order], tag[order]
    owner = _running_best(high, tag)
    points = distinct(np.concatenate([low, high[distinct(owner)]]))
    begun = owner[np.searchsorted(low, points[:-1], side="right") - 1]
    return _joined(points, np.where(high[begun] > points[:-1], tag[begun], NOBODY))


def _running_best(high: NDArray[Int], tag: NDArray[Int]) -> NDArray[Int]:
    """For each position the index of the best so far: largest end, then lowest tag."""
    ends = distinct(high)
    score = np.searchsorted(ends, high) * (int(tag.max() - tag.min()) + 1) + (tag.max() - tag)
    best = np.maximum.accumulate(score)
    new = np.concatenate([[True], best[1:] > best[:-1]])
    return np.maximum.accumulate(np.where(new, np.arange(len(high)), 0))


def _joined(points: NDArray[Int], label: NDArray[Int]) -> Labels:
    """Drop what nobody owns and join neighbours of one owner."""
    change = np.concatenate([[True], label[1:] != label[:-1]]) if len(label) else np.zeros(0, bool)
    first = np.flatnonzero(change)
    starts, tags = points[:-1][first], label[first]
    ends = np.concatenate([starts[1:], points[-1:]]) if len(first) else starts
    owned = tags != NOBODY
    return Labels(starts[owned], ends[owned], tags[owned])


def _nothing() -> Labels:
    return Labels(np.zeros(0, Int), np.zeros(0, Int), np.zeros(0, Int))
