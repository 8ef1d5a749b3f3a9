"""Contents of a timeline area: slices on some rows in a range of time, by name and by kind.

A whole run has too many slices to add up interactively. Each row is therefore divided into blocks of slices, and the
sums of each block are stored. An area consists of whole blocks, and single slices at its two ends.

    row      s0 s1 | s2 .. s4097 | s4098 .. s8193 | s8194 s8195 ...
    area        [---------------------------------------]
                s1 read, two blocks read as sums,   s8194 read
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from usp_prof.model.metric import Unit
from usp_prof.report.document import DataTable, TableColumn
from usp_prof.timeline.rows import CATEGORIES
from usp_prof.timeline.store import RankTimeline, TimelineStore
from usp_prof.timeline.tiles import BLOCK, Level, first_blocks, keys_of


@dataclass(frozen=True, slots=True)
class _Piece:
    """Slices, or sums of slices: key of name and category, count, time in the range, the longest."""

    key: NDArray[np.int64]
    calls: NDArray[np.int64]
    inside_ns: NDArray[np.int64]
    longest_ns: NDArray[np.float32]


def _pieces(line: RankTimeline, name_ids: NDArray[np.int64], row: int, start_ns: int, end_ns: int) -> Iterator[_Piece]:
    """Yield the pieces of a row in a range, relative to the line's first slice."""
    level = line.levels[0]
    first, last = level.touching(row, start_ns, end_ns)
    low = int(level.offsets[row])
    # The first and last slice may extend beyond the range, so they are read even at the edge of a block.
    first_whole = -(-(first + 1 - low) // BLOCK)
    after_whole = max((last - 1 - low) // BLOCK, first_whole)
    if len(line.sums) and after_whole > first_whole:
        yield _slices(level, name_ids, (first, low + first_whole * BLOCK), (start_ns, end_ns))
        begin = int(first_blocks(level)[row])
        bounds = np.searchsorted(line.sums["block"], [begin + first_whole, begin + after_whole])
        sums = line.sums[slice(*bounds.tolist())]
        yield _Piece(keys_of(name_ids[sums["name"]], sums["category"]), sums["calls"], sums["total"], sums["longest"])
        first = low + after_whole * BLOCK
    yield _slices(level, name_ids, (first, last), (start_ns, end_ns))


def _slices(level: Level, name_ids: NDArray[np.int64], span: tuple[int, int], window_ns: tuple[int, int]) -> _Piece:
    start, rest = level.start[slice(*span)], level.rest[slice(*span)]
    end = np.minimum(start + rest["dur"].astype(np.int64), window_ns[1])
    inside = np.maximum(end - np.maximum(start, window_ns[0]), 0)
    return _Piece(keys_of(name_ids[rest["name"]], rest["category"]), np.ones(len(start), np.int64), inside, rest["dur"])


COLUMNS = (
    TableColumn("name"),
    TableColumn("kind"),
    TableColumn("calls", Unit.COUNT),
    TableColumn("ranks", Unit.COUNT),
    TableColumn("time in range", Unit.NS),
    TableColumn("longest", Unit.NS),
)


def contents(store: TimelineStore, rows_of_rank: Mapping[int, Sequence[int]], start_ns: int, end_ns: int) -> DataTable:
    """Return the contents of a range of time by name, on some rows of some ranks, longest first."""
    keys = len(store.names) * len(CATEGORIES)
    calls, inside = np.zeros(keys, np.int64), np.zeros(keys)
    ranks, longest = np.zeros(keys, np.int64), np.zeros(keys, np.float32)
    for rank, numbers in rows_of_rank.items():
        pieces = [
            piece
            for line, name_ids, row in (store.line_of(rank, number) for number in numbers)
            for piece in _pieces(line, name_ids, row, start_ns - line.shift_ns, end_ns - line.shift_ns)
        ]
        if not pieces:
            continue
        key = np.concatenate([piece.key for piece in pieces])
        count = np.bincount(key, np.concatenate([piece.calls for piece in pieces]), keys).astype(np.int64)
        calls += count
        ranks += count > 0
        inside += np.bincount(key, np.concatenate([piece.inside_ns for piece in pieces]), keys)
        np.maximum.at(longest, key, np.concatenate([piece.longest_ns for piece in pieces]))
    rows: list[tuple[str, str, int, int, int, int]] = []
    for pair in np.flatnonzero(calls).tolist():
        name, category = store.names[pair // len(CATEGORIES)], CATEGORIES[pair % len(CATEGORIES)]
        sums = int(calls[pair]), int(ranks[pair]), int(inside[pair]), int(longest[pair])
        rows.append((name, _kind(name, category), *sums))
    rows.sort(key=lambda row: (-row[4], row[0]))
    return DataTable("", COLUMNS, tuple(rows))


def _kind(name: str, category: str) -> str:
    """Return the kind; exposed and contended time of an axis is separate from its calls, which contain it."""
    return name if name in (f"exposed {category}", f"contended {category}") else category


def by_kind(area_contents: DataTable) -> DataTable:
    """Return an area's contents summed by kind: compute, copies, and communication by axis."""
    totals: dict[str, list[int]] = {}
    for row in area_contents.rows:
        total = totals.setdefault(str(row[1]), [0, 0])
        total[0] += int(row[2] or 0)
        total[1] += int(row[4] or 0)
    rows = sorted(((kind, calls, time) for kind, (calls, time) in totals.items()), key=lambda row: -row[2])
    heads = TableColumn("kind"), TableColumn("calls", Unit.COUNT), TableColumn("time in range", Unit.NS)
    return DataTable("", heads, tuple(rows))
