"""Damage of a trace file: repairs of unusual formats, counts of what is lost, and health rows for both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.arrow import array_of, coded, numbers_of
from usp_prof.columns.rows import first_of_run
from usp_prof.inputs.growing import take_texts
from usp_prof.inputs.kineto.columns import Counts
from usp_prof.inputs.source import PackingFault
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.printable import first_few


def join_begin_end(columns: dict[str, Any], rows: int) -> tuple[Flags, int]:
    """Convert each B with a matching E to an X with a duration; return the rows to keep and the number of unmatched."""
    keep = np.ones(rows, bool)
    phase: pa.DictionaryArray = columns["phase"]
    phases = phase.dictionary.to_pylist()
    if "B" not in phases and "E" not in phases:
        return keep, 0
    letters = numbers_of(phase.indices)  # each event's phase, as an index in `phases`
    begins = letters == (phases.index("B") if "B" in phases else -1)
    ends = letters == (phases.index("E") if "E" in phases else -1)
    marks = np.flatnonzero(begins | ends)
    process = numbers_of(columns["process"].indices)[marks].astype(np.int64)
    lane = process * (1 << 32) + numbers_of(columns["thread"].indices)[marks]
    # Sorted by lane, then by time, then by position in the file.
    order = np.lexsort((marks, columns["start_ns"][marks], lane))
    marks, lane, opens = marks[order], lane[order], begins[marks[order]]
    first, last = _pairs(lane, opens)
    opened, closed = marks[first], marks[last]
    starts = columns["start_ns"]
    columns["dur_ns"][opened] = starts[closed] - starts[opened]
    values = [*phases, "X"] if "X" not in phases else phases
    letters = letters.copy()
    letters[opened] = values.index("X")
    columns["phase"] = coded(letters, values)
    keep[closed] = False
    lonely_ends = np.flatnonzero(ends & keep)
    keep[lonely_ends] = False
    return keep, len(marks) - 2 * len(opened)


def _pairs(lane: Ints, opens: Flags) -> tuple[Ints, Ints]:
    """Match begins and ends like brackets within each lane; return the positions of both.

    B B E E has the depths 1 2 2 1: the second matches the third, the first matches the fourth.
    """
    # +1 at each begin, -1 at each end: the running sum is the depth after a mark; an end's own depth is one more.
    depth_behind = np.cumsum(np.where(opens, 1, -1))
    depth = np.where(opens, depth_behind, depth_behind + 1)
    # Counted from the start of each lane, so events left open in an earlier lane do not count.
    first_of_lane = np.flatnonzero(first_of_run(lane))
    before_lane = np.r_[0, depth_behind][first_of_lane]
    depth = depth - np.repeat(before_lane, np.diff(np.r_[first_of_lane, len(lane)]))
    order = np.lexsort((np.arange(len(lane)), depth, lane))
    mark, following = order[:-1], order[1:]
    is_alike = (lane[mark] == lane[following]) & (depth[mark] == depth[following])
    is_pair = is_alike & opens[mark] & ~opens[following]
    return mark[is_pair], following[is_pair]


LOSS, ERROR, INFO = Severity.DATA_LOSS, Severity.ERROR, Severity.INFO


@dataclass(slots=True)
class Damage:
    """Counts collected while reading one file."""

    invalid_utf8: int = 0
    events_lost: int = 0
    bytes_lost: int = 0
    field_bytes_lost: int = 0
    repaired: int = 0
    duplicates: int = 0
    unpaired: int = 0
    missing_duration: int = 0
    negative_duration: int = 0
    without_phase: int = 0
    ends_early: bool = False
    odd_values: list[str] = field(default_factory=list)
    """Fields next to the events whose values are out of range."""
    fault: PackingFault | None = None

    def rows(self, counts: Counts, *, events: int, based: bool) -> Iterator[HealthRow]:
        """Yield one row per kind of damage found."""
        if self.ends_early or (self.fault is not None and self.fault.kind == "truncated"):
            yield HealthRow(
                "truncated",
                LOSS,
                count=max(1, self.bytes_lost),
                detail=f"{events:,} complete events are kept, {self.bytes_lost:,} bytes of broken text are dropped, "
                "and later events are missing",
            )
        elif self.events_lost:
            yield HealthRow(
                "broken_events",
                LOSS,
                count=self.events_lost,
                detail=f"{self.events_lost} places are not valid JSON; {self.bytes_lost} bytes were skipped",
            )
        if self.fault is not None and self.fault.kind == "corrupt":
            lost = self.fault.packed_bytes_lost
            yield HealthRow(
                "corrupt_packing",
                LOSS,
                count=max(1, lost),
                detail=f"{self.fault.detail}: {lost} compressed bytes were lost",
            )
        if self.field_bytes_lost:
            detail = f"fields next to the events are damaged; {self.field_bytes_lost} bytes were skipped"
            yield HealthRow("broken_fields", LOSS, count=self.field_bytes_lost, detail=detail)
        if self.odd_values:
            examples = first_few(self.odd_values, 4)
            detail = f"fields next to the events are outside their range and count as missing: {examples}"
            yield HealthRow("odd_values", ERROR, count=len(self.odd_values), detail=detail)
        yield from self._small(counts)
        if not events:
            yield HealthRow("no_events", ERROR, detail="the trace has no events")
        elif not based:
            detail = "no baseTimeNanoseconds: times count from the file's own zero"
            yield HealthRow("no_base_time", INFO, detail=detail)

    def _small(self, counts: Counts) -> Iterator[HealthRow]:
        tallies = (
            (
                "repaired_events",
                ERROR,
                self.repaired,
                "events with values of no use (NaN, wrong types): the rest is kept",
            ),
            ("invalid_utf8", ERROR, self.invalid_utf8, "bytes that are no UTF-8, shown as U+FFFD"),
            ("duplicate_events", ERROR, self.duplicates, "events stand twice, alike in every field; kept once"),
            ("unpaired_phases", ERROR, self.unpaired, "begin or end events without their partner"),
            ("missing_duration", ERROR, self.missing_duration, "events without a usable duration, kept as instants"),
            ("negative_duration", ERROR, self.negative_duration, "events with a negative duration, kept as instants"),
            ("events_without_phase", LOSS, self.without_phase, "events without a phase (ph); they count nowhere"),
            ("unplaced_events", LOSS, counts.unplaced, "events without a usable time; they cannot be placed"),
            ("finer_than_ns", INFO, counts.finer_than_ns, "times finer than a nanosecond, rounded to the nearest"),
        )
        for code, severity, count, description in tallies:
            if count:
                yield HealthRow(code, severity, count=count, detail=f"{count} {description}")


# Duplicates: events that occur twice in the file, equal in every field including the arguments.


_CODED = ("phase", "category", "name", "process", "thread")
_TIMES = ("start_ns", "dur_ns")
_ODD = np.uint64(0x9E3779B97F4A7C15)


def repeated(columns: dict[str, Any], keep: Flags) -> tuple[Flags, int]:
    """Remove duplicates from `keep`, except the first of each; return the rows to keep and the number removed."""
    key = _mixed(columns)
    ordered = np.sort(key)
    twins = ordered[1:][ordered[1:] == ordered[:-1]]  # keys that occur more than once
    if not len(twins):
        return keep, 0
    suspects = np.flatnonzero(np.isin(key, twins) & keep)
    repeated_rows = _repeats(columns, suspects)
    keep[repeated_rows] = False
    return keep, len(repeated_rows)


def _repeats(columns: dict[str, Any], rows: Ints) -> Ints:
    """Return the rows that duplicate an earlier one among these."""
    fields = {name: array_of(numbers_of(columns[name].indices)[rows]) for name in _CODED}
    fields |= {name: array_of(columns[name][rows]) for name in _TIMES}
    fields["args"] = take_texts(columns["args"], rows)
    groups = pa.table({**fields, "row": array_of(rows)}).group_by(list(fields), use_threads=False)
    return np.setdiff1d(rows, numbers_of(groups.aggregate([("row", "min")]).column("row_min")))


def _mixed(columns: dict[str, Any]) -> NDArray[np.uint64]:
    """Hash the cheap fields of each event; different events rarely collide, and are compared if they do."""
    key: NDArray[np.uint64] = columns["start_ns"].astype(np.uint64)
    key = key * _ODD
    for name in ("dur_ns", "correlation", "external_id"):
        key ^= columns[name].astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
        key *= _ODD
    for name in ("name", "thread", "process"):
        key ^= numbers_of(columns[name].indices).astype(np.uint64) + np.uint64(0x165667B19E3779F9)
        key *= _ODD
    return key
