"""Unrecorded steps: how long a step takes before the recording begins, since recording slows the host.

The last steps before the first window are timed from the begin of the first to the end of the last, on the device
where there is one. A single time between two steps would say nothing there: the host runs ahead.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from usp_prof.record.surroundings import uses_cuda

if TYPE_CHECKING:
    from usp_prof.record.options import Window

UNSETTLED = 2
"""The first steps of a loop allocate and compile."""
LEAST, MOST = 3, 32
"""Fewer steps say little, and those long before the window are less alike."""


class UnrecordedSteps:
    """Times the steps `first` to `last`, before the window; a step that raised spoils the time."""

    def __init__(self, window: Window) -> None:
        self.last = window.skip + window.wait
        first = max(UNSETTLED, self.last - MOST)
        self.first = first if self.last - first >= LEAST else -1
        self._begin: torch.cuda.Event | int | None = None

    def begin(self) -> None:
        """Begin with the step that begins now."""
        self._begin = _moment()

    def spoil(self) -> None:
        """Forget what was timed: a step did not end well."""
        self._begin = None

    def end(self) -> float:
        """Return the mean step in ns; 0 where it is not known. Waits for the device, as the profiler's start does."""
        begin, self._begin = self._begin, None
        if begin is None:
            return 0.0
        steps, end = self.last - self.first, _moment()
        if isinstance(begin, int) and isinstance(end, int):
            return (end - begin) / steps
        if isinstance(begin, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
            end.synchronize()
            return float(begin.elapsed_time(end)) * 1e6 / steps
        return 0.0  # the device was taken up in between


def _moment() -> torch.cuda.Event | int:
    """Mark this moment, on the device where one computes."""
    if not uses_cuda():
        return time.perf_counter_ns()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
