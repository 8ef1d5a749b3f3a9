"""Where is the next slice of that name? A search over every slice of the ranks shown, in order of time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dashboard.timeline.neighbours import Place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from numpy.typing import NDArray

    from dashboard.timeline.store import TimelineStore


@dataclass(frozen=True, slots=True)
class Matches:
    """All matching slices: rank, row, start and duration, by start."""

    rank: NDArray[np.int64]
    row: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    dur_ns: NDArray[np.float64]
    names: int

    def __len__(self) -> int:
        """Count the slices."""
        return len(self.start_ns)

    def at(self, number: int) -> Place:
        """Give one of them."""
        return Place(
            int(self.rank[number]), int(self.row[number]), int(self.start_ns[number]), float(self.dur_ns[number])
        )


def compiled(pattern: str) -> re.Pattern[str] | None:
    """Compile what was typed; None while it is no regular expression."""
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error:
        return None


def search(
    store: TimelineStore, pattern: re.Pattern[str], ranks: Iterable[int], kinds: Collection[str] = ("device", "host")
) -> Matches:
    """Find every slice of some ranks, on rows of some kinds, whose name matches."""
    wanted = {number for number, name in enumerate(store.names) if pattern.search(name)}
    found: list[tuple[NDArray[np.int64], ...]] = []
    for rank in ranks:
        line, hits = store.ranks[rank], store.named(rank, wanted)
        level = line.levels[0]
        row = np.searchsorted(level.offsets, hits, side="right") - 1
        shown = np.array([each.kind in kinds for each in line.rows] + [False])[row]
        hits, row = hits[shown], row[shown]
        found.append(
            (np.full(len(hits), rank), row, level.start[hits] + line.shift_ns, level.rest["dur"][hits].astype(np.int64))
        )
    columns = [np.concatenate(column) for column in zip(*found, strict=True)] if found else [np.zeros(0, np.int64)] * 4
    order = np.argsort(columns[2], kind="stable")
    rank_, row_, start, dur = (column[order] for column in columns)
    return Matches(rank_, row_, start, dur.astype(np.float64), len(wanted))
