"""Rows laid over the timeline (exposed communication, actions, critical path, counters), and rows of calls.

They are rows of their own, in the same levels of detail as the slices, so that they cost no more than any other row.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..engine import Unit, calls_of, clock_of, critical_path_of, quantity, spans, time_sets_of
from .counters import counters_of
from .rows import Row, Slices, category_number, depths
from .store import load, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from ..engine import Columns, Piece, TableSet
    from .store import TimelineStore


FORM = "overlays-3"
"""What is kept, and the version of its form."""
KINDS = {"exposed": "exposed", "actions": "actions", "path": "critical path", "counters": ""}
"""The kinds of rows, and what they are called beside the timeline; each counter has a name of its own."""


@dataclass(frozen=True, slots=True)
class _Spans:
    """Spans of one kind, in common time; `event` is -1 where a span is of no event."""

    kind: str
    start_ns: NDArray[np.int64]
    dur_ns: NDArray[np.int64]
    event: NDArray[np.int64]
    name: tuple[str, ...]
    category: tuple[str, ...]
    track: str = ""
    lane: str = ""
    level: NDArray[np.uint8] | None = None


def prepare(tables: TableSet, folder: Path, progress: Callable[[int, int], None] | None = None) -> None:
    """Build and write the rows laid over every rank."""
    pieces = critical_path_of(tables).pieces
    for done, rank in enumerate(tables.ranks):
        spans = [_path(pieces, rank), _actions(tables, rank), *_exposed(tables, rank), *_counters(tables, rank)]
        write(_assemble(rank, [span for span in spans if len(span.start_ns)]), folder / f"rank{rank}")
        if progress is not None:
            progress(done + 1, len(tables.ranks))


def _path(pieces: tuple[Piece, ...], rank: int) -> _Spans:
    mine = [piece for piece in pieces if piece.rank == rank and piece.end_ns > piece.begin_ns]
    start = np.array([piece.begin_ns for piece in mine], np.int64)
    dur = np.array([piece.end_ns for piece in mine], np.int64) - start
    return _Spans("path", start, dur, np.full(len(mine), -1), ("critical path",) * len(mine), ("path",) * len(mine))


def _actions(tables: TableSet, rank: int) -> _Spans:
    actions = tables.columns("actions", rank)
    start, end = (clock_of(tables).align(rank, actions[name]) for name in ("device_start_ns", "device_end_ns"))
    kinds, texts = actions.codes("kind")
    kind = [texts[one] for one in kinds.tolist()]
    facts = zip(kind, actions["stage"].tolist(), actions["micro_batch"].tolist(), strict=True)
    return _Spans(
        "actions",
        start,
        np.maximum(end - start, 0),
        actions["event"],
        tuple(f"{what}{number if number >= 0 else ''} stage {stage}" for what, stage, number in facts),
        tuple(kind),
    )


def _exposed(tables: TableSet, rank: int) -> Iterator[_Spans]:
    sets = time_sets_of(tables, rank)
    for axis, waited in sets.waited.items():
        alone = waited - sets.compute
        start, end = (clock_of(tables).align(rank, when) for when in (alone.start, alone.end))
        count = len(start)
        yield _Spans("exposed", start, end - start, np.full(count, -1), (f"exposed {axis}",) * count, (axis,) * count)


def _counters(tables: TableSet, rank: int) -> Iterator[_Spans]:
    for counter in counters_of(tables, rank):
        count = len(counter.start_ns)
        yield _Spans(
            "counters", counter.start_ns, counter.dur_ns, np.full(count, -1), (counter.name,) * count,
            ("counter",) * count, counter.track, counter.top, counter.level,
        )  # fmt: skip


def _assemble(rank: int, spans: list[_Spans]) -> Slices:
    """Sort the spans into rows, one kind after the other."""
    rows: list[Row] = []
    offsets, order = [0], [np.zeros(0, np.int64)]
    lengths = [len(span.start_ns) for span in spans]
    # Spans of one track share rows, of which there are as many as overlap; each counter is a track of its own.
    track_of_span = [(span.kind, span.track or KINDS[span.kind], span.lane) for span in spans]
    tracks = sorted(dict.fromkeys(track_of_span), key=lambda track: list(KINDS).index(track[0]))
    track = np.repeat(np.array([tracks.index(each) for each in track_of_span], np.int64), lengths)
    start, dur, event = (_joined([getattr(span, name) for span in spans]) for name in ("start_ns", "dur_ns", "event"))
    labels = [name for span in spans for name in span.name]
    names = tuple(dict.fromkeys(labels))
    number_of = {name: place for place, name in enumerate(names)}
    name = np.array([number_of[label] for label in labels], np.int64)
    category = np.array([category_number(word) for span in spans for word in span.category], np.uint8)
    heights = [np.full(len(span.start_ns), 255, np.uint8) if span.level is None else span.level for span in spans]
    height = np.concatenate([np.zeros(0, np.uint8), *heights])
    for number, (kind, title, lane) in enumerate(tracks):
        mine = np.flatnonzero(track == number)
        depth = depths(start[mine], dur[mine])
        for level in range(int(depth.max(initial=-1)) + 1):
            chosen = mine[depth == level]
            order.append(chosen[np.argsort(start[chosen], kind="stable")])
            rows.append(Row(rank, title, kind, level, lane))
            offsets.append(offsets[-1] + len(chosen))
    at = np.concatenate(order)
    return Slices(
        tuple(rows), np.array(offsets, np.int64), start[at], dur[at], event[at], name[at], category[at], names,
        height[at],
    )  # fmt: skip


def _joined(columns: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(columns).astype(np.int64) if columns else np.zeros(0, np.int64)


# Rows of calls: each group has its own; a call is waiting for the last member, then the transfer.


CALLS_FORM = "calls-4"
"""What is kept, and the version of its form."""
MOST_GROUPS = 256
WAITING = "annotation"
"""The category whose quiet colour shows waiting."""


def prepare_calls(tables: TableSet, folder: Path) -> None:
    """Build and write the rows of every group, the longest waiting first; of very many, those with the most calls."""
    table = calls_of(tables).columns()
    codes, keys = table.codes("group")
    axes, axis_names = table.codes("axis")
    counts = np.bincount(codes, minlength=len(keys)) if len(codes) else np.zeros(0, np.int64)
    kept = [code for code in np.argsort(-counts, kind="stable")[:MOST_GROUPS].tolist() if counts[code]]
    titles = {code: _title_of_group(axis_names[int(axes[codes == code][0])], keys[code]) for code in kept}
    waited = np.zeros(len(keys), np.int64)
    np.add.at(waited, codes, np.maximum(table["last_ns"] - table["first_ns"], 0))
    kept.sort(key=lambda code: (-int(waited[code]), titles[code]))
    for number, code in enumerate(kept):
        write(_slices_of_group(table, np.flatnonzero(codes == code), number), folder / f"rank{number}")
    labels = {number: titles[code] for number, code in enumerate(kept)}
    (folder / "run.json").write_text(json.dumps({"steps": [], "labels": labels}), encoding="utf-8")


def open_calls(folder: Path) -> TimelineStore:
    """Open prepared rows; a group's number stands where a rank's does."""
    labels = json.loads((folder / "run.json").read_text(encoding="utf-8"))["labels"]
    store = load(folder, [int(number) for number in labels])
    store.labels = {int(number): label for number, label in labels.items()}
    return store


def _title_of_group(axis: str, key: str) -> str:
    """Call a group by its axis and members."""
    members = key.rpartition("@")[2]
    if re.fullmatch(r"\d+(,\d+)*", members):
        members = spans(int(rank) for rank in members.split(",")).replace(" ", "")
    return f"{axis or 'unknown'} {members}" if len(members) <= 20 else f"{axis or 'unknown'} {members[:17]}..."


def _slices_of_group(table: Columns, rows: NDArray[np.int64], number: int) -> Slices:
    first, last, end = (table[name][rows] for name in ("first_ns", "last_ns", "end_ns"))
    last = np.clip(last, first, end)
    depth = depths(first, end - first)
    ops, op_names = table.codes("op")
    axes, axis_names = table.codes("axis")
    texts = [
        f"{op_names[op]} {quantity(size, Unit.BYTES)}" if size >= 0 else op_names[op]
        for op, size in zip(ops[rows].tolist(), table["bytes"][rows].tolist(), strict=True)
    ]
    waits = [f"waiting for rank {late}" if late >= 0 else "waiting" for late in table["late_rank"][rows].tolist()]
    names = {name: place for place, name in enumerate(dict.fromkeys([*waits, *texts]))}
    start, dur = np.concatenate([first, last]), np.concatenate([last - first, end - last])
    name = np.array([names[text] for text in (*waits, *texts)], np.int64)
    axis = np.array([category_number(axis_names[code] or "unknown") for code in axes[rows].tolist()])
    category = np.concatenate([np.full(len(rows), category_number(WAITING)), axis]).astype(np.uint8)
    lane = np.concatenate([depth, depth])
    order = np.lexsort((start, lane))
    order = order[dur[order] > 0]
    lanes = int(depth.max(initial=0)) + 1
    offsets = np.searchsorted(lane[order], np.arange(lanes + 1))
    return Slices(
        tuple(Row(number, "", "device", level) for level in range(lanes)),
        offsets.astype(np.int64), start[order], dur[order], np.full(len(order), -1), name[order], category[order],
        tuple(names),
    )  # fmt: skip
