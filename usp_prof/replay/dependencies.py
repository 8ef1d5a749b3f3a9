"""Dependencies: what each node of a rank waited for before it could begin.

Traces record little of this. What they record (which call launched a kernel; that PyTorch makes a collective wait for
the compute before it) is taken as it is. The rest is inferred from times: work that starts right when something on
another lane ends, after a gap that nothing else explains, waited for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import group_codes, last_by, last_of_run, lookup, rows_of, sorted_by
from usp_prof.replay.graph import NEVER, EdgeKind, NodeKind
from usp_prof.replay.host_waits import add_admissions, add_returns, add_untraced_waits

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.replay.build import RankNodes
    from usp_prof.tables.table_set import TableSet

UNEXPLAINED_NS = 3_000
"""A device's gap of this much that neither lane nor launch explains is a wait for another stream."""
CLOSED_NS = 300_000
"""On CPU traces another thread closes a communication's range, up to so long after the one that waited goes on."""
MOST_LATENCY_NS = 100_000
"""A launch reaches an idle device within some ten microseconds; what goes beyond this was spent in a queue."""
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


class RankEdges:
    """Edges of one rank, collected kind by kind."""

    def __init__(self) -> None:
        self.columns: list[tuple[Ints, Flags, Ints, Ints, Ints]] = []

    def add(self, source: Ints, target: Ints, lag: Ints, kind: EdgeKind, *, at_end: bool = True) -> None:
        """Let each target begin `lag` after the end (else the start) of its source."""
        self.columns.append((source, np.full(len(source), at_end), target, lag, np.full(len(source), int(kind))))


@dataclass(frozen=True, slots=True, eq=False)
class _Needs:
    """What each node of a rank needed before it could begin: one entry a node in each array.

    Each *_at array says when a need was satisfied, NEVER where there is none; each *_source array has the node that was
    waited for, -1 where there is none.
    """

    lane_at: Ints
    """The node before it on its lane ended."""
    launch_source: Ints
    launched_at: Ints
    """The host called."""
    least_latency: Ints
    """What a launch takes on this rank at least; 0 where none is known."""
    issue_source: Ints
    issue_at: Ints
    explained_at: Ints
    """The latest of lane, launch and issue."""
    wait_source: Ints
    wait_at: Ints

    @property
    def launch_at(self) -> Ints:
        """The launch could reach the device."""
        return np.where(self.launch_source >= 0, self.launched_at + self.least_latency, NEVER)

    @property
    def latest_at(self) -> Ints:
        """All needs were satisfied."""
        return np.maximum(self.explained_at, self.wait_at)


def waits_of(tables: TableSet, nodes: RankNodes) -> RankWaits:
    """Find what each node of a rank waited for before it could begin.

    A node begins after the latest of these. Only the latest keeps the time that passed until the node began, as the
    edge's lag or the lane's gap; the others keep their least.
      lane    the node before it on the same stream or thread ended
      launch  the host launched it, plus this rank's least launch latency
      issue   communication only: the compute launched before it ended or, on a CPU, the host posted it
      wait    a communication (on a device: any work) on another lane ended inside the gap that the first three leave,
              or before one of them, where others of its kind are waited for
    """
    needs = _needs(tables, nodes)
    edges = RankEdges()
    _needed(nodes, needs, edges)
    communication, compute = _hidden_waits(nodes, needs.explained_at, needs.launched_at)
    edges.add(communication, compute, np.zeros(len(compute), np.int64), EdgeKind.WAIT)
    _boundaries(nodes, edges)
    # These take away from the gaps what their edges explain.
    gap = _gaps(nodes, needs)
    add_returns(nodes, edges, gap, needs.launched_at)
    add_admissions(nodes, edges, gap)
    add_untraced_waits(nodes, edges, gap, needs.launched_at)
    has_source = (needs.launch_source >= 0) | (needs.issue_source >= 0) | (needs.wait_source >= 0)
    earliest = np.where(nodes.first_of_lane & ~has_source, nodes.start, NEVER)
    source, at_end, target, lag, kind = (np.concatenate(column) for column in zip(*edges.columns, strict=True))
    return RankWaits(source, at_end, target, lag, kind, gap, earliest)


def _needs(tables: TableSet, nodes: RankNodes) -> _Needs:
    """Find the needs one after the other: what the first three leave unexplained may have been a wait."""
    lane_at = np.full(len(nodes.lane), NEVER)
    lane_at[1:] = np.where(nodes.first_of_lane[1:], NEVER, nodes.end[:-1])
    launch_source, least_latency = _launches(nodes)
    launched_at = np.where(launch_source >= 0, nodes.start[launch_source], NEVER)
    launch_at = np.where(launch_source >= 0, launched_at + least_latency, NEVER)
    issue_source, issue_at = _issues(tables, nodes, launch_source)
    explained_at = np.maximum(np.maximum(lane_at, launch_at), issue_at)
    unexplained_ns = nodes.start - np.maximum(explained_at, NEVER // 2)  # NEVER // 2: a difference to NEVER overflows
    wait_source = _other_lane(nodes, explained_at, unexplained_ns)
    if not nodes.on_device:
        # The host may have waited before it posted: the time from compute to post is that wait, not the issue.
        waited_before_post = _before_post(nodes, issue_source, issue_at)
        is_held = waited_before_post >= 0
        wait_source = np.where(is_held, waited_before_post, wait_source)
        issue_at = np.where(is_held, nodes.end[issue_source], issue_at)
        explained_at = np.where(is_held, np.maximum(lane_at, issue_at), explained_at)
    wait_at = np.where(wait_source >= 0, nodes.end[wait_source], NEVER)
    return _Needs(
        lane_at,
        launch_source,
        launched_at,
        least_latency,
        issue_source,
        issue_at,
        explained_at,
        wait_source,
        wait_at,
    )


def _needed(nodes: RankNodes, needs: _Needs, edges: RankEdges) -> None:
    """Add an edge for each wait, launch and issue; the one that came last keeps the time until its node began."""
    latest_at = needs.latest_at
    rows = np.flatnonzero(needs.wait_source >= 0)
    edges.add(needs.wait_source[rows], rows, nodes.start[rows] - needs.wait_at[rows], EdgeKind.WAIT)
    rows = np.flatnonzero(needs.launch_source >= 0)
    is_latest = needs.launch_at[rows] >= latest_at[rows]
    lag = np.where(is_latest, nodes.start[rows] - needs.launched_at[rows], needs.least_latency[rows])
    edges.add(needs.launch_source[rows], rows, lag, EdgeKind.LAUNCH, at_end=False)
    rows = np.flatnonzero(needs.issue_source >= 0)
    issue_source, issue_at = needs.issue_source[rows], needs.issue_at[rows]
    is_latest = issue_at >= latest_at[rows]
    begun_at = np.where(is_latest, nodes.start[rows], issue_at)
    edges.add(issue_source, rows, begun_at - nodes.end[issue_source], EdgeKind.ISSUE)


def _gaps(nodes: RankNodes, needs: _Needs) -> Ints:
    """Give each node's think time after its lane's node before: all of it where that came last, else none.

    A gap below zero is kept: activities of a lane may overlap.
    """
    since_lane = np.where(nodes.first_of_lane, 0, nodes.start - needs.lane_at)
    is_by_lane = needs.lane_at >= needs.latest_at
    return np.where(is_by_lane | (since_lane < 0), since_lane, 0)


def _launches(nodes: RankNodes) -> tuple[Ints, Ints]:
    """Give each device node its launching call (-1: none), and the least time a launch takes on this rank."""
    host = np.flatnonzero(nodes.kind == NodeKind.HOST)
    source = lookup(host, rows_of(nodes.event[host], nodes.launch), missing=-1)
    known = source >= 0
    delay = (nodes.start - nodes.start[source])[known]
    # Where the device's clock runs before the host's, work seems to begin before its launch: nothing tells the least.
    # Nor where the queue was never empty: the least delay is then that of a queue, up to a whole step.
    least = min(max(0, int(delay.min())), MOST_LATENCY_NS) if len(delay) else 0
    lag = np.zeros(len(nodes.lane), np.int64)
    lag[known] = np.minimum(least, delay)
    return source, lag


def _issues(tables: TableSet, nodes: RankNodes, launch: Ints) -> tuple[Ints, Ints]:
    """Give each communication the compute before it, and when it could have begun for that.

    On a device it follows the compute launched before it, and can begin when that ends. On a CPU it follows the compute
    that ended before it was posted, and can begin when it was posted.
    """
    source, at = np.full(len(nodes.lane), -1, np.int64), np.full(len(nodes.lane), NEVER)
    parts = np.flatnonzero(nodes.kind == NodeKind.COMMUNICATION)
    compute = np.flatnonzero(nodes.kind == NodeKind.COMPUTE)
    if not len(parts) or not len(compute):
        return source, at
    if nodes.on_device:
        called = np.where(launch >= 0, nodes.start[launch], NEVER)
        linked = compute[launch[compute] >= 0]
        before = last_by(called, linked, by=called[parts] - 1)
        good = (before >= 0) & (launch[parts] >= 0) & (nodes.end[before] <= nodes.start[parts])
        source[parts[good]] = before[good]
        at[parts[good]] = nodes.end[before[good]]
        return source, at
    posted = np.minimum(_posted(tables, nodes, parts), nodes.start[parts])
    source[parts] = last_by(nodes.end, compute, by=posted)
    at[parts] = np.where(source[parts] >= 0, posted, NEVER)
    return source, at


def _posted(tables: TableSet, nodes: RankNodes, parts: Ints) -> Ints:
    """Say when the host posted each part; its own start where the op is not known."""
    collectives, ops = tables.columns("collectives", nodes.rank), tables.columns("ops", nodes.rank)
    row = nodes.part[parts]
    op = np.where(row >= 0, collectives["op_event"][row] if len(collectives) else -1, -1)
    if not len(ops):
        return nodes.start[parts]
    place = rows_of(ops["event"], op)
    return np.where(place >= 0, ops["start_ns"][place], nodes.start[parts])


def _before_post(nodes: RankNodes, compute: Ints, posted: Ints) -> Ints:
    """Find for each posted part the communication that the host waited for between its last compute and the post."""
    source = np.full(len(nodes.lane), -1, np.int64)
    parts = np.flatnonzero((nodes.kind == NodeKind.COMMUNICATION) & (compute >= 0))
    compute_end = nodes.end[compute[parts]]
    waited = posted[parts] - compute_end > HOST_WAIT_NS
    parts, compute_end = parts[waited], compute_end[waited]
    ended = np.flatnonzero(nodes.kind == NodeKind.COMMUNICATION)
    before = last_by(nodes.end, ended, by=posted[parts])  # -1: none has ended by then
    good = (before >= 0) & (nodes.end[before] > compute_end) & (nodes.lane[before] != nodes.lane[parts])
    source[parts[good]] = before[good]
    return source


def _other_lane(nodes: RankNodes, explained_at: Ints, unexplained_ns: Ints) -> Ints:
    """Find for each node that starts later than is explained what ended on another lane just before it; else -1."""
    source = np.full(len(nodes.lane), -1, np.int64)
    if nodes.on_device:
        ended = np.flatnonzero(nodes.of_device)
        seeking = np.flatnonzero(nodes.of_device & (unexplained_ns > UNEXPLAINED_NS))
    else:
        ended = np.flatnonzero(nodes.kind == NodeKind.COMMUNICATION)
        seeking = np.flatnonzero((nodes.kind == NodeKind.COMPUTE) & (unexplained_ns > HOST_WAIT_NS))
    # On CPU traces a communication's range is closed a little after the thread that waited for it goes on.
    slack = 0 if nodes.on_device else np.minimum(CLOSED_NS, unexplained_ns[seeking] // 2)
    before = last_by(nodes.end, ended, by=nodes.start[seeking] + slack)
    good = (before >= 0) & (nodes.end[before] > explained_at[seeking]) & (nodes.lane[before] != nodes.lane[seeking])
    good &= nodes.start[before] < nodes.start[seeking]
    source[seeking[good]] = before[good]
    return source


def _boundaries(nodes: RankNodes, edges: RankEdges) -> None:
    """Let a step's first compute wait for all that the step before ran and had ended by then."""
    device = np.flatnonzero(nodes.of_device & (nodes.step >= 0))
    if not len(device):
        return
    # The first compute of each step.
    compute = device[nodes.kind[device] == NodeKind.COMPUTE]
    compute = compute[np.lexsort((nodes.start[compute], nodes.step[compute]))]
    steps, first = np.unique(nodes.step[compute], return_index=True)
    # The last node of each lane within each step, by end.
    ordered = device[np.lexsort((nodes.end[device], nodes.lane[device], nodes.step[device]))]
    tails = ordered[last_of_run(nodes.lane[ordered], nodes.step[ordered])]
    following = lookup(compute[first], rows_of(steps, nodes.step[tails] + 1), missing=-1)
    is_over = nodes.end[tails] <= nodes.start[following]
    good = (following >= 0) & is_over & (nodes.lane[tails] != nodes.lane[following])
    edges.add(tails[good], following[good], np.zeros(int(good.sum()), np.int64), EdgeKind.BOUNDARY)


# Compute behind a communication: it may have waited although its own launch came later still.
#
# Compute that is launched behind a communication waits for it, or runs beside it (as with gradients):
#   1. Where lane and launch were over before the communication ended, the times tell which of the two.
#   2. Where they were later (the host was blocked, or late), it waits if those of the same axis and kernel do.
# Such a wait did not bind; it does once the host is no longer late.

USUALLY = 0.9
"""So many of the communications of a kind must be waited for by the compute behind them, where the times tell."""


def _hidden_waits(nodes: RankNodes, explained_at: Ints, launched_at: Ints) -> tuple[Ints, Ints]:
    """Give the communications whose waits are hidden, and the compute behind each, as node numbers of the rank."""
    is_launched = launched_at > NEVER
    compute = sorted_by(launched_at, np.flatnonzero(is_launched & (nodes.kind == NodeKind.COMPUTE)))
    # Pairs: each communication, and the first compute that is launched behind it.
    calls = np.flatnonzero(is_launched & (nodes.kind == NodeKind.COMMUNICATION))
    place = np.searchsorted(launched_at[compute], launched_at[calls], side="right")
    has_compute = place < len(compute)
    calls, behind = calls[has_compute], compute[place[has_compute]]
    # Where lane and launch were over before the communication ended, its own times tell whether the compute waited.
    is_free = explained_at[behind] < nodes.end[calls]
    begins_after = nodes.start[behind] >= nodes.end[calls]
    kind = group_codes(nodes.axis[0][calls], nodes.name[0][calls])
    waiting_share = np.bincount(kind, is_free & begins_after) / np.maximum(np.bincount(kind, is_free), 1)
    is_hidden = ~is_free & begins_after & (waiting_share[kind] >= USUALLY)
    return calls[is_hidden], behind[is_hidden]
