"""Where is the next slice of that name? A search over every slice of the ranks shown, in order of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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


def matching(store: TimelineStore, pattern: str) -> frozenset[int] | None:
    """Give the numbers of the names that match what was typed; None while it is no regular expression.

    RE2 matches in time that grows with the text only: no pattern, however odd, holds the server up.
    """
    try:
        hits = pc.match_substring_regex(pa.array(store.names, pa.string()), pattern, ignore_case=True)
    except pa.ArrowInvalid:
        return None
    return frozenset(np.flatnonzero(hits.to_numpy(zero_copy_only=False)).tolist())


def search(
    store: TimelineStore, wanted: Collection[int], ranks: Iterable[int], kinds: Collection[str] = ("device", "host")
) -> Matches:
    """Find every slice of some ranks, on rows of some kinds, that has a wanted name."""
    found: list[tuple[NDArray[np.int64], ...]] = []
    for rank in ranks:
        line, hits = store.ranks[rank], store.named(rank, set(wanted))
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
