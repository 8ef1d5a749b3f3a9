"""Table of health, and the health rows of a rank's events: what limits the figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from usp_prof.columns.arrays import Ints
from usp_prof.columns.arrow import numbers_of
from usp_prof.contract import parse_mark
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.printable import spans
from usp_prof.model.schema import RANK, Schema, integer, text
from usp_prof.tables.build import table_from_rows
from usp_prof.tables.communication.parts import Parts
from usp_prof.tables.completeness import device_work
from usp_prof.tables.completeness.device_work import Promises
from usp_prof.tables.events.frame import HOST_CALLS, HOST_OPS, EventFrame
from usp_prof.tables.events.links import Links
from usp_prof.tables.steps import Steps

SCHEMA = Schema(
    "health",
    "Damage and gaps in the traces, their count, and the consequence for figures. Rank -1 is the whole run.",
    (
        RANK,
        text("code", "Short name of the fault."),
        text("severity", "info, error or data_loss."),
        integer("count", "Number of occurrences."),
        text("detail", "Description of the problem and its consequence for figures."),
        text("file", "File."),
    ),
)


def build(rows: Iterable[HealthRow]) -> pa.Table:
    """Build the table from health rows, sorted by code, then file."""
    return table_from_rows(
        SCHEMA,
        (
            {
                "rank": row.rank,
                "code": row.code,
                "severity": row.severity.value,
                "count": row.count,
                "detail": row.detail,
                "file": row.file,
            }
            for row in sorted(rows)
        ),
    )


def find(
    frame: EventFrame, links: Links, promised: Promises, steps: Steps, parts: Parts, kernels: pa.Table, overrunning: int
) -> list[HealthRow]:
    """Return the health rows of one rank."""
    counted = [*device_work.rows(frame, links, promised), *_launches(links, kernels, overrunning)]
    counted += [*_step_marks(frame, steps), *_steps(frame, links, steps), *_parts(parts), *_odd_values(frame)]
    return [
        HealthRow(code, severity, frame.rank, count, detail, frame.record.file)
        for code, severity, count, detail in counted
        if count
    ]


Row = tuple[str, Severity, int, str]


def _odd_values(frame: EventFrame) -> Iterator[Row]:
    """Return rows for values outside of their declared range: arguments, and numbers in marks."""
    rows = frame.rows("user_annotation", "gpu_user_annotation")
    odd_marks = np.count_nonzero(frame.by_name(rows, lambda name: bool((mark := parse_mark(name)) and mark.odd)))
    counts = {**frame.odd_values, "numbers in marks": int(odd_marks)}
    names = ", ".join(sorted(name for name, count in counts.items() if count))
    yield "odd_values", Severity.ERROR, sum(counts.values()), f"values outside their range count as missing: {names}"


def _launches(links: Links, kernels: pa.Table, overrunning: int) -> Iterator[Row]:
    early, ambiguous = int(links.before_window.sum()), int(links.ambiguous.sum())
    yield (
        "overrunning_durations", Severity.ERROR, overrunning,
        "device work that ends after the next work of its stream starts (late ROCm timestamps); cut at that start",
    )  # fmt: skip
    yield (
        "launched_before_window", Severity.INFO, early,
        "device work launched before recording started; it counts, but its host call and op are unknown",
    )  # fmt: skip
    yield (
        "overlapping_kernels", Severity.INFO, int(np.count_nonzero(numbers_of(kernels.column("lane")) > 0)),
        "device work that overlaps other work of its stream; it is drawn on extra lanes, and each moment counts once",
    )  # fmt: skip
    yield (
        "duplicate_correlation", Severity.INFO, links.duplicates,
        "host calls that share a correlation id (a runtime call and the driver call inside it); the outer one counts",
    )  # fmt: skip
    yield (
        "ambiguous_correlation", Severity.ERROR, ambiguous,
        "device work whose correlation id belongs to several host calls; it counts, but is linked to none of them",
    )  # fmt: skip


def _steps(frame: EventFrame, links: Links, steps: Steps) -> Iterator[Row]:
    if steps.source == "window":
        yield (
            "no_steps", Severity.INFO, 1,
            "no step marks: the whole trace is one window; call profiler.step() once per step",
        )  # fmt: skip
        return
    yield (
        "steps_inferred", Severity.INFO, len(steps.number) if steps.source == "pattern" else 0,
        "no step marks: steps are inferred from a repeating pattern of work; call profiler.step() once per step",
    )  # fmt: skip
    if not len(links.work):
        return
    step = steps.of_device(frame.start[links.work])
    yield (
        "work_outside_steps", Severity.INFO, int((step < 0).sum()),
        "device work before the first or after the last step; it is in the tables, but counts in no step",
    )  # fmt: skip
    yield (
        "steps_without_work", Severity.INFO, steps.without_work,
        "step marks that launched no device work, because recording began or ended inside them; not counted as steps",
    )  # fmt: skip
    linked = bool((links.call >= 0).any())
    missing = "the first work of a step is unknown" if linked else "no launch is linked to device work"
    yield (
        "steps_by_host", Severity.ERROR, int(steps.by_host or not linked),
        f"{missing}, so steps are the host's marks; the device runs later than these",
    )  # fmt: skip


def _parts(parts: Parts) -> Iterator[Row]:
    yield (
        "collectives_on_host_only", Severity.ERROR, len(parts) if parts.on_host else 0,
        "no device events: communication is known from its host calls only, without device times",
    )  # fmt: skip
    unmatched = int(((parts.post < 0) & np.full(len(parts), parts.gloo)).sum())
    yield (
        "gloo_without_post", Severity.INFO, unmatched,
        "gloo work without its c10d op in the trace; the operation has gloo's name",
    )  # fmt: skip


_FACTOR = 10
"""A gap between two consecutive marks is unusual if it is this many times the second largest one."""
_NOTABLE = 0.01
"""Share of the median step above which a clock jump affects measurements."""


def _step_marks(frame: EventFrame, steps: Steps) -> Iterator[Row]:
    """Yield rows for inconsistent profiler step marks: clock jumps, and steps whose mark is missing.

    `ProfilerStep#n` ends where `ProfilerStep#n+1` starts, so time between the two does not belong to the program.
    """
    if steps.source != "profiler_step" or len(steps.number) < 2:
        return
    order = np.argsort(steps.host_start, kind="stable")
    number, start, end = steps.number[order], steps.host_start[order], steps.host_end[order]
    gap, is_next = start[1:] - end[:-1], np.diff(number) == 1
    yield from _jumps(np.abs(gap[is_next]), int(np.median(end - start)))
    yield from _missing(frame, number, start, end, is_next)


def _jumps(gap: Ints, step_ns: int) -> Iterator[Row]:
    ordered = np.sort(gap)
    second_largest = int(ordered[-2]) if len(ordered) > 1 else 0
    if not len(ordered) or ordered[-1] <= max(_FACTOR * second_largest, _NOTABLE * step_ns):
        return
    detail = (
        f"{ordered[-1] / 1e6:.1f} ms pass between two consecutive step marks without any event: the clock jumped or "
        "events were shifted, so times across that moment are wrong by this amount"
    )
    yield "clock_jump", Severity.ERROR, 1, detail


def _missing(frame: EventFrame, number: Ints, start: Ints, end: Ints, is_next: Ints) -> Iterator[Row]:
    """Count recorded steps without a mark; a schedule that waits between steps records nothing."""
    at = np.sort(frame.start[frame.rows(*HOST_OPS, *HOST_CALLS)])
    inside = np.searchsorted(at, end) - np.searchsorted(at, start)
    between = np.searchsorted(at, start[1:]) - np.searchsorted(at, end[:-1])
    is_missing = ~is_next & (number[1:] > number[:-1]) & (2 * between > np.median(inside))
    missing = [n for a, b in zip(number[:-1][is_missing], number[1:][is_missing], strict=True) for n in range(a + 1, b)]
    if missing:
        n_steps = len(number) + len(missing)
        detail = (
            f"steps {spans(missing)} have no mark, although the host was recorded: {len(missing)} of {n_steps} steps"
        )
        yield "steps_missing", Severity.ERROR, len(missing), detail
