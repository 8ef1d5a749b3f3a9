"""Rows of a rank on the timeline, and the slices on each.

Device lanes come from `activities`. Host rows are the ops, annotations and runtime calls of each thread, one row per
nesting depth. Slices of one row never overlap, even if they do in the trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from usp_prof.columns.arrays import Ints
from usp_prof.columns.lanes import split_lanes
from usp_prof.columns.rows import sorted_by
from usp_prof.columns.table import Columns
from usp_prof.model.topology import PARALLEL_AXES, Axis
from usp_prof.tables.table_set import TableSet

_WORK, _HOST = ("compute", "memcpy", "memset"), ("op", "annotation", "runtime")
_AXES = tuple(str(axis) for axis in (*PARALLEL_AXES, Axis.WORLD, Axis.UNKNOWN))
CATEGORIES = (*_WORK, *_HOST, *_AXES, "F", "B", "I", "W", "path", "counter")
"""Categories that determine a slice's color: its kind, the parallel axis of communication, or the meaning of an
overlay."""

ORDER = {name: place for place, name in enumerate((_WORK[0], *_AXES, "pp send", "pp recv", *_WORK[1:]))}
"""Order of a rank's tracks: compute, then communication by axis, then copies."""
HOST_CATEGORIES = {"cpu_op": "op", "user_annotation": "annotation", "cuda_runtime": "runtime", "cuda_driver": "runtime"}
MAX_DEPTH = 24
"""Maximum rows per thread; deeper slices share the last one if they fit, else they are only in the table below."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its rank, track label, depth within the track, and the stream or thread of the track.

    For a counter, the last one is the value of its maximum.
    """

    rank: int
    track: str
    kind: str
    depth: int
    lane: str = ""


@dataclass(frozen=True, slots=True)
class Slices:
    """Slices of all rows of a rank, sorted by row and start; `offsets[i]:offsets[i + 1]` are those of row i."""

    rows: tuple[Row, ...]
    offsets: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    dur_ns: NDArray[np.int64]
    event: NDArray[np.int64]
    name: NDArray[np.int64]
    category: NDArray[np.uint8]
    names: tuple[str, ...]
    level: NDArray[np.uint8] | None = None
    """Height of each slice in its row, out of 255; None if all have the full height, as for all rows but counters."""


@dataclass(frozen=True, slots=True)
class Track:
    """Slices of one track, such as a stream or a thread; `depth` is the row of each within the track."""

    name: str
    kind: str
    lane: str
    depth: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    dur_ns: NDArray[np.int64]
    event: NDArray[np.int64]
    name_code: NDArray[np.integer]
    """Index of each slice's name in `names`."""
    names: Sequence[str]
    category: NDArray[np.uint8]
    level: NDArray[np.uint8] | None = None
    """Height of each slice in its row, out of 255; None if all have the full height, as for all tracks but counters."""


def rank_slices(tables: TableSet, rank: int) -> Slices:
    """Return all slices of a rank."""
    return slices_of(rank, [*_device(tables.columns("activities", rank)), *_host(tables.columns("events", rank))])


def _device(columns: Columns) -> Iterator[Track]:
    lanes, lane_names = columns.codes("lane")
    kinds, kind_names = columns.codes("kind")
    axes, axis_names = columns.codes("axis")
    by_kind = np.array([category_number(kind) for kind in kind_names] + [0], np.uint8)
    by_axis = np.array([category_number(axis or "unknown") for axis in axis_names] + [0], np.uint8)
    is_communication = columns.matches("kind", "communication")
    category = np.where(is_communication, by_axis[axes], by_kind[kinds]).astype(np.uint8)
    name, names = columns.narrow_codes("name")
    tracks: list[tuple[str, str, NDArray[np.int64]]] = []
    is_compute = columns.matches("kind", "compute")
    for code in sorted(set(lanes.tolist()), key=lambda c: _natural(lane_names[c])):
        rows = np.flatnonzero(lanes == code)
        time = np.bincount(category[rows], columns["dur_ns"][rows], len(CATEGORIES))
        called = CATEGORIES[int(time.argmax())]
        if called in _AXES and is_compute[rows].sum() > is_communication[rows].sum():
            called = _WORK[0]  # a stream of kernels with a few long collectives among them
        if called == "pp":
            called = direction_of([names[name_code] for name_code in set(name[rows].tolist())])
        tracks.append((called, lane_names[code], rows))
    tracks.sort(key=lambda track: ORDER.get(track[0], len(ORDER)))
    counts = Counter[str]()
    for called, lane, rows in tracks:
        counts[called] += 1
        title = called if counts[called] == 1 else f"{called} {counts[called]}"
        yield _track(title, "device", lane, columns, rows, category)


def _track(title: str, kind: str, lane: str, columns: Columns, rows: Ints, category: NDArray[np.uint8]) -> Track:
    """Build a track from rows of a table, without slices that are too deep."""
    depth = depths(columns["start_ns"][rows], columns["dur_ns"][rows])
    rows, depth = rows[depth < MAX_DEPTH], depth[depth < MAX_DEPTH]
    start, dur, event = (columns[name][rows] for name in ("start_ns", "dur_ns", "event"))
    code, names = columns.narrow_codes("name")
    return Track(title, kind, lane, depth, start, np.maximum(dur, 0), event, code[rows], names, category[rows])


def direction_of(names: list[str]) -> str:
    """Return whether a lane of pipeline communication sends, receives, or does both."""
    sends, receives = (any(word in name.lower() for name in names) for word in ("send", "recv"))
    is_two_way = sends == receives or any("sendrecv" in name.lower() for name in names)
    return "pp" if is_two_way else "pp send" if sends else "pp recv"


def _host(events: Columns) -> Iterator[Track]:
    keep = events.matches("category", *HOST_CATEGORIES) & events.matches("phase", "X") & (events["dur_ns"] >= 0)
    events = events.take(keep)
    threads, thread_names = events.codes("thread")
    kinds, kind_names = events.codes("category")
    category = np.array([category_number(HOST_CATEGORIES.get(kind, "op")) for kind in kind_names] + [0], np.uint8)[
        kinds
    ]
    order = np.argsort(threads, kind="stable")
    bounds = np.searchsorted(threads[order], np.arange(len(thread_names) + 1))
    for code in sorted(range(len(thread_names)), key=lambda c: (bounds[c] - bounds[c + 1], _natural(thread_names[c]))):
        rows = order[bounds[code] : bounds[code + 1]]
        if len(rows):
            thread = f"thread {thread_names[code]}"
            yield _track(thread, "host", thread, events, rows, category)


def depths(start: NDArray[np.int64], dur: NDArray[np.int64]) -> NDArray[np.int64]:
    """Assign each slice a row of its track so that rows never overlap; nested slices are below their parent."""
    if not len(start):
        return np.zeros(0, np.int64)
    end = start + np.maximum(dur, 1)
    order = np.lexsort((-dur, start))
    opened = np.arange(len(start)) - np.searchsorted(np.sort(end), start[order], side="right")
    if _collides(opened, start[order], end[order]):  # they overlap without nesting, such as gloo's sends and receives
        return split_lanes(np.zeros(len(start), np.int64), start, end)
    depth = np.empty(len(start), np.int64)
    depth[order] = opened
    return depth


def _collides(depth: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]) -> bool:
    order = np.lexsort((start, depth))
    same = depth[order][1:] == depth[order][:-1]
    return bool(np.any(same & (start[order][1:] < end[order][:-1])))


def slices_of(rank: int, tracks: Iterable[Track]) -> Slices:
    """Assign the slices of tracks to rows, one track after the other."""
    rows: list[Row] = []
    names: dict[str, int] = {}
    offsets = [0]
    columns: list[list[NDArray[Any]]] = [[np.zeros(0, np.int64)] for _ in range(6)]
    for track in tracks:
        code_of_name = np.array([names.setdefault(name, len(names)) for name in track.names] + [0], np.int64)
        level = np.full(len(track.depth), 255, np.uint8) if track.level is None else track.level
        of_slices = track.start_ns, track.dur_ns, track.event, code_of_name[track.name_code], track.category, level
        for depth in range(int(track.depth.max(initial=-1)) + 1):
            index = sorted_by(track.start_ns, np.flatnonzero(track.depth == depth))
            rows.append(Row(rank, track.name, track.kind, depth, track.lane))
            offsets.append(offsets[-1] + len(index))
            for column, values in zip(columns, of_slices, strict=True):
                column.append(values[index])
    start, dur, event, name, category, level = (np.concatenate(column) for column in columns)
    return Slices(
        tuple(rows), np.array(offsets, np.int64), start, dur, event, name, category.astype(np.uint8), tuple(names),
        level.astype(np.uint8),
    )  # fmt: skip


def category_number(category: str) -> int:
    """Return a category's number, or that of `unknown`."""
    return CATEGORIES.index(category) if category in CATEGORIES else CATEGORIES.index("unknown")


def _natural(text: str) -> tuple[object, ...]:
    """Return a sort key that places 'stream 7' before 'stream 20'."""
    words = text.replace("/", " ").split()
    return tuple((0, int(word), "") if word.isdigit() else (1, 0, word) for word in words)
