"""Overlay rows (exposed communication, actions, critical path, counters).

They are separate rows with the same levels of detail as the slices, so they cost no more than any other row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from usp_prof.analyses.critical_path import Piece
from usp_prof.analyses.critical_path import compute as critical_path_of
from usp_prof.analyses.measures.partition import sets_of as time_sets_of
from usp_prof.columns.arrays import Ints
from usp_prof.columns.intervals import EMPTY
from usp_prof.columns.rows import text_codes
from usp_prof.tables.clock import fit_clocks as clock_of
from usp_prof.tables.table_set import TableSet
from usp_prof.timeline.counters import counters_of
from usp_prof.timeline.rows import Track, category_number, depths, slices_of
from usp_prof.timeline.store import write

FORM = "overlays-5"
"""Name and version of the stored format."""
KINDS = {"exposed": "exposed", "contended": "contended", "actions": "actions", "path": "critical path", "counters": ""}
"""Kinds of rows and their labels on the timeline; each counter has its own name."""


def prepare(tables: TableSet, folder: Path, progress: Callable[[int, int], None] | None = None) -> None:
    """Build and write the overlay rows of every rank."""
    pieces = critical_path_of(tables).pieces
    for done, rank in enumerate(tables.ranks):
        tracks = [*_communication(tables, rank), _actions(tables, rank), _path(pieces, rank)]
        tracks += counters_of(tables, rank)
        write(slices_of(rank, [track for track in tracks if len(track.start_ns)]), folder / f"rank{rank}")
        if progress is not None:
            progress(done + 1, len(tables.ranks))


def _communication(tables: TableSet, rank: int) -> Iterator[Track]:
    """Yield communication not hidden by compute: exposed per axis, and contended (another axis ends later)."""
    sets, clock = time_sets_of(tables, rank), clock_of(tables)
    for kind, time_of_axis in (("exposed", sets.exposed.__getitem__), ("contended", sets.contended)):
        times = {axis: time_of_axis(axis) for axis in sets.axes}
        # The empty set is for runs without an axis.
        start = clock.align(rank, np.concatenate([EMPTY.start, *(time.start for time in times.values())]))
        end = clock.align(rank, np.concatenate([EMPTY.end, *(time.end for time in times.values())]))
        axis_of_span = [axis for axis, time in times.items() for _ in range(len(time))]
        yield _track(kind, start, end - start, [f"{kind} {axis}" for axis in axis_of_span], axis_of_span)


def _actions(tables: TableSet, rank: int) -> Track:
    """Return the pipeline actions that a rank ran, such as `F3 stage 1` for the forward pass of micro-batch 3."""
    actions, clock = tables.columns("actions", rank), clock_of(tables)
    start = clock.align(rank, actions["device_start_ns"])
    end = clock.align(rank, actions["device_end_ns"])
    kind_code, kind_names = actions.codes("kind")
    kinds = [kind_names[code] for code in kind_code.tolist()]
    places = zip(kinds, actions["stage"].tolist(), actions["micro_batch"].tolist(), strict=True)
    names = [f"{kind}{batch if batch >= 0 else ''} stage {stage}" for kind, stage, batch in places]
    track = _track("actions", start, np.maximum(end - start, 0), names, kinds)
    return replace(track, event=actions["event"])


def _path(pieces: tuple[Piece, ...], rank: int) -> Track:
    """Return the pieces of the critical path that are on one rank."""
    on_rank = [piece for piece in pieces if piece.rank == rank and piece.end_ns > piece.begin_ns]
    start = np.array([piece.begin_ns for piece in on_rank], np.int64)
    end = np.array([piece.end_ns for piece in on_rank], np.int64)
    return _track("path", start, end - start, ["critical path"] * len(start), ["path"] * len(start))


def _track(kind: str, start_ns: Ints, dur_ns: Ints, names: list[str], categories: list[str]) -> Track:
    """Build the track of one kind of overlay from spans in common time, without events."""
    code, distinct_names = text_codes(names)
    category = np.array([category_number(word) for word in categories], np.uint8)
    no_event, depth = np.full(len(start_ns), -1), depths(start_ns, dur_ns)
    return Track(KINDS[kind], kind, "", depth, start_ns, dur_ns, no_event, code, distinct_names, category)
