"""Rank wall: one row of pixels per rank, each colored by the part of the step that fills it most.

Parts are compute, exposed communication by axis, and other copies; the rest is idle.

A slice from a to b (in pixels) covers part of its first pixel, part of its last one and all between. With
    ramp(a)[p] = 0 before pixel floor(a), 1 - frac(a) in it, 1 after it
it covers ramp(a) - ramp(b). A ramp is the running sum of two entries, 1 - frac(a) at floor(a) and frac(a) after it; so
all slices of all ranks are summed by counting entries, and one running sum per row gives the time in each pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from usp_prof.timeline.rows import CATEGORIES, category_number
from usp_prof.timeline.store import TimelineStore

from .tiles import pack

if TYPE_CHECKING:
    Floats = NDArray[np.float64]

AT_ONCE = 64
"""Ranks that are summed together: all parts of 64 ranks at 1,400 pixels are 14 MB."""
COMPUTE = category_number("compute")
COPIES = (category_number("memcpy"), category_number("memset"))
COUNTS = np.isin(np.arange(len(CATEGORIES)), (COMPUTE, *COPIES))
"""Of each category, whether its slices on device rows count."""
FAINT = 0.02
"""A pixel that is filled to less than 2% is shown as idle."""


def encode_wall(store: TimelineStore, width_px: int) -> bytes:
    """Write the wall of all ranks over the whole run as a tile whose rows are the ranks, in the store's order."""
    ranks = list(store.ranks)
    start_ns, end_ns = 0, store.span_ns
    parts = [
        shades(*time_in_pixels(store, ranks[first : first + AT_ONCE], start_ns, end_ns, width_px))
        for first in range(0, len(ranks), AT_ONCE)
    ]
    category, coverage = (np.concatenate(column) for column in zip(*parts, strict=True))
    head = {"start_ns": start_ns, "end_ns": end_ns, "width": width_px, "rows": len(ranks), "ranks": ranks}
    return pack(head, (category, coverage))


def time_in_pixels(
    store: TimelineStore, ranks: Sequence[int], start_ns: int, end_ns: int, width_px: int
) -> tuple[NDArray[np.int64], Floats]:
    """Return the categories that occur, and how much of each pixel each fills, 0..1: ranks x categories x pixels."""
    pixel_ns = (end_ns - start_ns) / width_px
    entries_by_rank = [_entries(store, rank, pixel_ns) for rank in ranks]
    start, dur, busy, category = (np.concatenate(column) for column in zip(*entries_by_rank, strict=True))
    place = np.repeat(np.arange(len(ranks)), [len(entries[0]) for entries in entries_by_rank])
    left = (start - start_ns) / pixel_ns
    right = left + dur / pixel_ns
    used = np.flatnonzero(np.bincount(category))
    code = np.searchsorted(used, category)
    width = width_px + 2  # a ramp has an entry after its own pixel, which may be the last
    line = (place * len(used) + code) * width
    index: list[NDArray[np.int64]] = []
    weight: list[Floats] = []
    for edge, share in ((left, busy), (right, -busy)):
        inside = np.clip(edge, 0, width_px)
        pixel = inside.astype(np.int64)
        after = inside - pixel
        index += [line + pixel, line + pixel + 1]
        weight += [share * (1 - after), share * after]
    entries = np.bincount(np.concatenate(index), np.concatenate(weight), len(ranks) * len(used) * width)
    filled = entries.reshape(len(ranks), len(used), width).cumsum(axis=2)[:, :, :width_px]
    return used, _without_overlap(used, np.clip(filled, 0.0, 1.0, out=filled))


def _entries(store: TimelineStore, rank: int, pixel_ns: float) -> tuple[NDArray[Any], ...]:
    """Return start, duration, busy share and category of what counts on a rank, no finer than the pixels."""
    parts = []
    # Device rows come first on a rank, exposed communication among the rows laid over it. Communication
    # in device rows does not count, because its exposed part is in the rows above.
    for lines, kind in ((store.ranks, "device"), (store.over, "exposed")):
        line = lines.get(rank)
        if line is None:
            continue
        level = line.level_for(pixel_ns)
        last = int(level.offsets[sum(row.kind == kind for row in line.rows)])
        start, rest = level.start[:last], level.rest[:last]
        if kind == "device":
            counts = COUNTS[rest["category"]]
            start, rest = start[counts], rest[counts]
        parts.append((start + line.shift_ns, rest["dur"], rest["coverage"] / 255.0, rest["category"].astype(np.int64)))
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def _without_overlap(used: NDArray[np.int64], filled: Floats) -> Floats:
    """Keep copies that overlap neither compute nor communication."""
    is_copy = np.isin(used, COPIES)
    if not is_copy.any():
        return filled
    room = np.clip(1.0 - filled[:, ~is_copy].sum(axis=1), 0.0, 1.0)
    for place in np.flatnonzero(is_copy):
        filled[:, place] = np.minimum(filled[:, place], room)
        room -= filled[:, place]
    return filled


def shades(used: NDArray[np.int64], filled: Floats) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return for each pixel the number of its largest part plus one (0: idle), and its filled share."""
    filled_share = np.minimum(filled.sum(axis=1), 1.0)
    largest = used[filled.argmax(axis=1)] if len(used) else np.zeros(filled_share.shape, np.int64)
    category = np.where(filled_share >= FAINT, largest + 1, 0)
    return category.astype(np.uint8), (255 * filled_share).astype(np.uint8)
