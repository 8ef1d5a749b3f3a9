"""Crops of the timeline: some rows in a range of time as a chart, with the part that matters framed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..engine import TimelineSlices
from .rows import CATEGORIES, HOST_CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .store import TimelineStore

WIDTH_PX = 1400
"""How fine a crop is: pixels over its range."""
_ROLES = {
    "compute": "compute", "memcpy": "memcpy", "memset": "memcpy", "path": "critical path",
    **dict.fromkeys(HOST_CATEGORIES.values(), "host"), **{kind: f"action:{kind}" for kind in "FBIW"},
}  # fmt: skip


def crop(
    store: TimelineStore, rows: Sequence[tuple[int, int]], shown_ns: tuple[int, int], frame_ns: tuple[int, int]
) -> TimelineSlices | None:
    """Cut some rows (rank and row) out of the timeline; times count from the crop's begin. None where all is empty."""
    begin, end = shown_ns
    view = store.view(rows, begin, end, (end - begin) / WIDTH_PX)
    if not len(view.start):
        return None
    order = np.argsort(view.start, kind="stable")  # the chart looks slices up by their start
    row = np.repeat(np.arange(len(rows)), view.counts)[order]
    start = np.clip(view.start, begin, end)[order] - begin
    stop = np.clip(view.start + view.rest["dur"].astype(np.int64), begin, end)[order] - begin
    roles, role = np.unique([_role(CATEGORIES[code]) for code in view.rest["category"][order]], return_inverse=True)
    names, name = np.unique(view.names[order], return_inverse=True)
    return TimelineSlices(
        tuple(_titles(store, rows)), row, start, stop, role, name, tuple(str(each) for each in roles),
        tuple(store.names[number] for number in names), (0, len(row)), end - begin,
        (max(frame_ns[0] - begin, 0), min(frame_ns[1], end) - begin),
    )  # fmt: skip


def rows_of(store: TimelineStore, rank: int, kinds: Sequence[str], deepest: int = 0) -> list[tuple[int, int]]:
    """Give a rank's rows of some kinds, no deeper than `deepest`, in the order of the kinds."""
    rows = list(enumerate(store.rows(rank)))
    return [(rank, place) for kind in kinds for place, row in rows if row.kind == kind and row.depth <= deepest]


def _role(category: str) -> str:
    return _ROLES.get(category, f"comm:{category}")


def _titles(store: TimelineStore, rows: Sequence[tuple[int, int]]) -> list[str]:
    """Name rows by rank and track; the deeper ones of a track are numbered, since a chart tells rows by their names."""
    titles: list[str] = []
    for rank, place in rows:
        row = store.rows(rank)[place]
        deeper = f" {row.depth + 1}" if row.depth else ""
        titles.append(f"rank {rank} {row.track}{deeper}")
    return titles
