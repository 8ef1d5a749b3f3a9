"""Table of steps: when each step ran on a rank."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import lookup, range_at
from usp_prof.model.schema import RANK, Schema, flag, integer, text
from usp_prof.tables.build import table

WINDOW = "window"
"""Source of a step that is the whole trace, because steps are unknown."""

SCHEMA = Schema(
    "steps",
    "Steps of each rank: contiguous windows of device time, and the host marks behind them.",
    (
        RANK,
        integer("step", "Step number as the trace counts it."),
        integer("start_ns", "Start of the device window, on this rank's clock.", "ns"),
        integer("end_ns", "End of the device window: the start of the next step's, or the last device activity.", "ns"),
        integer("host_start_ns", "Start of the host mark.", "ns"),
        integer("host_end_ns", "End of the host mark.", "ns"),
        text(
            "source",
            "profiler_step, mark (the recorder's), annotation, calls (periods of the calls that all ranks share), "
            "pattern (inferred) or window (the whole trace).",
        ),
        flag(
            "is_cut",
            "Whether the rank's recording ended before the step did: it lacks the wait with which other steps end.",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of one rank, in order: host marks and device windows."""

    number: Ints
    start: Ints
    end: Ints
    host_start: Ints
    host_end: Ints
    source: str
    without_work: int = 0
    """Marks that launched no device work, although others did."""
    by_host: bool = False
    """Whether the windows are the host's marks although there is device work, because its launches are unknown."""

    def of_device(self, start: Ints) -> Ints:
        """Return the step in whose device window work starts; -1 outside."""
        return _within(self.start, self.end, self.number, start)

    def of_host(self, start: Ints) -> Ints:
        """Return the step in whose host mark an event starts; -1 outside."""
        return _within(self.host_start, self.host_end, self.number, start)


def build(rank: int, steps: Steps, is_cut: Flags) -> pa.Table:
    """Build the table; `is_cut` marks steps cut by the end of the recording."""
    columns = {
        "rank": rank,
        "step": steps.number,
        "start_ns": steps.start,
        "end_ns": steps.end,
        "host_start_ns": steps.host_start,
        "host_end_ns": steps.host_end,
        "source": steps.source,
        "is_cut": is_cut,
    }
    return table(SCHEMA, columns, len(steps.number))


def _within(start: Ints, end: Ints, number: Ints, at: Ints) -> Ints:
    """Return the number of the step at each time; -1 outside of all."""
    return lookup(number, range_at(start, end, at), missing=-1)
