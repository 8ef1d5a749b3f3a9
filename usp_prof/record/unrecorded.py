"""Unrecorded steps: step time before the recording starts, because recording slows the host.

The last steps before the first window are timed from the start of the first to the end of the last, on the device if
there is one. Individual host times would be meaningless there, because the host runs ahead.
"""

from __future__ import annotations

import time

import torch

from usp_prof.record.options import Window
from usp_prof.record.surroundings import uses_cuda

UNSETTLED = 2
"""Number of first steps to skip; they allocate memory and compile."""
LEAST, MOST = 3, 32
"""Minimum and maximum number of timed steps: fewer are unreliable, and much earlier ones are less comparable."""


class UnrecordedSteps:
    """Timer of steps `first` to `last`, before the window; a step that raises invalidates it."""

    def __init__(self, window: Window) -> None:
        self.last = window.skip + window.wait
        first = max(UNSETTLED, self.last - MOST)
        self.first = first if self.last - first >= LEAST else -1
        self._begin: torch.cuda.Event | int | None = None

    def begin(self) -> None:
        """Start timing with the current step."""
        self._begin = _moment()

    def spoil(self) -> None:
        """Discard the timing: a step failed."""
        self._begin = None

    def end(self) -> float:
        """Return the mean step in ns, or 0 if unknown. Waits for the device, like the start of the profiler."""
        begin, self._begin = self._begin, None
        if begin is None:
            return 0.0
        steps, end = self.last - self.first, _moment()
        if isinstance(begin, int) and isinstance(end, int):
            return (end - begin) / steps
        if isinstance(begin, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
            end.synchronize()
            return float(begin.elapsed_time(end)) * 1e6 / steps
        return 0.0  # the device was initialized in between


def _moment() -> torch.cuda.Event | int:
    """Record the current time, on the device if there is one."""
    if not uses_cuda():
        return time.perf_counter_ns()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
