"""Rank wall: one row of pixels a rank, each pixel coloured by the part of the step that fills it most.

Parts are compute, communication that nothing hides by its axis, and copies beside both; what is left is idle.

A slice from a to b (in pixels) covers part of its first pixel, part of its last one and all between. With
    ramp(a)[p] = 0 before pixel floor(a), 1 - frac(a) in it, 1 after it
it covers ramp(a) - ramp(b). A ramp is the running sum of two entries, 1 - frac(a) at floor(a) and frac(a) after it; so
all slices of all ranks are summed by counting entries, and one running sum a row gives the time in each pixel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .rows import CATEGORIES, category_number
from .tiles import pack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .store import TimelineStore

    Floats = NDArray[np.float64]

AT_ONCE = 64
"""Ranks that are summed together: all parts of 64 ranks at 1,400 pixels are 14 MB."""
COMPUTE = category_number("compute")
COPIES = (category_number("memcpy"), category_number("memset"))
FAINT = 0.02
"""A pixel that is filled to less than 2 % is shown as idle."""


def encode_wall(store: TimelineStore, start_ns: int, end_ns: int, width_px: int) -> bytes:
    """Write the wall of all ranks as a tile whose rows are the ranks, in the store's order."""
    ranks = list(store.ranks)
    parts = [
        shades(time_in_pixels(store, ranks[first : first + AT_ONCE], start_ns, end_ns, width_px))
        for first in range(0, len(ranks), AT_ONCE)
    ]
    category, coverage = (np.concatenate(column) for column in zip(*parts, strict=True))
    head = {"start_ns": start_ns, "end_ns": end_ns, "width": width_px, "rows": len(ranks), "ranks": ranks}
    return pack(head, (category, coverage))


def time_in_pixels(
    store: TimelineStore, ranks: Sequence[int], start_ns: int, end_ns: int, width_px: int
) -> NDArray[np.float64]:
    """Give how much of each pixel each part fills, 0..1: ranks x categories x pixels."""
    kinds = [[row.kind for row in store.rows(rank)] for rank in ranks]
    rows = [
        (rank, number)
        for rank, of_rank in zip(ranks, kinds, strict=True)
        for number, kind in enumerate(of_rank)
        if kind in ("device", "exposed")
    ]
    pixel_ns = (end_ns - start_ns) / width_px
    view = store.view(rows, start_ns, end_ns, pixel_ns)
    place_of_rank = {rank: place for place, rank in enumerate(ranks)}
    place = np.repeat([place_of_rank[rank] for rank, _ in rows], view.counts)
    exposed = np.repeat([kinds[place_of_rank[rank]][number] == "exposed" for rank, number in rows], view.counts)
    # Communication on a device row may be hidden by compute: only what the exposed rows hold counts.
    counts = exposed | np.isin(view.rest["category"], (COMPUTE, *COPIES))
    left = (view.start[counts] - start_ns) / pixel_ns
    right = left + view.rest["dur"][counts] / pixel_ns
    busy = view.rest["coverage"][counts] / 255.0
    width = width_px + 2  # a ramp has an entry after its own pixel, which may be the last
    line = (place[counts] * len(CATEGORIES) + view.rest["category"][counts]) * width
    entries = np.zeros(len(ranks) * len(CATEGORIES) * width)
    for edge, weight in ((left, busy), (right, -busy)):
        inside = np.clip(edge, 0, width_px)
        pixel = inside.astype(np.int64)
        after = inside - pixel
        entries += np.bincount(line + pixel, weight * (1 - after), len(entries))
        entries += np.bincount(line + pixel + 1, weight * after, len(entries))
    filled = entries.reshape(len(ranks), len(CATEGORIES), width).cumsum(axis=2)[:, :, :width_px]
    return _without_overlap(np.clip(filled, 0.0, 1.0))


def _without_overlap(filled: Floats) -> Floats:
    """Keep of copies what lies beside compute and communication."""
    others = np.delete(filled, COPIES, axis=1).sum(axis=1)
    room = np.clip(1.0 - others, 0.0, 1.0)
    for copies in COPIES:
        filled[:, copies] = np.minimum(filled[:, copies], room)
        room = room - filled[:, copies]
    return filled


def shades(filled: Floats) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Give each pixel the number of its largest part plus one, 0 where it is idle, and how much of it is filled."""
    whole = np.minimum(filled.sum(axis=1), 1.0)
    category = np.where(whole >= FAINT, filled.argmax(axis=1) + 1, 0)
    return category.astype(np.uint8), (255 * whole).astype(np.uint8)
