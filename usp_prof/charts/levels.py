"""Levels of detail: a million slices at any zoom, short slices of a row merged into buckets.

A merged slice starts where its first one does, is as long as all of them together (so that a row's busy time is the
same at every level), and takes role and name of the one that ran longest in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_FIRST_BUCKETS = 1500
_FACTOR = 4


@dataclass(frozen=True, slots=True)
class Slices:
    """Slices on rows, in any order; `role` and `name` are codes."""

    row: Ints
    start_ns: Ints
    end_ns: Ints
    role: Ints
    name: Ints

    def __len__(self) -> int:
        """Count the slices."""
        return len(self.row)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Slices:
        """Keep some slices."""
        return Slices(self.row[rows], self.start_ns[rows], self.end_ns[rows], self.role[rows], self.name[rows])


def levels(slices: Slices, budget: int) -> tuple[Slices, tuple[int, ...]]:
    """Build levels, coarse first, until the slices themselves are reached or `budget` slices are used up.

    Gives all levels in one, each sorted by start, and where each begins (with the total at the end).
    """
    whole = int(slices.end_ns.max(initial=0) - slices.start_ns.min(initial=0))
    width = max(1, whole // _FIRST_BUCKETS)
    made: list[Slices] = []
    used = 0
    while True:
        level = coarsen(slices, width) if width > 1 else slices
        if made and used + len(level) > budget:
            break
        made.append(_sorted(level))
        used += len(level)
        if len(level) == len(slices):
            break
        width = max(1, width // _FACTOR)
    starts = np.concatenate([[0], np.cumsum([len(level) for level in made])])
    return _joined(made), tuple(int(start) for start in starts)


def coarsen(slices: Slices, width_ns: int) -> Slices:
    """Merge the slices of a row that are shorter than the bucket they start in; longer ones stay as they are."""
    duration = slices.end_ns - slices.start_ns
    short = duration < width_ns
    few = slices.take(short)
    if not len(few):
        return slices
    bucket = few.start_ns // width_ns
    # Longest first within a bucket: its role and name stand for all.
    order = np.lexsort((-(few.end_ns - few.start_ns), bucket, few.row))
    few, bucket = few.take(order), bucket[order]
    first = np.flatnonzero(np.r_[True, (np.diff(few.row) != 0) | (np.diff(bucket) != 0)])
    start = np.minimum.reduceat(few.start_ns, first)
    busy = np.add.reduceat(few.end_ns - few.start_ns, first)
    merged = Slices(few.row[first], start, start + busy, few.role[first], few.name[first])
    return _joined([slices.take(~short), merged])


def _sorted(slices: Slices) -> Slices:
    return slices.take(np.lexsort((slices.row, slices.start_ns)))


def _joined(parts: list[Slices]) -> Slices:
    fields = ("row", "start_ns", "end_ns", "role", "name")
    return Slices(*(np.concatenate([getattr(part, field) for part in parts]) for field in fields))
