"""Full queues: launches that stood until the device took earlier work from their stream's queue.

The driver's queue holds a limited number of launches. While it is full, a launch comes back only when some work of its
stream has ended: the call seems slow, but it waits for the device, and with faster kernels it would not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import lookup
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
    starts_work = launches["kernels"] > 0
    if not starts_work.any():
        return marked
    # By event number of a call: its row in launches.
    row_of = np.full(int(max(launches["event"].max(), work["launch_event"].max(initial=-1))) + 2, -1)
    row_of[launches["event"]] = np.arange(len(launches))
    lane, linked = work.codes("lane")[0], np.flatnonzero(work["launch_event"] >= 0)
    for each in np.unique(lane[linked]).tolist():
        mine = linked[lane[linked] == each]
        rows = np.unique(row_of[work["launch_event"][mine]])
        rows = rows[rows >= 0]
        called = launches["start_ns"][rows]
        order = np.argsort(called, kind="stable")
        rows, called = rows[order], called[order]
        # A graph's launch starts many kernels: its first tells when it was taken from the queue.
        by_launch = mine[np.lexsort((work["start_ns"][mine], work["launch_event"][mine]))]
        is_first = np.append(True, np.diff(work["launch_event"][by_launch]) != 0)
        begun = np.sort(work["start_ns"][by_launch[is_first]])
        # What was launched before the recording began, and was still in the queue then.
        earlier = np.sort(work["start_ns"][(lane == each) & (work["launch_event"] < 0) & (work["start_ns"] < begun[0])])
        pending = np.arange(len(rows)) - np.searchsorted(begun, called)
        pending += len(earlier) - np.searchsorted(earlier, called)
        if pending.max(initial=0) < LEAST_DEPTH:
            continue
        came_back = called + launches["dur_ns"][rows]
        ended = np.sort((work["start_ns"] + work["dur_ns"])[lane == each])
        place = np.searchsorted(ended, came_back, side="right") - 1
        last_end = np.where(place >= 0, ended[np.maximum(place, 0)], called)
        is_soon = (last_end > called) & (came_back - last_end <= RESUMED_NS)
        is_deep = pending >= DEEP_SHARE * pending.max()
        waited = is_soon & is_deep & (launches["dur_ns"][rows] > LONG_NS)
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
    # By event number of a call: the lane of what it launched.
    lane_of = np.full(int(max(n.event[admitted].max(), n.launch.max())) + 2, -1)
    lane_of[n.launch[device]] = n.lane[device]
    lane = lane_of[n.event[admitted]]
    source = np.full(len(admitted), -1)
    for each in np.unique(lane).tolist():
        ended = device[n.lane[device] == each]
        ended = ended[np.argsort(n.end[ended], kind="stable")]
        mine = np.flatnonzero(lane == each)
        place = np.searchsorted(n.end[ended], n.start[admitted[mine]], side="right") - 1
        source[mine] = lookup(ended, place, missing=-1)
    known = source >= 0
    return source[known], admitted[known]
