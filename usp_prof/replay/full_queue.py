"""Full queues: launches that stood until the device took earlier work from their stream's queue.

The driver's queue holds a limited number of launches. While it is full, a launch comes back only when some work of its
stream has ended: the call seems slow, but it waits for the device, and with faster kernels it would not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import lookup, rows_by_code, rows_of
from usp_prof.replay.graph import NodeKind

if TYPE_CHECKING:
    from usp_prof.columns.table import Columns
    from usp_prof.replay.build import RankNodes
    from usp_prof.replay.graph import Flags, Ints

LONG_NS = 20_000
"""A launch takes a few microseconds; one that takes longer may have waited."""
QUICK_NS = 5_000
"""What a launch takes where all of a trace stood before a full queue."""
DEEP_SHARE, LEAST_DEPTH = 0.9, 16
"""A queue is full where about as many launches are pending as ever; one that never held 16 was never full."""
RESUMED_NS = 20_000
"""A launch that waited for room comes back so soon after work on its stream has ended."""
FEWEST = 8
"""So many launches of a stream must have waited: one or two that end beside a kernel do so by chance."""


def waited_for_room(launches: Columns, work: Columns) -> Flags:
    """Mark the calls that stood before a full queue.

    Stream by stream, in the order of launch:
      1. count what was pending when the call began: launched (also before the recording), but not begun on the device;
      2. the queue was full where that count is about the largest of the whole trace;
      3. of the calls made then, those count that are long and come back right after work of the stream has ended.
    """
    marked = np.zeros(len(launches), dtype=bool)
    if not (launches["kernels"] > 0).any():
        return marked
    launch = rows_of(launches["event"], work["launch_event"])  # by work: its row in launches; -1: not in the trace
    for unordered in rows_by_code(work.codes("lane")[0]).values():
        of_stream = unordered[np.argsort(work["start_ns"][unordered], kind="stable")]
        # By call of this stream: its row in launches, and the first work that it started (a graph's starts many).
        rows, first = np.unique(launch[of_stream], return_index=True)
        rows, first = rows[rows >= 0], first[rows >= 0]
        if len(rows) < FEWEST:
            continue
        begun = np.sort(work["start_ns"][of_stream[first]])
        before = of_stream[: int(first.min())]  # launched before the recording began, and still in the queue then
        rows = rows[np.argsort(launches["start_ns"][rows], kind="stable")]
        called, taken = launches["start_ns"][rows], launches["dur_ns"][rows]
        pending = np.arange(len(rows)) - np.searchsorted(begun, called)
        pending += len(before) - np.searchsorted(work["start_ns"][before], called)
        if pending.max() < LEAST_DEPTH:
            continue
        ended = np.sort(work["start_ns"][of_stream] + work["dur_ns"][of_stream])
        place = np.searchsorted(ended, called + taken, side="right") - 1
        last_end = lookup(ended, place, missing=-1)
        is_soon = (last_end > called) & (called + taken - last_end <= RESUMED_NS)
        is_deep = pending >= DEEP_SHARE * pending.max()
        waited = is_soon & is_deep & (taken > LONG_NS)
        if waited.sum() >= FEWEST:
            marked[rows[waited]] = True
    return marked


def usual_launch_ns(lengths: Ints) -> int:
    """Say what a launch takes itself, from those that did not wait for room."""
    quick = lengths[lengths <= LONG_NS]
    return int(np.median(quick)) if len(quick) else QUICK_NS


def freed_by(n: RankNodes) -> tuple[Ints, Ints]:
    """Give for each launch that waited for room the work that ended last on its stream before it came back."""
    admitted = np.flatnonzero(n.kind == NodeKind.ADMITTED)
    device = np.flatnonzero(n.of_device)
    if not len(admitted):
        return admitted, admitted
    # By event number of a call: the lane of what it launched. Work without a call (-1) writes into the last place.
    lane_of = np.full(int(max(n.event[admitted].max(), n.launch.max())) + 2, -1)
    lane_of[n.launch[device]] = n.lane[device]
    of_lane = rows_by_code(n.lane[device])
    source = np.full(len(admitted), -1)
    for lane, mine in rows_by_code(lane_of[n.event[admitted]]).items():
        if lane not in of_lane:
            continue
        ended = device[of_lane[lane]]
        ended = ended[np.argsort(n.end[ended], kind="stable")]
        place = np.searchsorted(n.end[ended], n.start[admitted[mine]], side="right") - 1
        source[mine] = lookup(ended, place, missing=-1)
    known = source >= 0
    return source[known], admitted[known]
