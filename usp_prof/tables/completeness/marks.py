"""Inconsistent profiler step marks: clock jumps, and steps whose mark is missing.

`ProfilerStep#n` ends where `ProfilerStep#n+1` starts, so time between the two does not belong to the program.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from usp_prof.columns.arrays import Ints
from usp_prof.model.health import Severity, spans
from usp_prof.tables.events.frame import HOST_CALLS, HOST_OPS, EventFrame
from usp_prof.tables.steps import Steps

_FACTOR = 10
"""A gap between two consecutive marks is unusual if it is this many times the second largest one."""
_NOTABLE = 0.01
"""Share of the median step above which a clock jump affects measurements."""


def rows(frame: EventFrame, steps: Steps) -> Iterator[tuple[str, Severity, int, str]]:
    """Yield health rows for clock jumps and missing marks."""
    if steps.source != "profiler_step" or len(steps.number) < 2:
        return
    order = np.argsort(steps.host_start, kind="stable")
    number, start, end = steps.number[order], steps.host_start[order], steps.host_end[order]
    gap, is_next = start[1:] - end[:-1], np.diff(number) == 1
    yield from _jumps(np.abs(gap[is_next]), int(np.median(end - start)))
    yield from _missing(frame, number, start, end, is_next)


def _jumps(gap: Ints, step_ns: int) -> Iterator[tuple[str, Severity, int, str]]:
    ordered = np.sort(gap)
    second_largest = int(ordered[-2]) if len(ordered) > 1 else 0
    if not len(ordered) or ordered[-1] <= max(_FACTOR * second_largest, _NOTABLE * step_ns):
        return
    detail = (
        f"{ordered[-1] / 1e6:.1f} ms pass between two consecutive step marks without any event: the clock jumped or "
        "events were shifted, so times across that moment are wrong by this amount"
    )
    yield "clock_jump", Severity.ERROR, 1, detail


def _missing(
    frame: EventFrame, number: Ints, start: Ints, end: Ints, is_next: Ints
) -> Iterator[tuple[str, Severity, int, str]]:
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
