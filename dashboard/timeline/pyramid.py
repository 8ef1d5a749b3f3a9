"""How does a row of a million slices fit into a thousand pixels? By levels of detail, each half as fine as the last.

An entry of a level stands for the slices that start in one bucket of time: from the first start to the last end, with
the longest slice's name and category and the share of the entry that is busy. Entries of a row never overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dashboard.timeline.rows import Slices

FIRST_BUCKET_NS = 1024
FACTOR = 2
"""Buckets are powers of two."""
WORTH = 0.6
"""A level is kept when it has no more than this share of the entries of the one before."""
FEW = 64
"""A level whose rows hold this few entries on average is the last."""

REST = np.dtype(
    [("dur", "<f4"), ("event", "<i4"), ("name", "<i4"), ("category", "u1"), ("coverage", "u1"), ("count", "<u2")]
)
"""What an entry holds beside its start (kept apart, so that a search reads nothing else)."""


@dataclass(frozen=True, slots=True)
class Level:
    """One level of detail of all rows of a rank."""

    bucket_ns: int
    offsets: NDArray[np.int64]
    start: NDArray[np.int64]
    rest: NDArray[np.void]


def build(slices: Slices, origin_ns: int) -> list[Level]:
    """Build the levels from the slices themselves (bucket 0) upward; starts are relative to the origin."""
    levels = [_ground(slices, origin_ns)]
    span = int(levels[0].start.max(initial=0)) + 1
    bucket = FIRST_BUCKET_NS
    rows = max(len(slices.rows), 1)
    while bucket < span and len(levels[-1].start) > FEW * rows:
        first = _heads(levels[-1], bucket)
        if len(first) < WORTH * len(levels[-1].start):
            levels.append(_coarser(levels[-1], bucket, first))
        bucket *= FACTOR
    return levels


def _ground(slices: Slices, origin_ns: int) -> Level:
    rest = np.empty(len(slices.start_ns), REST)
    rest["dur"] = slices.dur_ns
    rest["event"] = slices.event
    rest["name"] = slices.name
    rest["category"] = slices.category
    rest["coverage"] = 255
    rest["count"] = 1
    return Level(0, slices.offsets, slices.start_ns - origin_ns, rest)


def _heads(level: Level, bucket: int) -> NDArray[np.int64]:
    """Find the first entry of each bucket of each row."""
    key = level.start >> (bucket.bit_length() - 1)
    fresh = np.ones(len(key), bool)
    np.not_equal(key[1:], key[:-1], out=fresh[1:])
    fresh[level.offsets[:-1][level.offsets[:-1] < len(key)]] = True
    return np.flatnonzero(fresh)


def _coarser(level: Level, bucket: int, first: NDArray[np.int64]) -> Level:
    dur = level.rest["dur"].astype(np.float64)
    busy = np.add.reduceat(dur * level.rest["coverage"], first) / 255.0
    end = np.maximum.reduceat(level.start + dur, first)
    start = level.start[first]
    rest = level.rest[_longest(dur, first)]
    length = end - start
    rest["dur"] = length
    rest["coverage"] = np.clip(np.ceil(255 * busy / np.maximum(length, 1)), 1, 255)
    rest["count"] = np.minimum(np.add.reduceat(level.rest["count"].astype(np.int64), first), 65535)
    offsets = np.searchsorted(first, level.offsets)
    return Level(bucket, offsets, start, rest)


def _longest(dur: NDArray[np.float64], first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find the longest entry of each group."""
    group = np.repeat(np.arange(len(first)), np.diff(first, append=len(dur)))
    best = np.maximum.reduceat(dur, first)
    hits = np.flatnonzero(dur == best[group])
    keep = np.ones(len(hits), bool)
    keep[1:] = group[hits][1:] != group[hits][:-1]
    return hits[keep]
