"""Host waits: calls of a rank's host that came back only when its device had come so far.

Each function adds its edges, and takes from `gap`, the think times by node, what these explain. `launched_at` says by
node when the host launched it, NEVER where that is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import last_by, lookup, rows_by_code, rows_of, sorted_by
from usp_prof.replay.graph import NEVER, EdgeKind, NodeKind

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.columns.table import Columns
    from usp_prof.replay.build import RankNodes
    from usp_prof.replay.dependencies import RankEdges

_SEEMINGLY_EARLY = 256
"""So many pieces of work that seem to have ended before their launch are passed over; beyond it nothing is known."""
RESUMED_NS = 100_000
"""A host that waited for the device goes on so soon after the awaited work ended."""
UNTRACED_WAIT_NS = 1_000_000
"""A shorter gap of the host is ordinary work, also where it happens to end when some work of the device does."""
FULL_QUEUE = 512
"""With so many launches pending, a launch can block: the driver's queue holds about 1,000."""


def add_returns(nodes: RankNodes, edges: RankEdges, gap: Ints, launched_at: Ints) -> None:
    """Let a host call that waits come back when the device work that it waited for has ended: what it had launched.

    Where the clocks of host and device differ, work seems to end before its launch: no call before that waited for it.
    """
    back = np.flatnonzero(nodes.kind == NodeKind.RETURN)
    device = np.flatnonzero(nodes.of_device)
    if not len(back) or not len(device):
        return
    by_end = sorted_by(nodes.end, device)
    # By call: the place in `by_end` of the last work that had ended when it came back, -1 where none had; stepped back
    # over work that was launched only then.
    place = np.searchsorted(nodes.end[by_end], nodes.start[back], side="right") - 1
    for _ in range(_SEEMINGLY_EARLY):
        is_early = (place >= 0) & (launched_at[by_end[place]] >= nodes.start[back])
        if not is_early.any():
            break
        place[is_early] -= 1
    is_known = (place >= 0) & (launched_at[by_end[place]] < nodes.start[back])
    awaited = np.where(is_known, by_end[place], -1)
    called_at = nodes.start[back] - gap[back]
    has_waited = is_known & (nodes.end[awaited] > called_at)
    rows, source = back[has_waited], awaited[has_waited]
    edges.add(source, rows, nodes.start[rows] - nodes.end[source], EdgeKind.SYNC)
    gap[rows] = np.minimum(gap[rows], 0)


def add_admissions(nodes: RankNodes, edges: RankEdges, gap: Ints) -> None:
    """Let a launch that stood before a full queue come back when work of its stream has ended."""
    freeing, admitted = freed_by(nodes)
    edges.add(freeing, admitted, nodes.start[admitted] - nodes.end[freeing], EdgeKind.QUEUE)
    gap[admitted] = np.minimum(gap[admitted], 0)


def add_untraced_waits(nodes: RankNodes, edges: RankEdges, gap: Ints, launched_at: Ints) -> None:
    """Let a host that stood still until the device was done wait for it, though the trace names no call that waits.

    Some waits leave no call: the caching allocator waits for an event before it frees, NCCL polls, a launch blocks
    while the launch queue is full. They look like a pause, but they end when the device's work does:
      1. the gap is long (UNTRACED_WAIT_NS), and within it ends work that was launched before it;
      2. the host goes on within RESUMED_NS of that end;
      3. and that work was the last on its stream that had been launched by then, or the launch queue was full.
    Without the third, any pause beside a busy device would seem to be a wait.
    """
    host = np.flatnonzero((nodes.kind == NodeKind.HOST) & (gap > UNTRACED_WAIT_NS))
    device = np.flatnonzero(nodes.of_device)
    if not len(host) or not len(device):
        return
    stopped, resumed = nodes.start[host] - gap[host], nodes.start[host]
    awaited = last_by(nodes.end, device, by=resumed)
    is_known = (awaited >= 0) & (launched_at[awaited] > NEVER) & (launched_at[awaited] <= stopped)
    is_soon = (nodes.end[awaited] > stopped) & (resumed - nodes.end[awaited] <= RESUMED_NS)
    # Nodes are sorted by lane, so the work behind the awaited one on its stream is the next node.
    follower = np.minimum(awaited + 1, len(nodes.lane) - 1)
    is_followed = (nodes.lane[follower] == nodes.lane[awaited]) & (follower != awaited)
    is_drained = ~is_followed | (launched_at[follower] > stopped)
    # Pending when the host went on: launched, but not begun.
    launched_by_then = np.searchsorted(np.sort(launched_at[device]), resumed)
    begun_by_then = np.searchsorted(np.sort(nodes.start[device]), resumed)
    is_full = launched_by_then - begun_by_then >= FULL_QUEUE
    has_waited = is_known & is_soon & (is_drained | is_full)
    target, source = host[has_waited], awaited[has_waited]
    edges.add(source, target, nodes.start[target] - nodes.end[source], EdgeKind.SYNC)
    gap[target] = 0


# Full queues: launches that stood until the device took earlier work from their stream's queue.
#
# The driver's queue holds a limited number of launches. While it is full, a launch comes back only when some work of
# its stream has ended: the call seems slow, but it waits for the device, and with faster kernels it would not.

LONG_NS = 20_000
"""A launch takes a few microseconds; one that takes longer may have waited."""
QUICK_NS = 5_000
"""What a launch takes where all of a trace stood before a full queue."""
DEEP_SHARE, LEAST_DEPTH = 0.9, 16
"""A queue is full where about as many launches are pending as ever; one that never held 16 was never full."""
ADMITTED_NS = 20_000
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
        of_stream = sorted_by(work["start_ns"], unordered)
        # By call of this stream: its row in launches, and the first work that it started (a graph's starts many).
        rows, first = np.unique(launch[of_stream], return_index=True)
        rows, first = rows[rows >= 0], first[rows >= 0]
        if len(rows) < FEWEST:
            continue
        begun = np.sort(work["start_ns"][of_stream[first]])
        before = of_stream[: int(first.min())]  # launched before the recording began, and still in the queue then
        rows = sorted_by(launches["start_ns"], rows)
        called, call_ns = launches["start_ns"][rows], launches["dur_ns"][rows]
        # By call: launched before it, in the trace and before the trace began, less what had begun on the device.
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
    """Say what a launch takes itself, from those that did not wait for room."""
    quick = lengths[lengths <= LONG_NS]
    return int(np.median(quick)) if len(quick) else QUICK_NS


def freed_by(nodes: RankNodes) -> tuple[Ints, Ints]:
    """Give for each launch that waited for room the work that ended last on its stream before it came back."""
    admitted = np.flatnonzero(nodes.kind == NodeKind.ADMITTED)
    device = np.flatnonzero(nodes.of_device)
    if not len(admitted):
        return admitted, admitted
    # By event number of a call: the lane of what it launched. Work without a call (-1) writes into the last place.
    lane_of = np.full(int(max(nodes.event[admitted].max(), nodes.launch.max())) + 2, -1)
    lane_of[nodes.launch[device]] = nodes.lane[device]
    of_lane = rows_by_code(nodes.lane[device])
    source = np.full(len(admitted), -1)
    for lane, rows in rows_by_code(lane_of[nodes.event[admitted]]).items():
        if lane not in of_lane:
            continue
        by_end = sorted_by(nodes.end, device[of_lane[lane]])
        place = np.searchsorted(nodes.end[by_end], nodes.start[admitted[rows]], side="right") - 1
        source[rows] = lookup(by_end, place, missing=-1)
    is_known = source >= 0
    return source[is_known], admitted[is_known]
