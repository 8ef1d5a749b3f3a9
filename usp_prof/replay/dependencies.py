"""Dependencies: what each node of a rank waited for before it could start.

Traces record few dependencies: which call launched a kernel, and that PyTorch makes a collective wait for the compute
before it. The rest is inferred from timestamps. Work that starts just when work on another lane ends, after a gap with
no other explanation, waited for that work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import last_by, last_of_run, lookup, rows_of
from usp_prof.replay.admissions import add_admissions
from usp_prof.replay.graph import NEVER, EdgeKind, NodeKind
from usp_prof.replay.host_waits import add_returns, host_waits, names_that_wait
from usp_prof.replay.rank_edges import PartialWaits, RankEdges, RankWaits
from usp_prof.replay.rank_nodes import RankNodes
from usp_prof.replay.recorded_waits import recorded_waits
from usp_prof.replay.stream_syncs import with_other_streams
from usp_prof.replay.stream_waits import MOST_LATENCY_NS, accepted, candidates
from usp_prof.replay.untraced_waits import add_untraced_waits
from usp_prof.tables.communication.posts import CLOSED_LATE_NS
from usp_prof.tables.table_set import TableSet

CLOSED_NS = 300_000
"""On CPU traces another thread closes a communication's range, up to this long after the waiting thread continues.

On busy hosts it is `CLOSED_LATE_NS`; that is accepted only for places that usually wait.
"""
FEWEST_PROMPT = 2
"""Minimum number of prompt waits, over all ranks and steps, of a place that usually waits."""
HOST_WAIT_NS = 20_000
"""On CPU traces Python runs between ops all the time, so only a longer gap in which a communication ends is a wait."""


@dataclass(frozen=True, slots=True, eq=False)
class _Needs:
    """What each node of a rank needed before it could start: one entry per node in each array.

    Each *_at array holds when a need was satisfied, or NEVER if there is none. Each *_source array holds the node that
    was waited for, or -1. A launch is in `nodes` (`launch_node`, `launched_at`).
    """

    nodes: RankNodes
    lane_at: Ints
    """When the previous node of its lane ended."""
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
        return _launch_at(self.nodes, self.least_latency)

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
    needs = _with_late_closings([_needs(tables, nodes) for nodes in ranks])
    waits_on_devices = iter(_device_waits(tables, [need for need in needs if need.nodes.on_device]))
    return [next(waits_on_devices) if need.nodes.on_device else _cpu_waits(need) for need in needs]


def _device_waits(tables: TableSet, needs: Sequence[_Needs]) -> list[RankWaits]:
    """Return the waits of the ranks with a device; what waits for what is inferred from all of them together."""
    ranks = [need.nodes for need in needs]
    recorded = [recorded_waits(tables, nodes) for nodes in ranks]
    pairs = accepted(
        [
            candidates(tables, need.nodes, need.explained_at, recorded_of_rank)
            for need, recorded_of_rank in zip(needs, recorded, strict=True)
        ]
    )
    waits = with_other_streams(
        [host_waits(tables, nodes, recorded_of_rank) for nodes, recorded_of_rank in zip(ranks, recorded, strict=True)]
    )
    names = names_that_wait(waits)
    complete_needs, partial_waits = [], []
    for need, pairs_of_rank, recorded_of_rank, waits_of_rank in zip(needs, pairs, recorded, waits, strict=True):
        source, target = recorded_of_rank.added_to(*pairs_of_rank)
        complete = replace(need, stream_at=_latest_end(need.nodes, source, target))
        rank = PartialWaits(need.nodes, RankEdges(), _gaps(complete))
        _add_stream_waits(complete, source, target, rank.edges)
        _add_needs(complete, rank.edges)
        # Each of these subtracts from the gaps the time that its edges explain.
        add_returns(waits_of_rank, names, rank)
        add_admissions(rank)
        complete_needs.append(complete)
        partial_waits.append(rank)
    add_untraced_waits(tables, partial_waits)
    return [_complete(*of_rank) for of_rank in zip(complete_needs, partial_waits, strict=True)]


def _cpu_waits(needs: _Needs) -> RankWaits:
    edges = RankEdges()
    _add_needs(needs, edges)
    _add_boundaries(needs.nodes, edges)
    return _complete(needs, PartialWaits(needs.nodes, edges, _gaps(needs)))


def _complete(needs: _Needs, waits: PartialWaits) -> RankWaits:
    """Return one rank's waits; nodes that are first on their lane and wait for nothing keep their start."""
    nodes = needs.nodes
    has_source = (nodes.launch_node >= 0) | (needs.issue_source >= 0) | (needs.wait_source >= 0)
    has_source |= needs.stream_at > NEVER
    earliest = np.where(nodes.first_of_lane & ~has_source, nodes.start, NEVER)
    source, at_end, target, lag, kind = (np.concatenate(column) for column in zip(*waits.edges.columns, strict=True))
    return RankWaits(source, at_end, target, lag, kind, waits.gap, earliest)


def _latest_end(nodes: RankNodes, source: Ints, target: Ints) -> Ints:
    """Return for each node when the last awaited work on other streams ended; NEVER if there is none."""
    latest = np.full(len(nodes.lane), NEVER)
    np.maximum.at(latest, target, nodes.end[source])
    return latest


def _add_stream_waits(needs: _Needs, source: Ints, target: Ints, edges: RankEdges) -> None:
    """Add an edge for each wait for another stream; the last need keeps the time until its node started."""
    nodes = needs.nodes
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
    least_latency = _least_latency(nodes)
    issue_source, issue_at = _issues(tables, nodes)
    explained_at = np.maximum(np.maximum(lane_at, _launch_at(nodes, least_latency)), issue_at)
    wait_source = np.full(len(nodes.lane), -1, np.int64)
    if not nodes.on_device:
        unexplained_ns = nodes.start - np.maximum(explained_at, NEVER // 2)  # a difference to NEVER overflows
        wait_source = _other_lane(nodes, explained_at, unexplained_ns)
        # The host may have waited before it posted: the time from compute to post is that wait, not the issue.
        waited_before_post = _before_post(nodes, issue_source, issue_at)
        has_waited = waited_before_post >= 0
        # What ends on the same lane is waited for in any case.
        is_on_other_lane = has_waited & (nodes.lane[waited_before_post] != nodes.lane)
        wait_source = np.where(is_on_other_lane, waited_before_post, wait_source)
        issue_at = np.where(has_waited, nodes.end[issue_source], issue_at)
        explained_at = np.where(has_waited, np.maximum(lane_at, issue_at), explained_at)
    return _Needs(
        nodes=nodes,
        lane_at=lane_at,
        least_latency=least_latency,
        issue_source=issue_source,
        issue_at=issue_at,
        explained_at=explained_at,
        wait_source=wait_source,
        wait_at=np.where(wait_source >= 0, nodes.end[wait_source], NEVER),
        stream_at=np.full(len(nodes.lane), NEVER),
    )


def _add_needs(needs: _Needs, edges: RankEdges) -> None:
    """Add an edge for each wait, launch and issue; the latest one keeps the time until its node started."""
    nodes, latest_at = needs.nodes, needs.latest_at
    rows = np.flatnonzero(needs.wait_source >= 0)
    edges.add(needs.wait_source[rows], rows, nodes.start[rows] - needs.wait_at[rows], EdgeKind.WAIT)
    rows = np.flatnonzero(nodes.launch_node >= 0)
    is_latest = needs.launch_at[rows] >= latest_at[rows]
    lag = np.where(is_latest, nodes.start[rows] - nodes.launched_at[rows], needs.least_latency[rows])
    for at_end in (False, True):
        chosen = nodes.late_in_call[rows] == at_end
        source = nodes.launch_node[rows[chosen]]
        edges.add(source, rows[chosen], lag[chosen], EdgeKind.LAUNCH, at_end=at_end)
    rows = np.flatnonzero(needs.issue_source >= 0)
    issue_source, issue_at = needs.issue_source[rows], needs.issue_at[rows]
    is_latest = issue_at >= latest_at[rows]
    started_at = np.where(is_latest, nodes.start[rows], issue_at)
    edges.add(issue_source, rows, started_at - nodes.end[issue_source], EdgeKind.ISSUE)


def _gaps(needs: _Needs) -> Ints:
    """Return each node's think time since the previous node of its lane, or 0 if it waited for something later.

    Negative gaps are kept because activities of a lane may overlap.
    """
    nodes = needs.nodes
    since_lane = np.where(nodes.first_of_lane, 0, nodes.start - needs.lane_at)
    is_by_lane = needs.lane_at >= needs.latest_at
    return np.where(is_by_lane | (since_lane < 0), since_lane, 0)


def _launch_at(nodes: RankNodes, least_latency: Ints) -> Ints:
    """Return when the launch of each node could reach the device; NEVER without a launch."""
    return np.where(nodes.launch_node >= 0, nodes.launched_at + least_latency, NEVER)


def _least_latency(nodes: RankNodes) -> Ints:
    """Return the minimum launch latency of the rank for each launched node, and 0 for all others."""
    is_launched = nodes.launch_node >= 0
    delay = (nodes.start - nodes.launched_at)[is_launched]
    # The minimum is unknown if the device's clock is behind the host's, because work then seems to start before its
    # launch. It is also unknown if the queue was never empty: the smallest delay is then queueing, up to a full step.
    least = min(max(0, int(delay.min())), MOST_LATENCY_NS) if len(delay) else 0
    latency = np.zeros(len(nodes.lane), np.int64)
    latency[is_launched] = np.minimum(least, delay)
    return latency


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
    is_wait = (before >= 0) & (nodes.end[before] > compute_end)
    source[parts[is_wait]] = before[is_wait]
    return source


def _other_lane(nodes: RankNodes, explained_at: Ints, unexplained_ns: Ints) -> Ints:
    """Return the communication that ended before each late compute of a CPU trace, or -1 if there is none.

    A compute is late if it starts later than its lane, launch and issue explain.
    """
    source = np.full(len(nodes.lane), -1, np.int64)
    ended = np.flatnonzero(nodes.kind == NodeKind.COMMUNICATION)
    late = np.flatnonzero((nodes.kind == NodeKind.COMPUTE) & (unexplained_ns > HOST_WAIT_NS))
    # A communication's range is closed shortly after the thread that waited for it continues.
    slack = np.minimum(CLOSED_NS, unexplained_ns[late] // 2)
    before = last_by(nodes.end, ended, by=nodes.start[late] + slack)
    begins_later = (before >= 0) & (nodes.start[before] >= nodes.start[late])
    before = np.where(begins_later, last_by(nodes.end, ended, by=nodes.start[late]), before)
    is_wait = (before >= 0) & (nodes.end[before] > explained_at[late]) & (nodes.lane[before] != nodes.lane[late])
    source[late[is_wait]] = before[is_wait]
    return source


def _with_late_closings(needs: Sequence[_Needs]) -> list[_Needs]:
    """Return the needs, with waits of CPU ranks for communication whose range was closed late.

    A busy host may run the thread that closes a range milliseconds after the thread that waited for it. Such a wait is
    accepted if other ranks or steps wait promptly at the same place.
    """
    prompt: Counter[tuple[str, str]] = Counter()
    for need in needs:
        rows = np.flatnonzero(_waits_as_compute(need))
        rows = rows[np.abs(need.nodes.start[rows] - need.wait_at[rows]) <= CLOSED_NS]
        prompt.update(_places(need.nodes, rows))
    return [need if need.nodes.on_device else _with_late_waits(need, prompt) for need in needs]


def _with_late_waits(needs: _Needs, prompt: Mapping[tuple[str, str], int]) -> _Needs:
    """Return one rank's needs, with such waits; `prompt` has the number of prompt waits at each place."""
    nodes = needs.nodes
    ended = np.flatnonzero(nodes.kind == NodeKind.COMMUNICATION)
    ended = ended[np.argsort(nodes.end[ended], kind="stable")]
    unexplained_ns = nodes.start - np.maximum(needs.explained_at, NEVER // 2)
    late = np.flatnonzero((nodes.kind == NodeKind.COMPUTE) & (unexplained_ns > HOST_WAIT_NS))
    # The first communication to end after each late compute has started.
    following = lookup(ended, np.searchsorted(nodes.end[ended], nodes.start[late], side="right"), missing=-1)
    late, following = late[following >= 0], following[following >= 0]
    closed_ns = nodes.end[following] - nodes.start[late]
    is_wait = closed_ns <= np.minimum(CLOSED_LATE_NS, unexplained_ns[late] // 2)
    is_wait &= (nodes.start[following] < nodes.start[late]) & (nodes.lane[following] != nodes.lane[late])
    # The communication that was found before is farther away, or there is none.
    is_wait &= np.abs(nodes.start[late] - np.maximum(needs.wait_at[late], NEVER // 2)) > closed_ns
    late, following = late[is_wait], following[is_wait]
    usual = np.array([prompt.get(place, 0) >= FEWEST_PROMPT for place in _places(nodes, late)], dtype=bool)
    if not usual.any():
        return needs
    wait_source = needs.wait_source.copy()
    wait_source[late[usual]] = following[usual]
    return replace(needs, wait_source=wait_source, wait_at=np.where(wait_source >= 0, nodes.end[wait_source], NEVER))


def _waits_as_compute(needs: _Needs) -> Flags:
    """Mark the compute of a CPU rank that waited for communication."""
    return np.asarray((needs.wait_source >= 0) & (needs.nodes.kind == NodeKind.COMPUTE))


def _places(nodes: RankNodes, rows: Ints) -> list[tuple[str, str]]:
    """Return for each node its name and that of the node before it, which tell places of a step apart."""
    codes, texts = nodes.name
    return [
        (texts[before], texts[own]) for before, own in zip(codes[rows - 1].tolist(), codes[rows].tolist(), strict=True)
    ]


def _add_boundaries(nodes: RankNodes, edges: RankEdges) -> None:
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
    is_awaited = (following >= 0) & is_over & (nodes.lane[tails] != nodes.lane[following])
    tails, following = tails[is_awaited], following[is_awaited]
    edges.add(tails, following, np.zeros(len(tails), np.int64), EdgeKind.BOUNDARY)
