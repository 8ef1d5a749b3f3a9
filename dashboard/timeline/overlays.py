"""What is laid over the timeline? For each rank: its exposed communication, its pipeline actions, the critical path.

They are rows of their own, in the same levels of detail as the slices, so that they cost no more than any other row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dashboard.timeline.rows import Row, Slices, category_number, depths
from dashboard.timeline.store import write
from usp_prof.analyses import _partition, critical_path
from usp_prof.tables import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from usp_prof.analyses._path import Piece
    from usp_prof.tables.table_set import TableSet

FORM = "overlays-1"
"""What is kept, and the version of its form."""
KINDS = {"exposed": "exposed", "actions": "actions", "path": "critical path"}
"""The kinds of rows, and what they are called beside the timeline."""


@dataclass(frozen=True, slots=True)
class _Spans:
    """Spans of one kind, in common time; `event` is -1 where a span is of no event."""

    kind: str
    start_ns: NDArray[np.int64]
    dur_ns: NDArray[np.int64]
    event: NDArray[np.int64]
    name: tuple[str, ...]
    category: tuple[str, ...]


def prepare(tables: TableSet, folder: Path, progress: Callable[[int, int], None] | None = None) -> None:
    """Build and write the rows laid over every rank."""
    pieces = critical_path.compute(tables).pieces
    for done, rank in enumerate(tables.ranks):
        spans = [_path(pieces, rank), _actions(tables, rank), *_exposed(tables, rank)]
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
    start, end = (clock.of(tables).align(rank, actions[name]) for name in ("device_start_ns", "device_end_ns"))
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
    sets = _partition.sets_of(tables, rank)
    for axis, waited in sets.waited.items():
        alone = waited - sets.compute
        start, end = (clock.of(tables).align(rank, when) for when in (alone.start, alone.end))
        count = len(start)
        yield _Spans("exposed", start, end - start, np.full(count, -1), (f"exposed {axis}",) * count, (axis,) * count)


def _assemble(rank: int, spans: list[_Spans]) -> Slices:
    """Sort the spans into rows, one kind after the other."""
    rows: list[Row] = []
    offsets, order = [0], [np.zeros(0, np.int64)]
    kind = np.repeat([span.kind for span in spans], [len(span.start_ns) for span in spans])
    start, dur, event = (_joined([getattr(span, name) for span in spans]) for name in ("start_ns", "dur_ns", "event"))
    labels = [name for span in spans for name in span.name]
    names = tuple(dict.fromkeys(labels))
    number = {name: place for place, name in enumerate(names)}
    name = np.array([number[label] for label in labels], np.int64)
    category = np.array([category_number(word) for span in spans for word in span.category], np.uint8)
    for each, title in KINDS.items():
        mine = np.flatnonzero(kind == each)
        depth = depths(start[mine], dur[mine])
        for level in range(int(depth.max(initial=-1)) + 1):
            chosen = mine[depth == level]
            order.append(chosen[np.argsort(start[chosen], kind="stable")])
            rows.append(Row(rank, title, each, level))
            offsets.append(offsets[-1] + len(chosen))
    at = np.concatenate(order)
    return Slices(
        tuple(rows), np.array(offsets, np.int64), start[at], dur[at], event[at], name[at], category[at], names
    )


def _joined(columns: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(columns).astype(np.int64) if columns else np.zeros(0, np.int64)
