"""Sums of blocks of slices per name and category, so that the contents of a large area need not read every slice."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from usp_prof.timeline.rows import CATEGORIES
from usp_prof.timeline.tiles import Level

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
