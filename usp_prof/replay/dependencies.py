"""Dependencies: what each node of a rank waited for before it could begin.

Traces record little of this. What they record (which call launched a kernel; that PyTorch makes a collective wait for
the compute before it) is taken as it is. The rest is inferred from times: work that starts right when something on
another lane ends, after a gap that nothing else explains, waited for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import last_by, lookup, rows_of
from usp_prof.replay.graph import NEVER, EdgeKind, NodeKind
from usp_prof.replay.hidden_waits import freed_by, hidden_waits

if TYPE_CHECKING:
    from usp_prof.replay.build import RankNodes
    from usp_prof.replay.graph import Flags, Ints
    from usp_prof.tables.table_set import TableSet

UNEXPLAINED_NS = 3_000
"""A device's gap of this much that neither lane nor launch explains is a wait for another stream."""
CLOSED_NS = 300_000
"""On CPU traces another thread closes a communication's range, up to so long after the one that waited goes on."""
_SEEMINGLY_EARLY = 256
"""So many pieces of work that seem to have ended before their launch are passed over; beyond it nothing is known."""
RESUMED_NS = 100_000
"""A host that waited for the device goes on so soon after the awaited work ended."""
UNTRACED_WAIT_NS = 1_000_000
"""A shorter gap of the host is ordinary work, also where it happens to end when some work of the device does."""
MOST_LATENCY_NS = 100_000
"""A launch reaches an idle device within some ten microseconds; what goes beyond this was spent in a queue."""
FULL_QUEUE = 512
"""With so many launches pending, a launch can block: the driver's queue holds about 1,000."""
HOST_WAIT_NS = 20_000
"""On CPU traces Python runs between ops all the time: only a longer gap in which a communication ends is a wait."""


@dataclass(frozen=True, slots=True, eq=False)
class RankWaits:
    """One rank's edges by its own node numbers, the gaps that are left, and where a node's begin is simply given."""

    source: Ints
    at_end: Flags
    target: Ints
    lag: Ints
    kind: Ints
    gap: Ints
    earliest: Ints


class _Edges:
    """Edges of one rank, collected kind by kind."""

    def __init__(self) -> None:
        self.columns: list[tuple[Ints, Flags, Ints, Ints, Ints]] = []

    def add(self, source: Ints, target: Ints, lag: Ints, kind: EdgeKind, *, at_end: bool = True) -> None:
        """Let each target begin `lag` after the end (else the start) of its source."""
        self.columns.append((source, np.full(len(source), at_end), target, lag, np.full(len(source), int(kind))))


def waits_of(tables: TableSet, n: RankNodes) -> RankWaits:
    """Find what each node of a rank waited for before it could begin.

    A node begins after the latest of these. Only the latest keeps the time that passed until the node began, as the
    edge's lag or the lane's gap; the others keep their least.
      lane    the node before it on the same stream or thread ended
      launch  the host launched it, plus this rank's least launch latency
      issue   communication only: the compute launched before it ended or, on a CPU, the host posted it
      wait    a communication (on a device: any work) on another lane ended inside the gap that the first three leave,
              or before one of them, where others of its kind are waited for
    """
    # Each *_at array has one entry a node: when that dependency was satisfied, NEVER where there is none.
    # Each *_source array has the node that was waited for, -1 where there is none.
    is_first = n.first_of_lane
    lane_at = np.full(len(n.lane), NEVER)
    lane_at[1:] = np.where(is_first[1:], NEVER, n.end[:-1])
    launch_source, least_latency = _launches(n)
    launched_at = np.where(launch_source >= 0, n.start[launch_source], NEVER)
    launch_at = np.where(launch_source >= 0, launched_at + least_latency, NEVER)
    issue_source, issue_at = _issues(tables, n, launch_source)
    explained_at = np.maximum(np.maximum(lane_at, launch_at), issue_at)
    unexplained_ns = n.start - np.maximum(explained_at, NEVER // 2)  # NEVER // 2: a difference to NEVER overflows
    wait_source = _other_lane(n, explained_at, unexplained_ns)
    if not n.on_device:
        # The host may have waited before it posted: the time from compute to post is that wait, not the issue.
        waited_before_post = _before_post(n, issue_source, issue_at)
        is_held = waited_before_post >= 0
        wait_source = np.where(is_held, waited_before_post, wait_source)
        issue_at = np.where(is_held, n.end[issue_source], issue_at)
        explained_at = np.where(is_held, np.maximum(lane_at, issue_at), explained_at)
    wait_at = np.where(wait_source >= 0, n.end[wait_source], NEVER)
    latest_at = np.maximum(explained_at, wait_at)

    edges = _Edges()
    rows = np.flatnonzero(wait_source >= 0)
    edges.add(wait_source[rows], rows, n.start[rows] - wait_at[rows], EdgeKind.WAIT)
    rows = np.flatnonzero(launch_source >= 0)
    is_latest = launch_at[rows] >= latest_at[rows]
    lag = np.where(is_latest, n.start[rows] - launched_at[rows], least_latency[rows])
    edges.add(launch_source[rows], rows, lag, EdgeKind.LAUNCH, at_end=False)
    rows = np.flatnonzero(issue_source >= 0)
    is_latest = issue_at[rows] >= latest_at[rows]
    begun_at = np.where(is_latest, n.start[rows], issue_at[rows])
    edges.add(issue_source[rows], rows, begun_at - n.end[issue_source[rows]], EdgeKind.ISSUE)
    # A gap below zero is kept: activities of a lane may overlap.
    gap = np.where(is_first, 0, n.start - lane_at)
    gap = np.where((lane_at >= latest_at) | (gap < 0), gap, 0)
    talks, behind = hidden_waits(n, explained_at, launched_at)
    edges.add(talks, behind, np.zeros(len(talks), np.int64), EdgeKind.WAIT)
    _boundaries(n, edges)
    _returns(n, edges, gap, launched_at)
    _admissions(n, edges, gap)
    _untraced_waits(n, edges, gap, launched_at)
    is_given = is_first & (launch_source < 0) & (issue_source < 0) & (wait_source < 0)
    source, at_end, target, lag, kind = (np.concatenate(column) for column in zip(*edges.columns, strict=True))
    return RankWaits(source, at_end, target, lag, kind, gap, np.where(is_given, n.start, NEVER))


def _launches(n: RankNodes) -> tuple[Ints, Ints]:
    """Give each device node its launching call (-1: none), and the least time a launch takes on this rank."""
    host = np.flatnonzero(n.kind == NodeKind.HOST)
    source = lookup(host, rows_of(n.event[host], n.launch), missing=-1)
    known = source >= 0
    delay = (n.start - n.start[source])[known]
    # Where the device's clock runs before the host's, work seems to begin before its launch: nothing tells the least.
    # Nor where the queue was never empty: the least delay is then that of a queue, up to a whole step.
    least = min(max(0, int(delay.min())), MOST_LATENCY_NS) if len(delay) else 0
    lag = np.zeros(len(n.lane), np.int64)
    lag[known] = np.minimum(least, delay)
    return source, lag


def _issues(tables: TableSet, n: RankNodes, launch: Ints) -> tuple[Ints, Ints]:
    """Give each communication the compute before it, and when it could have begun for that.

    On a device it follows the compute launched before it, and can begin when that ends. On a CPU it follows the compute
    that ended before it was posted, and can begin when it was posted.
    """
    source, at = np.full(len(n.lane), -1, np.int64), np.full(len(n.lane), NEVER)
    parts = np.flatnonzero(n.kind == NodeKind.COMMUNICATION)
    compute = np.flatnonzero(n.kind == NodeKind.COMPUTE)
    if not len(parts) or not len(compute):
        return source, at
    if n.on_device:
        called = np.where(launch >= 0, n.start[launch], NEVER)
        linked = compute[launch[compute] >= 0]
        before = last_by(called, linked, by=called[parts] - 1)
        good = (before >= 0) & (launch[parts] >= 0) & (n.end[before] <= n.start[parts])
        source[parts[good]] = before[good]
        at[parts[good]] = n.end[before[good]]
        return source, at
    posted = np.minimum(_posted(tables, n, parts), n.start[parts])
    source[parts] = last_by(n.end, compute, by=posted)
    at[parts] = np.where(source[parts] >= 0, posted, NEVER)
    return source, at


def _posted(tables: TableSet, n: RankNodes, parts: Ints) -> Ints:
    """Say when the host posted each part; its own start where the op is not known."""
    collectives, ops = tables.columns("collectives", n.rank), tables.columns("ops", n.rank)
    row = n.part[parts]
    op = np.where(row >= 0, collectives["op_event"][row] if len(collectives) else -1, -1)
    if not len(ops):
        return n.start[parts]
    place = rows_of(ops["event"], op)
    return np.where(place >= 0, ops["start_ns"][place], n.start[parts])


def _before_post(n: RankNodes, compute: Ints, posted: Ints) -> Ints:
    """Find for each posted part the communication that the host waited for between its last compute and the post."""
    source = np.full(len(n.lane), -1, np.int64)
    parts = np.flatnonzero((n.kind == NodeKind.COMMUNICATION) & (compute >= 0))
    parts = parts[posted[parts] - n.end[compute[parts]] > HOST_WAIT_NS]
    ended = np.flatnonzero(n.kind == NodeKind.COMMUNICATION)
    before = last_by(n.end, ended, by=posted[parts])
    good = (before >= 0) & (n.end[before] > n.end[compute[parts]]) & (n.lane[before] != n.lane[parts])
    source[parts[good]] = before[good]
    return source


def _other_lane(n: RankNodes, explained_at: Ints, unexplained_ns: Ints) -> Ints:
    """Find for each node that starts later than is explained what ended on another lane just before it; else -1."""
    source = np.full(len(n.lane), -1, np.int64)
    if n.on_device:
        ended = np.flatnonzero(n.of_device)
        seeking = np.flatnonzero(n.of_device & (unexplained_ns > UNEXPLAINED_NS))
    else:
        ended = np.flatnonzero(n.kind == NodeKind.COMMUNICATION)
        seeking = np.flatnonzero((n.kind == NodeKind.COMPUTE) & (unexplained_ns > HOST_WAIT_NS))
    # On CPU traces a communication's range is closed a little after the thread that waited for it goes on.
    slack = 0 if n.on_device else np.minimum(CLOSED_NS, unexplained_ns[seeking] // 2)
    before = last_by(n.end, ended, by=n.start[seeking] + slack)
    good = (before >= 0) & (n.end[before] > explained_at[seeking]) & (n.lane[before] != n.lane[seeking])
    good &= n.start[before] < n.start[seeking]
    source[seeking[good]] = before[good]
    return source


def _boundaries(n: RankNodes, edges: _Edges) -> None:
    """Let a step's first compute wait for all that the step before ran and had ended by then."""
    device = np.flatnonzero(n.of_device & (n.step >= 0))
    if not len(device):
        return
    # The first compute of each step.
    compute = device[n.kind[device] == NodeKind.COMPUTE]
    compute = compute[np.lexsort((n.start[compute], n.step[compute]))]
    steps, first = np.unique(n.step[compute], return_index=True)
    # The last node of each lane within each step, by end.
    ordered = device[np.lexsort((n.end[device], n.lane[device], n.step[device]))]
    is_last = np.ones(len(ordered), dtype=bool)
    is_last[:-1] = (np.diff(n.lane[ordered]) != 0) | (np.diff(n.step[ordered]) != 0)
    tails = ordered[is_last]
    following = lookup(compute[first], rows_of(steps, n.step[tails] + 1), missing=-1)
    good = (following >= 0) & (n.end[tails] <= n.start[following]) & (n.lane[tails] != n.lane[following])
    edges.add(tails[good], following[good], np.zeros(int(good.sum()), np.int64), EdgeKind.BOUNDARY)


def _returns(n: RankNodes, edges: _Edges, gap: Ints, launched_at: Ints) -> None:
    """Let a host call that waits come back when the device work that it waited for has ended: what it had launched.

    Where the clocks of host and device differ, work seems to end before its launch: no call before that waited for it.
    """
    back = np.flatnonzero(n.kind == NodeKind.RETURN)
    device = np.flatnonzero(n.of_device)
    if not len(back) or not len(device):
        return
    ended = device[np.argsort(n.end[device], kind="stable")]
    place = np.searchsorted(n.end[ended], n.start[back], side="right") - 1
    for _ in range(_SEEMINGLY_EARLY):
        early = (place >= 0) & (launched_at[ended[place]] >= n.start[back])
        if not early.any():
            break
        place[early] -= 1
    before = np.where((place >= 0) & (launched_at[ended[place]] < n.start[back]), ended[place], -1)
    called = n.start[back] - gap[back]
    good = (before >= 0) & (n.end[before] > called)
    rows, source = back[good], before[good]
    edges.add(source, rows, n.start[rows] - n.end[source], EdgeKind.SYNC)
    gap[rows] = np.minimum(gap[rows], 0)


def _admissions(n: RankNodes, edges: _Edges, gap: Ints) -> None:
    """Let a launch that stood before a full queue come back when work of its stream has ended."""
    freeing, admitted = freed_by(n)
    edges.add(freeing, admitted, n.start[admitted] - n.end[freeing], EdgeKind.QUEUE)
    gap[admitted] = np.minimum(gap[admitted], 0)


def _untraced_waits(n: RankNodes, edges: _Edges, gap: Ints, launched_at: Ints) -> None:
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
    known = (awaited >= 0) & (launched_at[awaited] > NEVER) & (launched_at[awaited] <= stopped)
    soon = (n.end[awaited] > stopped) & (resumed - n.end[awaited] <= RESUMED_NS)
    # Nodes are sorted by lane, so the work behind the awaited one on its stream is the next node.
    follower = np.minimum(awaited + 1, len(n.lane) - 1)
    on_stream = (n.lane[follower] == n.lane[awaited]) & (follower != awaited)
    drained = ~on_stream | (launched_at[follower] > stopped)
    # Pending when the host went on: launched, but not begun.
    launches = np.sort(launched_at[device])
    pending = np.searchsorted(launches, resumed) - np.searchsorted(np.sort(n.start[device]), resumed)
    rows = known & soon & (drained | (pending >= FULL_QUEUE))
    target, source = host[rows], awaited[rows]
    edges.add(source, target, n.start[target] - n.end[source], EdgeKind.SYNC)
    gap[target] = 0
