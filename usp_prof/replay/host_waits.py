"""Host waits: calls of a rank's host that came back only when its device had come so far.

Each function adds its edges, and takes from `gap`, the think times by node, what these explain. `launched_at` says by
node when the host launched it, NEVER where that is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import last_by, sorted_by
from usp_prof.replay.graph import NEVER, EdgeKind, NodeKind
from usp_prof.replay.hidden_waits import freed_by

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Ints
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


def add_returns(n: RankNodes, edges: RankEdges, gap: Ints, launched_at: Ints) -> None:
    """Let a host call that waits come back when the device work that it waited for has ended: what it had launched.

    Where the clocks of host and device differ, work seems to end before its launch: no call before that waited for it.
    """
    back = np.flatnonzero(n.kind == NodeKind.RETURN)
    device = np.flatnonzero(n.of_device)
    if not len(back) or not len(device):
        return
    by_end = sorted_by(n.end, device)
    # By call: the place in `by_end` of the last work that had ended when it came back, -1 where none had; stepped back
    # over work that was launched only then.
    place = np.searchsorted(n.end[by_end], n.start[back], side="right") - 1
    for _ in range(_SEEMINGLY_EARLY):
        is_early = (place >= 0) & (launched_at[by_end[place]] >= n.start[back])
        if not is_early.any():
            break
        place[is_early] -= 1
    is_known = (place >= 0) & (launched_at[by_end[place]] < n.start[back])
    awaited = np.where(is_known, by_end[place], -1)
    called_at = n.start[back] - gap[back]
    has_waited = is_known & (n.end[awaited] > called_at)
    rows, source = back[has_waited], awaited[has_waited]
    edges.add(source, rows, n.start[rows] - n.end[source], EdgeKind.SYNC)
    gap[rows] = np.minimum(gap[rows], 0)


def add_admissions(n: RankNodes, edges: RankEdges, gap: Ints) -> None:
    """Let a launch that stood before a full queue come back when work of its stream has ended."""
    freeing, admitted = freed_by(n)
    edges.add(freeing, admitted, n.start[admitted] - n.end[freeing], EdgeKind.QUEUE)
    gap[admitted] = np.minimum(gap[admitted], 0)


def add_untraced_waits(n: RankNodes, edges: RankEdges, gap: Ints, launched_at: Ints) -> None:
    """Let a host that stood still until the device was done wait for it, though the trace names no call that waits.

    Some waits leave no call: the caching allocator waits for an event before it frees, NCCL polls, a launch blocks
    while the launch queue is full. They look like a pause, but they end when the device's work does:
      1. the gap is long (UNTRACED_WAIT_NS), and within it ends work that was launched before it;
      2. the host goes on within RESUMED_NS of that end;
      3. and that work was the last on its stream that had been launched by then, or the launch queue was full.
    Without the third, any pause beside a busy device would seem to be a wait.
    """
    host = np.flatnonzero((n.kind == NodeKind.HOST) & (gap > UNTRACED_WAIT_NS))
    device = np.flatnonzero(n.of_device)
    if not len(host) or not len(device):
        return
    stopped, resumed = n.start[host] - gap[host], n.start[host]
    awaited = last_by(n.end, device, by=resumed)
    is_known = (awaited >= 0) & (launched_at[awaited] > NEVER) & (launched_at[awaited] <= stopped)
    is_soon = (n.end[awaited] > stopped) & (resumed - n.end[awaited] <= RESUMED_NS)
    # Nodes are sorted by lane, so the work behind the awaited one on its stream is the next node.
    follower = np.minimum(awaited + 1, len(n.lane) - 1)
    is_followed = (n.lane[follower] == n.lane[awaited]) & (follower != awaited)
    is_drained = ~is_followed | (launched_at[follower] > stopped)
    # Pending when the host went on: launched, but not begun.
    launched_by_then = np.searchsorted(np.sort(launched_at[device]), resumed)
    begun_by_then = np.searchsorted(np.sort(n.start[device]), resumed)
    is_full = launched_by_then - begun_by_then >= FULL_QUEUE
    has_waited = is_known & is_soon & (is_drained | is_full)
    target, source = host[has_waited], awaited[has_waited]
    edges.add(source, target, n.start[target] - n.end[source], EdgeKind.SYNC)
    gap[target] = 0
