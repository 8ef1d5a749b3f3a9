"""Full launch queues: launches that waited until the device took earlier work from a queue.

The driver's queue holds a limited number of launches. While it is full, a launch returns only when earlier work has
ended. The call looks slow, but it waits for the device. With faster kernels, or without a late peer that holds up a
collective, it would not. Such launches are found in two ways:

  repeated  several launches of a stream return right after its work has ended, all at the same depth of the queue
  unlikely  one launch returns right after work has ended, and no other work ended for a long time before
"""

from __future__ import annotations

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import lookup, rows_by_code, rows_of, sorted_by
from usp_prof.columns.table import Columns
from usp_prof.replay.graph import LEFT_BY_CLOCKS_NS, NEVER

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
CHANCE = 0.02
"""Largest probability that a launch that waited for nothing returns so soon after work has ended."""


def waited_for_room(launches: Columns, work: Columns, shift: int) -> Flags:
    """Mark the launches that waited because a queue was full.

    `shift` converts host times to the device clock.
    """
    if not (launches["kernels"] > 0).any():
        return np.zeros(len(launches), dtype=bool)
    launch = rows_of(launches["event"], work["launch_event"])  # launch row of each activity; -1 if not in the trace
    return _repeated_waits(launches, work, launch, shift) | _unlikely_waits(launches, work, launch, shift)


def _repeated_waits(launches: Columns, work: Columns, launch: Ints, shift: int) -> Flags:
    """Mark launches that waited on streams whose queue was full several times.

    For each stream, in the order of launch:
      1. count the pending work when the call began: launched (also before the recording), but not started;
      2. the queue was full if that count is close to the largest in the trace;
      3. mark the calls made then that are long and return right after work of the stream has ended.
    """
    marked = np.zeros(len(launches), dtype=bool)
    for unordered in rows_by_code(work.codes("lane")[0]).values():
        of_stream = sorted_by(work["start_ns"], unordered)
        # Launch row of each call of this stream, and its first activity (a CUDA graph launch starts many).
        rows, first = np.unique(launch[of_stream], return_index=True)
        rows, first = rows[rows >= 0], first[rows >= 0]
        if len(rows) < FEWEST:
            continue
        started = np.sort(work["start_ns"][of_stream[first]])
        before = of_stream[: int(first.min())]  # queued before the recording began
        rows = sorted_by(launches["start_ns"], rows)
        called, call_ns = launches["start_ns"][rows] + shift, launches["dur_ns"][rows]
        # By call: earlier launches (in the trace and before it) minus those that had started on the device.
        pending = np.arange(len(rows)) - np.searchsorted(started, called)
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


def _unlikely_waits(launches: Columns, work: Columns, launch: Ints, shift: int) -> Flags:
    """Mark launches that return right after earlier work of any stream has ended, where chance hardly explains it."""
    called = launches["start_ns"] + shift
    by_end = sorted_by(work["start_ns"] + work["dur_ns"], np.arange(len(work)))
    ended = (work["start_ns"] + work["dur_ns"])[by_end]
    awaited = lookup(by_end, ends_awaited(ended, called, called + launches["dur_ns"]), missing=-1)
    launched_at = np.append(launches["start_ns"], NEVER)[launch]  # work from before the recording was launched earlier
    is_earlier = lookup(launched_at, awaited, missing=0) < launches["start_ns"]
    return (awaited >= 0) & is_earlier & (launches["kernels"] > 0)


def ends_awaited(ended: Ints, called: Ints, returned: Ints) -> Ints:
    """Return for each call the end of work, as a place in the ascending `ended`, that it probably waited for; or -1.

    If no work ends for a long time during a call, then some does, and the call returns, it hardly waited for nothing:
    the probability that it returns so soon by chance is the time since that end, divided by the quiet time before.

        ended  0, 10 ms, 10.1 ms; call from 1 ms to 10.15 ms: 0.15 ms after an end that 9 ms of quiet precede, so 1.7%
    """
    quiet_ns = np.diff(ended, prepend=NEVER)
    after_quiet = np.flatnonzero(quiet_ns * CHANCE >= ADMITTED_NS)
    number = np.searchsorted(ended[after_quiet], returned + LEFT_BY_CLOCKS_NS, side="right") - 1
    place = lookup(after_quiet, number, missing=-1)
    end = lookup(ended, place, missing=NEVER)
    quiet_in_call = np.minimum(lookup(quiet_ns, place, missing=0), end - called)
    return np.where(np.abs(returned - end) <= CHANCE * quiet_in_call, place, -1)


def usual_launch_ns(lengths: Ints) -> int:
    """Return the median duration of launches that did not wait for room in a queue."""
    quick = lengths[lengths <= LONG_NS]
    return int(np.median(quick)) if len(quick) else QUICK_NS
