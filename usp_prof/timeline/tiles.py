"""Levels of detail of a rank's rows.

A row of a million slices is drawn on a thousand pixels, so each level has half the resolution of the one before. An
entry represents the slices that start in one bucket of time: from the first start to the last end, with the longest
slice's name and category and the busy share of the entry. Entries of a row never overlap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from usp_prof.timeline.rows import CATEGORIES, Slices

FIRST_BUCKET_NS = 1024
FACTOR = 2
"""Ratio of bucket sizes between levels; buckets are powers of two."""
WORTH = 0.6
"""Maximum ratio of entries to those of the previous level for a level to be stored."""
FEW = 64
"""Mean entries per row below which a level is the last."""

REST = np.dtype(
    [("dur", "<f4"), ("event", "<i4"), ("name", "<i4"), ("category", "u1"), ("coverage", "u1"), ("count", "<u2")]
)
"""Columns of an entry besides its start, which is stored separately because a search reads only starts.

Lengths have seven digits (float32): exact up to 16.7 ms, and to a microsecond up to 8 s.
"""


@dataclass(frozen=True, slots=True)
class Level:
    """One level of detail of all rows of a rank."""

    bucket_ns: int
    offsets: NDArray[np.int64]
    start: NDArray[np.int64]
    rest: NDArray[np.void]

    def touching(self, row: int, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Return the first entry of a row that touches a range, and the one after the last."""
        low, high = int(self.offsets[row]), int(self.offsets[row + 1])
        starts = self.start[low:high]
        first = low + int(np.searchsorted(starts, start_ns, side="right"))
        if first > low and self.start[first - 1] + self.rest["dur"][first - 1] > start_ns:
            first -= 1
        last = low + int(np.searchsorted(starts, end_ns, side="left"))
        return first, max(first, last)


def build(slices: Slices, origin_ns: int) -> list[Level]:
    """Build the levels upward from the slices (bucket 0); starts are relative to the origin."""
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
    rest["coverage"] = 255 if slices.level is None else slices.level
    rest["count"] = 1
    return Level(0, slices.offsets, slices.start_ns - origin_ns, rest)


def _heads(level: Level, bucket: int) -> NDArray[np.int64]:
    """Return the first entry of each bucket of each row."""
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
    rest = level.rest[longest_of_groups(dur, first)]
    length = end - start
    rest["dur"] = length
    rest["coverage"] = np.clip(np.ceil(255 * busy / np.maximum(length, 1)), 1, 255)
    rest["count"] = np.minimum(np.add.reduceat(level.rest["count"].astype(np.int64), first), 65535)
    offsets = np.searchsorted(first, level.offsets)
    return Level(bucket, offsets, start, rest)


def longest_of_groups(dur: NDArray[np.float64], first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the longest entry of each group; `first` has the first entry of each group."""
    group = np.repeat(np.arange(len(first)), np.diff(first, append=len(dur)))
    best = np.maximum.reduceat(dur, first)
    hits = np.flatnonzero(dur == best[group])
    keep = np.ones(len(hits), bool)
    keep[1:] = group[hits][1:] != group[hits][:-1]
    return hits[keep]


# Sums of blocks of slices per name and category: the contents of a large area need not read every slice.


BLOCK = 4096
"""Slices per block of sums; slices after a row's last whole block are always read individually."""
SUMS = np.dtype(
    [("block", "<i4"), ("name", "<i4"), ("category", "u1"), ("calls", "<i4"), ("total", "<i8"), ("longest", "<f4")]
)
"""Sums per name and category of a block: number of slices, their time in ns, the longest. Sorted by block."""


def block_sums(level: Level) -> NDArray[np.void]:
    """Return the sums of the ground level's whole blocks; blocks are numbered through the rows, see `first_blocks`."""
    first_block = first_blocks(level)
    # Block of each slice; -1 after its row's last whole block.
    block = np.full(len(level.start), -1)
    for low, first, after in zip(level.offsets.tolist(), first_block.tolist(), first_block[1:].tolist(), strict=False):
        block[low : low + (after - first) * BLOCK] = np.repeat(np.arange(first, after), BLOCK)
    rest = level.rest[block >= 0]
    block = block[block >= 0]
    key = keys_of(rest["name"], rest["category"])
    # One number per pair of block and key. A table of all blocks and keys would be nearly empty, because a block has
    # few of the names, so only existing pairs get a sum.
    key_count = int(key.max(initial=0)) + 1
    pairs, pair_of_slice = np.unique(block * key_count + key, return_inverse=True)
    sums = np.zeros(len(pairs), SUMS)
    sums["block"] = pairs // key_count
    sums["name"] = pairs % key_count // len(CATEGORIES)
    sums["category"] = pairs % key_count % len(CATEGORIES)
    sums["calls"] = np.bincount(pair_of_slice, minlength=len(pairs))
    sums["total"] = np.bincount(pair_of_slice, rest["dur"], len(pairs))
    np.maximum.at(sums["longest"], pair_of_slice, rest["dur"])
    return sums


def first_blocks(level: Level) -> NDArray[np.int64]:
    """Return the number of each row's first block; the last entry is the number of blocks."""
    return np.concatenate([[0], np.cumsum(np.diff(level.offsets) // BLOCK)])


def keys_of(name: NDArray[np.integer], category: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return one number for each pair of name and category."""
    return name.astype(np.int64) * len(CATEGORIES) + category
