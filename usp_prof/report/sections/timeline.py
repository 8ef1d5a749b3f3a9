"""Sections on time: the timeline of one step, and the critical path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from usp_prof.analyses.critical_path import CriticalPathResult
from usp_prof.charts.inputs import TimelineSlices
from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import first_of_run, lookup
from usp_prof.columns.table import Columns
from usp_prof.model.metric import Unit
from usp_prof.model.printable import shortened
from usp_prof.report.document import Block, Chart, DataTable, Stack, StackPart, Text, data_table
from usp_prof.report.figures import Context, Figures, axes_in_order, label_of
from usp_prof.report.format import quantity
from usp_prof.report.sections.plain import key_figures, rows_table
from usp_prof.tables import clock
from usp_prof.tables.table_set import TableSet

# Levels of detail: a million slices at any zoom, short slices of a row merged into buckets.
#
# A merged slice starts with its first slice, is as long as their sum (so that a row's busy time is the same at every
# level), and has the role and name of the longest one.

_FIRST_BUCKETS = 1500
_FACTOR = 4


@dataclass(frozen=True, slots=True)
class Slices:
    """Slices on rows, in any order; `role` and `name` are codes."""

    row: Ints
    start_ns: Ints
    end_ns: Ints
    role: Ints
    name: Ints

    def __len__(self) -> int:
        """Return the number of slices."""
        return len(self.row)

    def take(self, rows: Ints | Flags) -> Slices:
        """Return some of the slices."""
        return Slices(self.row[rows], self.start_ns[rows], self.end_ns[rows], self.role[rows], self.name[rows])


def levels(slices: Slices, budget: int) -> tuple[Slices, tuple[int, ...]]:
    """Build levels, coarse first, until the slices themselves are reached or `budget` slices are used.

    Returns all levels in one, each sorted by start, and the start index of each (with the total at the end).
    """
    span_ns = int(slices.end_ns.max(initial=0) - slices.start_ns.min(initial=0))
    width = max(1, span_ns // _FIRST_BUCKETS)
    coarse_first: list[Slices] = []
    used = 0
    while True:
        level = coarsen(slices, width) if width > 1 else slices
        if coarse_first and used + len(level) > budget:
            break
        coarse_first.append(level.take(np.lexsort((level.row, level.start_ns))))
        used += len(level)
        if len(level) == len(slices):
            break
        width = max(1, width // _FACTOR)
    starts = np.concatenate([[0], np.cumsum([len(level) for level in coarse_first])])
    return _concatenated(coarse_first), tuple(int(start) for start in starts)


def coarsen(slices: Slices, width_ns: int) -> Slices:
    """Merge the slices of a row that are shorter than the bucket they start in; longer ones are unchanged."""
    duration = slices.end_ns - slices.start_ns
    short = duration < width_ns
    few = slices.take(short)
    if not len(few):
        return slices
    bucket = few.start_ns // width_ns
    # Longest first within a bucket: its role and name represent the bucket.
    order = np.lexsort((-(few.end_ns - few.start_ns), bucket, few.row))
    few, bucket = few.take(order), bucket[order]
    first = np.flatnonzero(first_of_run(few.row, bucket))
    start = np.minimum.reduceat(few.start_ns, first)
    busy = np.add.reduceat(few.end_ns - few.start_ns, first)
    merged = Slices(few.row[first], start, start + busy, few.role[first], few.name[first])
    return _concatenated([slices.take(~short), merged])


def _concatenated(parts: list[Slices]) -> Slices:
    fields = ("row", "start_ns", "end_ns", "role", "name")
    return Slices(*(np.concatenate([getattr(part, field) for part in parts]) for field in fields))


_BUDGET = 150_000
_MOST_ROWS = 80
_LONGEST_NAME = 96
_COMMUNICATION = "communication"


def build_timeline(context: Context) -> list[Block]:
    """Build the timeline of the middle one of the selected steps."""
    if "step_time" not in context.results or not context.run.steps:
        return []
    step = context.run.steps[len(context.run.steps) // 2]
    drawn = slices_of(context.tables, context.run.ranks, step)
    if drawn is None:
        return []
    length = quantity(int(drawn.end_ns.max()), Unit.NS)
    text = (
        f"Step {step}, {length}. Scroll to zoom, drag to pan. Each rank has a row of compute and copies, and a row of "
        "communication per axis. Short adjacent slices are merged until you zoom in."
    )
    return [Text(text, quiet=True), Chart(f"Step {step} on all ranks", drawn)]


def slices_of(tables: TableSet, ranks: tuple[int, ...], step: int) -> TimelineSlices | None:
    """Return the activities of one step, on rows by rank and kind, at several levels of detail."""
    activities = {}
    for rank in ranks:
        columns = tables.columns("activities", rank)
        if len(in_step := columns.take(columns["step"] == step)):
            activities[rank] = in_step
    if not activities:
        return None
    keys = {rank: _row_keys(columns) for rank, columns in activities.items()}
    if sum(len(names) for _, names in keys.values()) > _MOST_ROWS:
        keys = {rank: _merged(codes, names) for rank, (codes, names) in keys.items()}
    rows: list[str] = []
    roles: dict[str, int] = {}
    names: dict[str, int] = {}
    parts = []
    clocks = clock.fit_clocks(tables)
    for rank, columns in activities.items():
        codes, labels = keys[rank]
        name_codes, full_names = columns.codes("name")
        start = clocks.align(rank, columns["start_ns"])
        parts.append(
            Slices(
                codes + len(rows),
                start,
                start + columns["dur_ns"],
                _coded(*_roles(columns), roles),
                _coded(name_codes, [shortened(name, _LONGEST_NAME) for name in full_names], names),
            )
        )
        rows += [f"rank {rank} {label}".rstrip() for label in labels]
    return _levelled(parts, rows, roles, names)


def _levelled(parts: list[Slices], rows: list[str], roles: dict[str, int], names: dict[str, int]) -> TimelineSlices:
    first = min(int(part.start_ns.min()) for part in parts)
    all_slices = Slices(
        *(
            np.concatenate([getattr(part, field) for part in parts]) - (first if field.endswith("_ns") else 0)
            for field in Slices.__dataclass_fields__
        )
    )
    drawn, starts = levels(all_slices, _BUDGET)
    # The page contains only names that some level shows.
    shown, name = np.unique(drawn.name, return_inverse=True)
    all_names = list(names)
    return TimelineSlices(
        tuple(rows),
        drawn.row,
        drawn.start_ns,
        drawn.end_ns,
        drawn.role,
        name.astype(np.int64),
        tuple(roles),
        tuple(all_names[place] for place in shown.tolist()),
        starts,
    )


def _row_keys(columns: Columns) -> tuple[Ints, list[str]]:
    """Assign each activity a row of its rank: the first for compute and copies, then one per axis."""
    codes, axes = columns.codes("axis")
    is_communication = columns.matches("kind", _COMMUNICATION)
    present = {axes[code] or "unknown" for code in np.unique(codes[is_communication]).tolist()}
    order = ["", *(str(axis) for axis in axes_in_order(dict.fromkeys(present, 0)))]
    place_of_axis = {axis: place for place, axis in enumerate(order)}
    place = lookup([place_of_axis.get(axis or "unknown", 0) for axis in axes], codes, missing=0)
    return np.where(is_communication, place, 0).astype(np.int64), order


def _merged(codes: Ints, names: list[str]) -> tuple[Ints, list[str]]:
    """Put all axes on one row if there would be too many rows."""
    return np.minimum(codes, 1), ["", "comm"] if len(names) > 1 else [""]


def _roles(columns: Columns) -> tuple[Ints, list[str]]:
    """Return each activity's role as a code; `roles` has one for each pair of kind and axis, kind by kind."""
    codes, axes = columns.codes("axis")
    kinds, kind_names = columns.codes("kind")
    roles = [
        f"comm:{axis or 'unknown'}" if kind == _COMMUNICATION else "memcpy" if kind.startswith("mem") else "compute"
        for kind in kind_names
        for axis in axes
    ]
    return kinds * len(axes) + codes, roles


def _coded(codes: Ints, texts: list[str], code_of_text: dict[str, int]) -> Ints:
    """Map codes of one rank's texts to those of all ranks; only used texts get one."""
    used, inverse = np.unique(codes, return_inverse=True)
    # The code of each used text, over all ranks.
    places = np.array(
        [code_of_text.setdefault(texts[code], len(code_of_text)) for code in used.tolist()], dtype=np.int64
    )
    return places[inverse] if len(places) else np.zeros(0, np.int64)


# Critical path: the work that determines the length of the run; only shortening it shortens the step.


def build_critical_path(context: Context, result: CriticalPathResult) -> list[Block]:
    """Build the critical path by part and by rank, and its work."""
    blocks: list[Block] = [*key_figures(context, "critical_path")]
    if result.pieces:
        blocks += [_bar(context.figures, result), _ranks_on_path(context.figures)]
    if result.bounding:
        blocks.append(rows_table(result.bounding, "Work on the critical path"))
    return blocks


def _bar(figures: Figures, result: CriticalPathResult) -> Stack:
    parts = figures.along("critical_path_time", "part")
    stack = tuple(
        StackPart(label_of(str(part)), str(part), value)
        for part, value in sorted(parts.items(), key=lambda item: (-item[1], str(item[0])))
    )
    return Stack("Critical path by part", result.length_ns, Unit.NS, stack)


def _ranks_on_path(figures: Figures) -> DataTable:
    """Build the table of time on the path and slack by rank."""
    path = figures.along("critical_path_time", "rank")
    share = figures.along("critical_path_fraction", "rank")
    slack = figures.along("slack", "rank")
    ranks = sorted(path.keys() | slack.keys(), key=lambda rank: (-path.get(rank, 0), rank))
    columns = {"rank": None, "on the path": Unit.NS, "share of path": Unit.FRACTION, "slack per step": Unit.NS}
    return data_table("Ranks", columns, [(rank, path.get(rank), share.get(rank), slack.get(rank)) for rank in ranks])
