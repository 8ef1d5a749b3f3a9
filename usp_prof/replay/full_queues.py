"""Full launch queues: launches that waited until the device took earlier work from their stream's queue.

The driver's queue holds a limited number of launches. While it is full, a launch returns only when some work of its
stream has ended. The call looks slow, but it waits for the device. With faster kernels it would not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import lookup, rows_by_code, rows_of, sorted_by

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.columns.table import Columns

LONG_NS = 20_000
"""A launch takes a few microseconds; a launch longer than this may have waited."""
QUICK_NS = 5_000
"""Assumed duration of a launch if all launches of a trace met a full queue."""
DEEP_SHARE, LEAST_DEPTH = 0.9, 16
"""A queue is full if it is near its largest depth in the trace; one that never held 16 launches was never full."""
ADMITTED_NS = 20_000
"""A launch that waited for room returns within this time after work on its stream has ended."""
FEWEST = 8
"""Minimum number of waiting launches per stream; one or two that end together with a kernel are a coincidence."""


def waited_for_room(launches: Columns, work: Columns, shift: int) -> Flags:
    """Mark the launches that waited because their queue was full.

    For each stream, in the order of launch:
      1. count the pending work when the call began: launched (also before the recording), but not started;
      2. the queue was full if that count is close to the largest in the trace;
      3. mark the calls made then that are long and return right after work of the stream has ended.

    `shift` converts host times to the device clock.
    """
    marked = np.zeros(len(launches), dtype=bool)
    if not (launches["kernels"] > 0).any():
        return marked
    launch = rows_of(launches["event"], work["launch_event"])  # launch row of each activity; -1 if not in the trace
    for unordered in rows_by_code(work.codes("lane")[0]).values():
        of_stream = sorted_by(work["start_ns"], unordered)
        # Launch row of each call of this stream, and its first activity (a CUDA graph launch starts many).
        rows, first = np.unique(launch[of_stream], return_index=True)
        rows, first = rows[rows >= 0], first[rows >= 0]
        if len(rows) < FEWEST:
            continue
        begun = np.sort(work["start_ns"][of_stream[first]])
        before = of_stream[: int(first.min())]  # queued before the recording began
        rows = sorted_by(launches["start_ns"], rows)
        called, call_ns = launches["start_ns"][rows] + shift, launches["dur_ns"][rows]
        # By call: earlier launches (in the trace and before it) minus those that had started on the device.
        pending = np.arange(len(rows)) - np.searchsorted(begun, called)
        pending += len(before) - np.searchsorted(work["start_ns"][before], called)
        if pending.max() < LEAST_DEPTH:
            continue
        ended = np.sort(work["start_ns"][of_stream] + work["dur_ns"][of_stream])
        place = np.searchsorted(ended, called + call_ns, side="right") - 1
        last_end = lookup(ended, place, missing=-1)
        is_soon = (last_end > called) & (called + call_ns - last_end <= ADMITTED_NS)
        is_deep = pending >= DEEP_SHARE * pending.max()
        waited = is_soon & is_deep & (call_ns > LONG_NS)
        if waited.sum() >= FEWEST:
            marked[rows[waited]] = True
    return marked


def usual_launch_ns(lengths: Ints) -> int:
    """Return the median duration of launches that did not wait for room in a queue."""
    quick = lengths[lengths <= LONG_NS]
    return int(np.median(quick)) if len(quick) else QUICK_NS
