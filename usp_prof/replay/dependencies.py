"""Dependencies: what each node of a rank waited for before it could start.

Traces record few dependencies: which call launched a kernel, and that PyTorch makes a collective wait for the compute
before it. The rest is inferred from timestamps. Work that starts just when work on another lane ends, after a gap with
no other explanation, waited for that work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import last_by, last_of_run, lookup, rows_of
from usp_prof.replay.admissions import add_admissions
from usp_prof.replay.full_queues import LONG_NS
from usp_prof.replay.graph import LEFT_BY_CLOCKS_NS, NEVER, EdgeKind, NodeKind
from usp_prof.replay.host_waits import HostWaits, add_returns, host_waits, names_that_wait
from usp_prof.replay.rank_edges import RankEdges, RankWaits
from usp_prof.replay.rank_nodes import RankNodes
from usp_prof.replay.recorded_waits import recorded_waits
from usp_prof.replay.stream_syncs import with_other_streams
from usp_prof.replay.stream_waits import MOST_LATENCY_NS, accepted, candidates
from usp_prof.replay.untraced_waits import add_untraced_waits, silences_of
from usp_prof.tables.table_set import TableSet

CLOSED_NS = 300_000
"""On CPU traces another thread closes a communication's range, up to this long after the waiting thread continues."""
HOST_WAIT_NS = 20_000
"""On CPU traces Python runs between ops all the time, so only a longer gap in which a communication ends is a wait."""


@dataclass(frozen=True, slots=True, eq=False)
class _Needs:
    """What each node of a rank needed before it could start: one entry per node in each array.

    Each *_at array holds when a need was satisfied, or NEVER if there is none. Each *_source array holds the node that
    was waited for, or -1.
    """

    lane_at: Ints
    """When the previous node of its lane ended."""
    launch_source: Ints
    launched_at: Ints
    """When the host called, or when the call returned (`late_in_call`)."""
    late_in_call: Flags
    """Marks of work that was submitted at the end of a long call."""
    least_latency: Ints
    """Minimum launch latency on this rank; 0 if unknown."""
    issue_source: Ints
    issue_at: Ints
    explained_at: Ints
    """The latest of lane, launch and issue."""
    wait_source: Ints
    wait_at: Ints
    stream_at: Ints
    """When the last awaited work on other streams ended."""

    @property
    def launch_at(self) -> Ints:
        """When the launch could reach the device."""
        return np.where(self.launch_source >= 0, self.launched_at + self.least_latency, NEVER)

    @property
    def latest_at(self) -> Ints:
        """When all needs were satisfied."""
        return np.maximum(np.maximum(self.explained_at, self.wait_at), self.stream_at)


def waits_of_run(tables: TableSet, ranks: Sequence[RankNodes]) -> list[RankWaits]:
    """Return what each node waited for before it could start, for all ranks.

    A node starts after the latest of these. Only the latest keeps the time that passed until the node started, as the
    edge's lag or the lane's gap. The others keep their minimum.
      lane    the previous node on the same stream or thread ended
      launch  the host launched it, plus this rank's minimum launch latency
      issue   communication only: the compute before it ended or, on a CPU, the host posted it
      wait    work on another lane ended: on a device as named by the trace (`recorded_waits`) or inferred
              (`stream_waits`), on a CPU a communication that ended inside the gap that the first three leave
    """
    needs = [_needs(tables, nodes) for nodes in ranks]
    with_device = [pair for pair in zip(ranks, needs, strict=True) if pair[0].on_device]
    recorded = [recorded_waits(tables, own, need.launched_at) for own, need in with_device]
    inferred = accepted(
        [
            candidates(tables, own, need.explained_at, need.launched_at, of_rank)
            for (own, need), of_rank in zip(with_device, recorded, strict=True)
        ]
    )
    stream_waits = [of_rank.added_to(*pairs) for pairs, of_rank in zip(inferred, recorded, strict=True)]
    waits = [
        host_waits(tables, own, need.launched_at, of_rank)
        for (own, need), of_rank in zip(with_device, recorded, strict=True)
    ]
    waits = with_other_streams(
        [(own, of_rank, need.launched_at) for (own, need), of_rank in zip(with_device, waits, strict=True)]
    )
    names = names_that_wait([own for own, _ in with_device], waits)
    explained = [
        _device_waits(own, need, *waits_of_rank, names)
        for (own, need), waits_of_rank in zip(with_device, zip(stream_waits, waits, strict=True), strict=True)
    ]
    add_untraced_waits(
        tables,
        [
            (own, of_rank.edges, of_rank.gap, need.launched_at)
            for (own, need), of_rank in zip(with_device, explained, strict=True)
        ],
        [
            silences_of(tables, own, of_rank.gap, need.launched_at)
            for (own, need), of_rank in zip(with_device, explained, strict=True)
        ],
    )
    of_device = iter(explained)
    return [
        _collected(own, next(of_device)) if own.on_device else _cpu_waits(own, need)
        for own, need in zip(ranks, needs, strict=True)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Explained:
    """The needs of a rank's nodes, its edges, and the gaps that they leave."""

    needs: _Needs
    edges: RankEdges
    gap: Ints


def _device_waits(
    nodes: RankNodes, needs: _Needs, stream_waits: tuple[Ints, Ints], waits: HostWaits, names: set[str]
) -> _Explained:
    edges = RankEdges()
    needs = replace(needs, stream_at=_latest_end(nodes, *stream_waits))
    _waited_for_streams(nodes, needs, *stream_waits, edges)
    _needed(nodes, needs, edges)
    # Each of these subtracts from the gaps the time that its edges explain.
    gap = _gaps(nodes, needs)
    add_returns(waits, names, nodes, edges, gap, needs.launched_at)
    add_admissions(nodes, edges, gap)
    return _Explained(needs, edges, gap)


def _cpu_waits(nodes: RankNodes, needs: _Needs) -> RankWaits:
    edges = RankEdges()
    _needed(nodes, needs, edges)
    _boundaries(nodes, edges)
    return _collected(nodes, _Explained(needs, edges, _gaps(nodes, needs)))


def _collected(nodes: RankNodes, explained: _Explained) -> RankWaits:
    needs = explained.needs
    has_source = (needs.launch_source >= 0) | (needs.issue_source >= 0) | (needs.wait_source >= 0)
    has_source |= needs.stream_at > NEVER
    earliest = np.where(nodes.first_of_lane & ~has_source, nodes.start, NEVER)
    source, at_end, target, lag, kind = (
        np.concatenate(column) for column in zip(*explained.edges.columns, strict=True)
    )
    return RankWaits(source, at_end, target, lag, kind, explained.gap, earliest)


def _latest_end(nodes: RankNodes, source: Ints, target: Ints) -> Ints:
    """Return for each node when the last awaited work on other streams ended; NEVER if there is none."""
    latest = np.full(len(nodes.lane), NEVER)
    np.maximum.at(latest, target, nodes.end[source])
    return latest


def _waited_for_streams(nodes: RankNodes, needs: _Needs, source: Ints, target: Ints, edges: RankEdges) -> None:
    """Add an edge for each wait for another stream; the last need keeps the time until its node started."""
    is_last = (nodes.end[source] == needs.latest_at[target]) & (needs.lane_at[target] < needs.latest_at[target])
    is_last &= needs.launch_at[target] < needs.latest_at[target]
    since = nodes.start[target] - nodes.end[source]  # negative where timestamps are rounded
    lag = np.where(is_last, since, np.minimum(since, 0))
    is_issue = (nodes.kind[target] == NodeKind.COMMUNICATION) & (nodes.kind[source] == NodeKind.COMPUTE)
    for kind, rows in ((EdgeKind.ISSUE, is_issue), (EdgeKind.WAIT, ~is_issue)):
        edges.add(source[rows], target[rows], lag[rows], kind)


def _needs(tables: TableSet, nodes: RankNodes) -> _Needs:
    """Return the needs of each node; time that lane, launch and issue leave unexplained may have been a wait."""
    lane_at = np.full(len(nodes.lane), NEVER)
    lane_at[1:] = np.where(nodes.first_of_lane[1:], NEVER, nodes.end[:-1])
    launch_source, late_in_call = _launches(nodes)
    called_at = np.where(late_in_call, nodes.end[launch_source], nodes.start[launch_source])
    launched_at = np.where(launch_source >= 0, called_at, NEVER)
    least_latency = _least_latency(nodes, launch_source >= 0, called_at)
    launch_at = np.where(launch_source >= 0, launched_at + least_latency, NEVER)
    issue_source, issue_at = _issues(tables, nodes)
    explained_at = np.maximum(np.maximum(lane_at, launch_at), issue_at)
    wait_source = np.full(len(nodes.lane), -1, np.int64)
    if not nodes.on_device:
        unexplained_ns = nodes.start - np.maximum(explained_at, NEVER // 2)  # a difference to NEVER overflows
        wait_source = _other_lane(nodes, explained_at, unexplained_ns)
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
        late_in_call,
        least_latency,
        issue_source,
        issue_at,
        explained_at,
        wait_source,
        wait_at,
        np.full(len(nodes.lane), NEVER),
    )


def _needed(nodes: RankNodes, needs: _Needs, edges: RankEdges) -> None:
    """Add an edge for each wait, launch and issue; the latest one keeps the time until its node started."""
    latest_at = needs.latest_at
    rows = np.flatnonzero(needs.wait_source >= 0)
    edges.add(needs.wait_source[rows], rows, nodes.start[rows] - needs.wait_at[rows], EdgeKind.WAIT)
    rows = np.flatnonzero(needs.launch_source >= 0)
    is_latest = needs.launch_at[rows] >= latest_at[rows]
    lag = np.where(is_latest, nodes.start[rows] - needs.launched_at[rows], needs.least_latency[rows])
    for late in (False, True):
        chosen = needs.late_in_call[rows] == late
        source = needs.launch_source[rows[chosen]]
        edges.add(source, rows[chosen], lag[chosen], EdgeKind.LAUNCH, at_end=late)
    rows = np.flatnonzero(needs.issue_source >= 0)
    issue_source, issue_at = needs.issue_source[rows], needs.issue_at[rows]
    is_latest = issue_at >= latest_at[rows]
    begun_at = np.where(is_latest, nodes.start[rows], issue_at)
    edges.add(issue_source, rows, begun_at - nodes.end[issue_source], EdgeKind.ISSUE)


def _gaps(nodes: RankNodes, needs: _Needs) -> Ints:
    """Return each node's think time since the previous node of its lane, or 0 if it waited for something later.

    Negative gaps are kept because activities of a lane may overlap.
    """
    since_lane = np.where(nodes.first_of_lane, 0, nodes.start - needs.lane_at)
    is_by_lane = needs.lane_at >= needs.latest_at
    return np.where(is_by_lane | (since_lane < 0), since_lane, 0)


def _launches(nodes: RankNodes) -> tuple[Ints, Flags]:
    """Return the launching call of each device node (-1: none), and whether it was submitted at the end of the call.

    A host that loses its core within a call submits the work afterwards. So work of a long call that starts after it,
    as exactly as the clocks agree, was submitted at its end.
    """
    host = np.flatnonzero(nodes.kind == NodeKind.HOST)
    source = lookup(host, rows_of(nodes.event[host], nodes.launch), missing=-1)
    length = nodes.duration[source]
    uncertain_ns = np.minimum(LEFT_BY_CLOCKS_NS, length // 10)
    return source, (source >= 0) & (length > LONG_NS) & (nodes.start >= nodes.end[source] - uncertain_ns)


def _least_latency(nodes: RankNodes, is_launched: Flags, called_at: Ints) -> Ints:
    """Return the minimum launch latency of the rank for each launched node, and 0 for all others."""
    delay = (nodes.start - called_at)[is_launched]
    # The minimum is unknown if the device's clock is behind the host's, because work then seems to start before its
    # launch. It is also unknown if the queue was never empty: the smallest delay is then queueing, up to a full step.
    least = min(max(0, int(delay.min())), MOST_LATENCY_NS) if len(delay) else 0
    lag = np.zeros(len(nodes.lane), np.int64)
    lag[is_launched] = np.minimum(least, delay)
    return lag


def _issues(tables: TableSet, nodes: RankNodes) -> tuple[Ints, Ints]:
    """Return the compute that ended before each communication of a CPU trace was posted, and the time of the post."""
    source, at = np.full(len(nodes.lane), -1, np.int64), np.full(len(nodes.lane), NEVER)
    parts = np.flatnonzero(nodes.kind == NodeKind.COMMUNICATION)
    compute = np.flatnonzero(nodes.kind == NodeKind.COMPUTE)
    if nodes.on_device or not len(parts) or not len(compute):
        return source, at
    posted = np.minimum(_posted(tables, nodes, parts), nodes.start[parts])
    source[parts] = last_by(nodes.end, compute, by=posted)
    at[parts] = np.where(source[parts] >= 0, posted, NEVER)
    return source, at


def _posted(tables: TableSet, nodes: RankNodes, parts: Ints) -> Ints:
    """Return when the host posted each part, or the part's own start if its op is unknown."""
    collectives, ops = tables.columns("collectives", nodes.rank), tables.columns("ops", nodes.rank)
    row = nodes.part[parts]
    op = np.where(row >= 0, collectives["op_event"][row] if len(collectives) else -1, -1)
    if not len(ops):
        return nodes.start[parts]
    place = rows_of(ops["event"], op)
    return np.where(place >= 0, ops["start_ns"][place], nodes.start[parts])


def _before_post(nodes: RankNodes, compute: Ints, posted: Ints) -> Ints:
    """Return the communication that the host waited for between a part's last compute and its post; -1 if none."""
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
    """Return the communication that ended before each late compute of a CPU trace, or -1 if there is none.

    A compute is late if it starts later than its lane, launch and issue explain.
    """
    source = np.full(len(nodes.lane), -1, np.int64)
    ended = np.flatnonzero(nodes.kind == NodeKind.COMMUNICATION)
    seeking = np.flatnonzero((nodes.kind == NodeKind.COMPUTE) & (unexplained_ns > HOST_WAIT_NS))
    # A communication's range is closed shortly after the thread that waited for it continues.
    slack = np.minimum(CLOSED_NS, unexplained_ns[seeking] // 2)
    before = last_by(nodes.end, ended, by=nodes.start[seeking] + slack)
    good = (before >= 0) & (nodes.end[before] > explained_at[seeking]) & (nodes.lane[before] != nodes.lane[seeking])
    good &= nodes.start[before] < nodes.start[seeking]
    source[seeking[good]] = before[good]
    return source


def _boundaries(nodes: RankNodes, edges: RankEdges) -> None:
    """Make a step's first compute wait for all work of the previous step that had ended by then."""
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
