"""What was wrong with the file, in words? Tallies of damage as rows of health."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof.model.health import HealthRow, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from usp_prof.readers._columns import Counts
    from usp_prof.readers.source import PackingFault

LOSS, ERROR, INFO = Severity.DATA_LOSS, Severity.ERROR, Severity.INFO


@dataclass(slots=True)
class Damage:
    """Tallies while reading one file."""

    invalid_utf8: int = 0
    events_lost: int = 0
    bytes_lost: int = 0
    field_bytes_lost: int = 0
    repaired: int = 0
    duplicates: int = 0
    unpaired: int = 0
    missing_duration: int = 0
    negative_duration: int = 0
    ends_early: bool = False
    fault: PackingFault | None = None

    def rows(self, counts: Counts, *, events: int, based: bool) -> Iterator[HealthRow]:
        """Give a row for each kind of damage that was met."""
        if self.ends_early or (self.fault is not None and self.fault.kind == "truncated"):
            yield HealthRow(
                "truncated",
                LOSS,
                count=max(1, self.bytes_lost),
                detail=f"the file ends early: all {events} complete events are kept, {self.bytes_lost} bytes of broken "
                "text were given up; what came after the end is not known",
            )
        elif self.events_lost:
            yield HealthRow(
                "broken_events",
                LOSS,
                count=self.events_lost,
                detail=f"{self.events_lost} places in the text are no JSON: {self.bytes_lost} bytes were passed over",
            )
        if self.fault is not None and self.fault.kind == "corrupt":
            lost = self.fault.packed_bytes_lost
            yield HealthRow(
                "corrupt_packing",
                LOSS,
                count=max(1, lost),
                detail=f"{self.fault.detail}: {lost} packed bytes were lost",
            )
        if self.field_bytes_lost:
            detail = f"the fields beside the events are damaged: {self.field_bytes_lost} bytes were passed over"
            yield HealthRow("broken_fields", LOSS, count=self.field_bytes_lost, detail=detail)
        yield from self._small(counts)
        if not events:
            yield HealthRow("no_events", ERROR, detail="the file is a trace without a single event")
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
            ("missing_duration", ERROR, self.missing_duration, "events without a duration, kept as instants"),
            ("negative_duration", ERROR, self.negative_duration, "events with a negative duration, kept as instants"),
            ("unplaced_events", LOSS, counts.unplaced, "events without a usable time; they cannot be placed"),
            ("finer_than_ns", INFO, counts.finer_than_ns, "times finer than a nanosecond, rounded to the nearest"),
        )
        for code, severity, count, what in tallies:
            if count:
                yield HealthRow(code, severity, count=count, detail=f"{count} {what}")
