"""Timeline in an HTML report: its client and its data in one fragment that needs no server.

The data are entries of the levels of detail (see tiles.py). A large run uses a coarser level, so that the file fits the
size limits of ticket systems and CI artifacts. The client builds the coarser levels itself.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from usp_prof.model.selection import Selection
from usp_prof.tables.table_set import TableSet
from usp_prof.timeline.assets import CANVAS, category_colors, category_inks, script, style
from usp_prof.timeline.opened import open_timeline
from usp_prof.timeline.rows import CATEGORIES
from usp_prof.timeline.store import RankTimeline, TimelineStore
from usp_prof.timeline.tiles import Level

DEVICE_ENTRIES = 10_000
"""Maximum entries per rank on device rows and overlays.

An entry takes up to about 8 bytes of the file: with the host rows, 8 ranks take 1 MB and 64 ranks 8 MB.
"""
HOST_ENTRIES = 6_000
"""Maximum entries per rank on rows of the host's threads."""
TICKS_PER_BUCKET = 16
"""Times are rounded to this fraction of a merged level's bucket."""


def assets() -> str:
    """Return style and script for the timelines of a page."""
    code = script(*CANVAS, "source_file", "page")
    return f"<style>\n{style()}</style>\n<script>\n{code}\n</script>"


def embedded(tables: TableSet, selection: Selection, number: int = 0, focus: int | None = None) -> str:
    """Return the timeline of a run's selected ranks as an HTML fragment, which also needs `assets`.

    It opens scrolled to the rank `focus`.
    """
    store = open_timeline(tables)
    ranks = selection.ranks_among(store.ranks)
    layout = tables.topology
    options = {
        "source": str(number),
        "file": f"timeline-{number}",
        "height": 460,
        "focus": focus if focus in ranks else None,
        "axes": list(layout.axes) if layout.coordinates else [],
        "coordinates": {rank: dict(at) for rank, at in layout.coordinates.items()},
        "themes": {
            theme: {"colors": category_colors(dark=dark), "inks": category_inks(dark=dark)}
            for theme, dark in (("light", False), ("dark", True))
        },
    }
    content = base64.b64encode(gzip.compress(packed(store, ranks), 9, mtime=0)).decode()
    return (
        f"<div class='usp-timeline' data-options='{_attribute(options)}'></div>\n"
        f'<script type="text/plain" id="timeline-{number}">{content}</script>'
    )


def _attribute(options: dict[str, Any]) -> str:
    text = json.dumps(options, separators=(",", ":"))
    return text.replace("&", "&amp;").replace("'", "&#39;").replace("<", "&lt;")


# The data: a JSON head, then columns of all entries, row by row. Columns of several bytes are stored as planes (all
# lowest bytes first), which compresses better. `gap` is the time from the end of the entry before on the same row.


def packed(store: TimelineStore, ranks: Sequence[int]) -> bytes:
    """Return the entries of these ranks in one block."""
    budgets = {False: DEVICE_ENTRIES * len(ranks), True: HOST_ENTRIES * len(ranks)}
    bucket_of = {is_host: _finest(store, ranks, is_host=is_host, most=most) for is_host, most in budgets.items()}
    rows: dict[int, list[tuple[str, str, int, str]]] = {}
    counts: list[int] = []
    columns: list[tuple[NDArray[Any], ...]] = []
    for rank in ranks:
        rows[rank] = []
        for line, name_ids in _lines(store, rank):
            for index, row in enumerate(line.rows):
                rows[rank].append((row.track, row.kind, row.depth, row.lane))
                level = _level(line, bucket_of[row.kind == "host"])
                entries = _entries(level, index, line.shift_ns, name_ids, _tick_ns(bucket_of[row.kind == "host"]))
                counts.append(len(entries[0]))
                columns.append(entries)
    nothing = (np.zeros(0, np.int64),) * 5
    entry_columns = [np.concatenate(parts) for parts in zip(*(columns or [nothing]), strict=True)]
    used = np.unique(entry_columns[2])
    head = {
        "rows": rows, "counts": counts, "names": [store.names[number] for number in used], "categories": CATEGORIES,
        "span_ns": store.span_ns, "origin_ns": str(store.origin_ns),
        "ticks_ns": [_tick_ns(bucket_of[False]), _tick_ns(bucket_of[True])],
        "buckets_ns": [bucket_of[False], bucket_of[True]],
        "steps": [{"number": step.number, "start_ns": step.start_ns, "end_ns": step.end_ns} for step in store.steps],
    }  # fmt: skip
    text = json.dumps(head, separators=(",", ":")).encode()
    wide = [entry_columns[0], entry_columns[1], np.searchsorted(used, entry_columns[2]).astype(np.uint32)]
    planes = [column.astype("<u4").view(np.uint8).reshape(-1, 4).T.tobytes() for column in wide]
    flat = [column.astype(np.uint8).tobytes() for column in entry_columns[3:]]
    return b"".join([len(text).to_bytes(4, "little"), text, *planes, *flat])


def _lines(store: TimelineStore, rank: int) -> Iterator[tuple[RankTimeline, NDArray[np.int64]]]:
    count = len(store.ranks[rank].rows)
    yield store.line_of(rank, 0)[:2] if count else (store.ranks[rank], np.zeros(1, np.int64))
    if rank in store.over and store.over[rank].rows:
        yield store.line_of(rank, count)[:2]


def _tick_ns(bucket_ns: int) -> int:
    return max(bucket_ns // TICKS_PER_BUCKET, 1)


def _level(line: RankTimeline, bucket_ns: int) -> Level:
    """Return the coarsest level with buckets of at most this size."""
    return [level for level in line.levels if level.bucket_ns <= bucket_ns][-1]


def _finest(store: TimelineStore, ranks: Sequence[int], *, is_host: bool, most: int) -> int:
    """Return the smallest bucket at which the rows of the host, or the others, have at most `most` entries."""
    lines = [line for rank in ranks for line, _ in _lines(store, rank)]
    buckets = sorted({level.bucket_ns for line in lines for level in line.levels})

    def count(bucket_ns: int) -> int:
        return sum(
            int(length)
            for line in lines
            for row, length in zip(line.rows, np.diff(_level(line, bucket_ns).offsets), strict=True)
            if (row.kind == "host") == is_host
        )

    return next((bucket for bucket in buckets if count(bucket) <= most), buckets[-1] if buckets else 0)


def _entries(
    level: Level, row: int, shift_ns: int, name_ids: NDArray[np.int64], tick_ns: int
) -> tuple[NDArray[Any], ...]:
    """Return gap, length, name, category and coverage of a row's entries; times are in ticks."""
    span = slice(int(level.offsets[row]), int(level.offsets[row + 1]))
    start, rest = level.start[span] + shift_ns, level.rest[span]
    first = start // tick_ns
    last = np.maximum(np.ceil((start + rest["dur"]) / tick_ns).astype(np.int64), first)
    last[:-1] = np.minimum(last[:-1], first[1:])  # rounding must not make entries overlap
    gap = first - np.concatenate([[0], last])[: len(first)]
    return gap, last - first, name_ids[rest["name"]], rest["category"], rest["coverage"]
