"""Construction of the replay graph: each rank's nodes and dependencies, and the calls that tie ranks together."""

from __future__ import annotations

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import distinct, lookup, rows_of, sorted_by, stacked_codes
from usp_prof.replay.dependencies import waits_of_run
from usp_prof.replay.gloo_transfers import with_asked_posts
from usp_prof.replay.graph import NEVER, NO_MEETINGS, Edges, Graph, Meetings, NodeKind, Nodes
from usp_prof.replay.peers import calls_of
from usp_prof.replay.rank_clocks import LARGEST_OFFSET_NS, rank_clocks
from usp_prof.replay.rank_edges import RankWaits
from usp_prof.replay.rank_nodes import RankNodes, nodes_of
from usp_prof.tables import calls
from usp_prof.tables.matching.ties import END_TOGETHER
from usp_prof.tables.table_set import TableSet

_DRIFT_NS, _DRIFT_SHARE = 1_000, 1_000
"""Upper bound of clock drift: one microsecond plus 1/1,000 of the wait, ten times the drift of any clock."""


def graph_of(tables: TableSet) -> Graph:
    """Return the graph of a run, built once."""
    return tables.memo("whatif graph", lambda: with_asked_posts(_build(tables)))


def _build(tables: TableSet) -> Graph:
    """Concatenate the ranks' nodes, all on the common clock."""
    clocks = rank_clocks(tables)
    ranks = [nodes_of(tables, rank, clocks.host_ns.get(rank, 0)) for rank in tables.ranks]
    start_of_rank = [clocks.align_device(nodes.rank, nodes.start) for nodes in ranks]
    end_of_rank = [clocks.align_device(nodes.rank, nodes.end) for nodes in ranks]
    columns = zip(ranks, waits_of_run(tables, ranks), start_of_rank, end_of_rank, strict=True)
    waits_of_ranks = [_on_one_clock(*columns_of_rank) for columns_of_rank in columns]
    # First node and first lane of each rank in the concatenated arrays.
    first_node = np.cumsum([0, *(len(nodes.lane) for nodes in ranks)]).tolist()
    first_lane = np.cumsum([0, *(nodes.lanes for nodes in ranks)]).tolist()
    start, end = np.concatenate(start_of_rank), np.concatenate(end_of_rank)
    name, names = stacked_codes(nodes.name for nodes in ranks)
    axis, axes = stacked_codes(nodes.axis for nodes in ranks)
    call, further = _calls(tables, ranks, first_node[-1])
    nodes = Nodes(
        rank=np.repeat([nodes.rank for nodes in ranks], np.diff(first_node)),
        lane=np.concatenate([nodes.lane + low for nodes, low in zip(ranks, first_lane[:-1], strict=True)]),
        kind=np.concatenate([nodes.kind for nodes in ranks]),
        start=start,
        duration=end - start,
        step=np.concatenate([nodes.step for nodes in ranks]),
        axis=axis,
        name=name,
        call=call,
        event=np.concatenate([nodes.event for nodes in ranks]),
    )
    numbered_waits = list(zip(waits_of_ranks, first_node[:-1], strict=True))
    edges = Edges(
        source=np.concatenate([waits.source + low for waits, low in numbered_waits]),
        at_end=np.concatenate([waits.at_end for waits in waits_of_ranks]),
        target=np.concatenate([waits.target + low for waits, low in numbered_waits]),
        lag=np.concatenate([waits.lag for waits in waits_of_ranks]),
        kind=np.concatenate([waits.kind for waits in waits_of_ranks]),
    )
    met = _met(nodes, further)
    transfer, tied = _transfers(nodes, met, _ends_together(tables))
    gap = np.concatenate([waits.gap for waits in waits_of_ranks])
    earliest = np.concatenate([waits.earliest for waits in waits_of_ranks])
    return Graph(nodes, gap, earliest, edges, nodes.duration, transfer, tied, tuple(axes), tuple(names), met=met)


def _on_one_clock(nodes: RankNodes, waits: RankWaits, start: Ints, end: Ints) -> RankWaits:
    """Return one rank's edges sorted by target, on the common clock, and its gaps, so that a replay is exact.

    No edge is dropped. An edge that contradicts the timestamps gets a negative lag.
    """
    order = sorted_by(waits.target, np.arange(len(waits.target)))
    source, target, kind = (column[order] for column in (waits.source, waits.target, waits.kind))
    at_end = waits.at_end[order]
    arrived = np.where(at_end, end[source], start[source])
    lag = np.minimum(waits.lag[order], start[target] - arrived)
    earliest = np.where(waits.earliest == nodes.start, start, NEVER)
    lag, gap, earliest = _settled(nodes.first_of_lane, (start, end), (target, arrived, lag), waits.gap, earliest)
    return RankWaits(source, at_end, target, lag, kind, gap, earliest)


def _settled(
    first: Flags, moments: tuple[Ints, Ints], edges: tuple[Ints, Ints, Ints], gap: Ints, earliest: Ints
) -> tuple[Ints, Ints, Ints]:
    """Assign what drift and rounding left unexplained, so that the replay of the unedited graph is exact.

    A few nanoseconds of drift are added to the edge that was waited for. Otherwise the entire wait would become think
    time, which edits cannot shorten. A larger difference is think time. `edges` holds targets, when their sources
    ended, and lags.
    """
    (start, end), (target, source_over, lag) = moments, edges
    # By node: the time since the previous node of its lane ended; `gap` is the part of it that is think time.
    since_lane = np.where(first, 0, start - np.roll(end, 1))
    gap = np.where(first, 0, np.minimum(gap, since_lane))
    lane_bound = np.where(first, earliest, start - since_lane + gap)
    arrived = source_over + lag
    bound = lane_bound.copy()
    np.maximum.at(bound, target, arrived)
    # Nodes that a replay would start too early: the difference is added to the last edge or to think time.
    is_short, is_by_edge = bound < start, bound > lane_bound
    missing = np.where(is_short & is_by_edge, start - bound, 0)
    is_drift = (missing > 0) & (missing <= _DRIFT_NS + since_lane // _DRIFT_SHARE)
    came_last = is_drift[target] & (arrived == bound[target])
    lag = lag + np.where(came_last, missing[target], 0)
    is_short &= ~is_drift
    return lag, np.where(is_short & ~first, since_lane, gap), np.where(is_short & first, start, earliest)


def _calls(tables: TableSet, ranks: list[RankNodes], count: int) -> tuple[Ints, tuple[Ints, Ints]]:
    """Return the call number of each node, counted from 0, and the further calls of batches as nodes and calls.

    The number is -1 unless at least two members of the call were read. A node has further calls if its kernel runs
    several sends and receives (see `tables.communication.parts`).
    """
    call = np.full(count, -1, np.int64)
    matched = calls.match_calls(tables)
    has_several = matched.parts.of_each_call() > 1
    number = np.where(has_several, np.cumsum(has_several) - 1, -1)
    further: list[tuple[Ints, Ints]] = []
    low = 0
    for nodes in ranks:
        parts = matched.parts.of_rank(nodes.rank, "call", "part")
        event = tables.columns("collectives", nodes.rank)["event"]
        call_of_part = np.full(len(event), -1, np.int64)
        call_of_part[parts["part"]] = number[parts["call"]]
        has_call = np.flatnonzero(call_of_part >= 0)
        # The activity of a batch has the batch's first part; its call is that of the first part with a call.
        first_part = rows_of(event, event)[has_call]
        main = rows_of(first_part, nodes.part)
        call[low : low + len(nodes.lane)] = lookup(call_of_part[has_call], main, missing=-1)
        later = np.setdiff1d(np.arange(len(has_call)), main)
        node = rows_of(nodes.part, first_part[later])
        further.append((low + node[node >= 0], call_of_part[has_call[later[node >= 0]]]))
        low += len(nodes.lane)
    node, call_of_node = (np.concatenate(columns) for columns in zip(*further, strict=True))
    return call, (node, call_of_node)


def _met(nodes: Nodes, further: tuple[Ints, Ints]) -> Meetings:
    """Return for batches, and for the other sides of their calls, the nodes that must start before each can end.

    A send that ended before its receive started did not wait for it.
    """
    if not len(further[0]):
        return NO_MEETINGS
    own = np.flatnonzero(nodes.call >= 0)
    node, call = np.append(own, further[0]), np.append(nodes.call[own], further[1])
    is_met = np.zeros(len(nodes), dtype=bool)
    is_met[node[np.isin(call, further[1])]] = True
    is_met[further[0]] = True
    order = np.argsort(call, kind="stable")
    member, call_of_member = node[order], call[order]
    waits = np.flatnonzero(is_met[node])
    low, high = (np.searchsorted(call_of_member, call[waits], side=side) for side in ("left", "right"))
    waiting = np.repeat(node[waits], high - low)
    other = member[np.arange(len(waiting)) + np.repeat(low - np.cumsum(high - low) + (high - low), high - low)]
    is_awaited = nodes.start[other] <= nodes.end[waiting]
    meeting = distinct(waiting[is_awaited] * len(nodes) + other[is_awaited])
    return Meetings(*np.divmod(meeting, max(len(nodes), 1)))


def _ends_together(tables: TableSet) -> Flags:
    """Mark the calls, by number in the graph, that no participant can leave before all have entered."""
    return calls_of(tables).matches("op", *END_TOGETHER)


def _transfers(nodes: Nodes, met: Meetings, ends_together: Flags) -> tuple[Ints, Flags]:
    """Return the time from a call's last start to each participant's end, and mark the participants that wait for it.

    A participant of a broadcast, send or receive that ended before the last one started was not waiting. For other
    calls this is a timestamp error, up to `LARGEST_OFFSET_NS`, and the participant's transfer is negative.
    """
    transfer, tied = np.zeros(len(nodes), np.int64), np.zeros(len(nodes), dtype=bool)
    rows = np.flatnonzero((nodes.call >= 0) & (nodes.kind == NodeKind.COMMUNICATION))
    if not len(rows):
        return transfer, tied
    never = np.iinfo(np.int64).min
    last_of_call = np.full(int(nodes.call.max()) + 1, never)
    np.maximum.at(last_of_call, nodes.call[rows], nodes.start[rows])
    last = np.full(len(nodes), never)
    last[rows] = last_of_call[nodes.call[rows]]
    last[met.node] = never
    np.maximum.at(last, met.node, nodes.start[met.other])
    transfer[rows] = nodes.end[rows] - last[rows]
    tied[rows] = transfer[rows] >= np.where(ends_together[nodes.call[rows]], -LARGEST_OFFSET_NS, 0)
    return transfer, tied
