"""Replay plan: the order in which the nodes of the replay graph are replayed, with the dependencies of each node.

  1. Lanes are cut into *segments*, and edges enter a segment only at its head. Launches may enter it anywhere, as long
     as they come from a single host segment. Segments are long because device and host rarely synchronize.
  2. Segments and calls are ordered in *rounds*, each after everything it waits for. The nodes of a round are adjacent,
     so one operation replays all of them.

A plan depends only on what waits for what, not on durations, gaps and lags. So one plan works for all graphs with the
same dependencies (`Graph.waits_as`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import distinct, first_of_run, numbered, sorted_by
from usp_prof.replay.graph import EdgeKind, Graph

_WIDEST = 2**61
_BLOCK = 1 << 15
"""Nodes per block of rounds, whose arrays fit into the processor's cache."""
_PAIRS_PER_CHUNK = 1 << 14
"""Pairs converted to Python ints per chunk; Python ints use five times the memory of NumPy's."""


@dataclass(frozen=True, slots=True, eq=False)
class Rounds:
    """Consecutive rounds, in the order in which they are replayed: one entry per round in each array."""

    is_call: Flags
    begin: Ints
    end: Ints
    """Range in the nodes of the block or, if `is_call`, in the plan's calls."""
    low: Ints
    high: Ints
    """Range in the arrivals of the block or, if `is_call`, in the plan's call members."""

    def __len__(self) -> int:
        return len(self.begin)

    def __iter__(self) -> Iterator[tuple[bool, int, int, int, int]]:
        columns = (self.is_call, self.begin, self.end, self.low, self.high)
        return zip(*(column.tolist() for column in columns), strict=True)


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Dependencies, sorted by `target`: `target` starts at least a lag after a moment (see `longest_path`)."""

    target: Ints
    """Index of the waiting node; in a block, among its nodes."""
    moment: Ints
    """Index in the moments: the start of each of the plan's nodes, then the end of each call member."""
    edge: Ints
    """The graph's edge; -1 for the wait for the previous node of the lane."""
    ended: Ints
    """The graph's node whose duration is added to the moment, because its end is awaited; -1 if there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Consecutive rounds with their nodes and dependencies."""

    rounds: Rounds
    first: int
    """Index in the plan's nodes of the block's first node."""
    nodes: Ints
    """The graph's nodes, round by round and segment by segment."""
    heads: Ints
    """Index in `nodes` of the first node of each segment."""
    drop: Ints
    """By node: how much its offset is lowered because of the segments before it in its round."""
    arrivals: Arrivals


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The order of nodes and calls; the rounds of the blocks are replayed in sequence."""

    blocks: tuple[Block, ...]
    nodes: Ints
    """The nodes of all blocks."""
    place: Ints
    """Index in `nodes` of each node of the graph."""
    members: Ints
    """Indexes in `nodes` of the calls' members, call by call."""
    ends: Flags
    """Whether the call determines the end of the member (see `Members`)."""
    first: Ints
    """Index of each call's first member among the members of its round."""
    call_of: Ints
    """For each of `members`: its call among those of its round."""


def make_plan(graph: Graph, reach: int = 16) -> Plan:
    """Compute the segments and rounds of a graph, valid for edits that make the run up to `reach` times as long."""
    nodes, edges = graph.nodes, graph.edges
    # Segments start at the first node of a lane, at targets of edges other than launches, and after call members.
    is_head = nodes.first_of_lane.copy()
    is_head[edges.target[edges.kind != EdgeKind.LAUNCH]] = True
    after_member = np.flatnonzero(graph.tied) + 1
    is_head[after_member[after_member < len(nodes)]] = True
    _cut_where_the_launcher_changes(graph, is_head)
    begin = np.append(np.flatnonzero(is_head), len(nodes))
    segment = np.cumsum(is_head) - 1
    members = _members(graph)
    rounds = _rounds_of_pieces(graph, segment, begin, members)
    return _laid_out(graph, begin, members, rounds, reach * span(graph))


def span(graph: Graph) -> int:
    """Return the time from the run's first start to its last end."""
    nodes = graph.nodes
    return int(nodes.end.max()) - int(nodes.start.min()) + 1 if len(nodes) else 1


def _cut_where_the_launcher_changes(graph: Graph, is_head: Flags) -> None:
    """Cut streams at launches from a new host segment; host segments must already be final."""
    launches = graph.edges.take(graph.edges.kind == EdgeKind.LAUNCH)
    if not len(launches.target):
        return
    # Edges are sorted by target, so launches of one stream follow each other.
    launcher = (np.cumsum(is_head) - 1)[launches.source]
    lane = graph.nodes.lane[launches.target]
    is_head[launches.target[first_of_run(launcher, lane)]] = True


@dataclass(frozen=True, slots=True, eq=False)
class _Members:
    """Members of calls, call by call; a node with meetings of its own also has a call of its own for them."""

    node: Ints
    call: Ints
    """Number of the call, counted from 0."""
    ends: Flags
    """Whether this call determines the member's end: it is tied, and has no call of its own elsewhere."""


def _members(graph: Graph) -> _Members:
    nodes, met = graph.nodes, graph.met
    rows = sorted_by(nodes.call, np.flatnonzero(nodes.call >= 0))
    meets = np.zeros(len(nodes), dtype=bool)
    meets[met.node] = True
    call = np.append(nodes.call[rows], int(nodes.call.max(initial=-1)) + 1 + met.node)
    node = np.append(rows, met.other)
    ends = np.append(~meets[rows], met.node == met.other)
    return _Members(node, numbered(call)[1], ends & graph.tied[node])


def _rounds_of_pieces(graph: Graph, segment: Ints, begin: Ints, members: _Members) -> Ints:
    """Return the round of each piece: first the segments, then the calls.

    A piece comes after another if
      an edge  connects a node of the other piece to one of its nodes;
      a lane   continues from the other piece to it;
      a call   has a member in the other piece. Pieces that wait for the end of a member come after the call.
    """
    nodes, edges = graph.nodes, graph.edges
    member_rows, call_of_member = members.node, members.call
    segment_count, call_count = len(begin) - 1, int(call_of_member.max(initial=-1)) + 1
    piece_count = segment_count + call_count
    # By node: the piece that determines its end, which is the call for tied members and the segment for others.
    ended_by = segment.copy()
    ended_by[member_rows[members.ends]] = segment_count + call_of_member[members.ends]
    inner = begin[1:-1]
    inner = inner[nodes.lane[inner] == nodes.lane[inner - 1]]  # first nodes of segments that continue a lane
    of_edges = np.where(edges.at_end, ended_by[edges.source], segment[edges.source])
    before = np.concatenate([of_edges, ended_by[inner - 1], segment[member_rows]])
    after = np.concatenate([segment[edges.target], segment[inner], segment_count + call_of_member])
    # Number the pieces by measured start: that of a segment's head, or of a call's last member.
    last_begun = np.full(call_count, np.iinfo(np.int64).min)
    np.maximum.at(last_begun, call_of_member, nodes.start[member_rows])
    in_time = np.argsort(np.append(nodes.start[begin[:-1]], last_begun), kind="stable")
    number = np.empty_like(in_time)
    number[in_time] = np.arange(piece_count)
    before, after = number[before], number[after]
    pairs = distinct(before[before != after] * piece_count + after[before != after])
    return _rounds(pairs // piece_count, pairs % piece_count, piece_count)[number]


def _rounds(source: Ints, target: Ints, pieces: int) -> Ints:
    """Return the round of each piece: one more than the last that it waits for. Pieces are numbered by measured start.

    A piece normally has a higher number than the pieces it waits for, so one pass over the pairs (sorted by source) is
    enough. Otherwise (cycles), rounds are assigned one at a time.
    """
    round_of = [0] * pieces
    for begin in range(0, len(source), _PAIRS_PER_CHUNK):
        part = slice(begin, begin + _PAIRS_PER_CHUNK)
        for before, after in zip(source[part].tolist(), target[part].tolist(), strict=True):
            if round_of[before] >= round_of[after]:
                round_of[after] = round_of[before] + 1
    rounds = np.array(round_of, np.int64)
    return rounds if (rounds[source] < rounds[target]).all() else _round_by_round(source, target, pieces)


def _round_by_round(source: Ints, target: Ints, pieces: int) -> Ints:
    """Assign rounds one at a time to pieces that wait for nothing; cycles are opened at their earliest piece."""
    # By piece: number of unsatisfied waits, index of its first pair as a source, and its round (-1: not assigned).
    waits_left = np.bincount(target, minlength=pieces).tolist()
    first_pair = np.searchsorted(source, np.arange(pieces + 1)).tolist()
    after = target.tolist()
    round_of = [-1] * pieces
    earliest = number = 0
    ready = [piece for piece in range(pieces) if not waits_left[piece]]
    left = pieces
    while left:
        if not ready:  # a cycle: open it at the first remaining piece
            while round_of[earliest] >= 0:
                earliest += 1
            ready = [earliest]
        for piece in ready:
            round_of[piece] = number
        number += 1
        left -= len(ready)
        freed = []
        for piece in ready:
            for waiting in after[first_pair[piece] : first_pair[piece + 1]]:
                waits_left[waiting] -= 1
                if not waits_left[waiting] and round_of[waiting] < 0:
                    freed.append(waiting)
        ready = freed
    return np.array(round_of, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _SegmentsByRound:
    """Segments in the order of their rounds, and the ranges of nodes that are replayed in one operation."""

    nodes: Ints
    heads: Ints
    drop: Ints
    """`nodes`, `heads` and `drop` are as in `Block`."""
    bounds: Ints
    """Index in `nodes` at which each range starts, and the end of the last one."""
    round: Ints
    """By range: its round."""


def _segments_by_round(begin: Ints, round_of_segment: Ints, room: int) -> _SegmentsByRound:
    """Order segments by round; `begin` holds the first node of each, followed by the number of nodes."""
    order = np.argsort(round_of_segment, kind="stable")
    rounds, length = round_of_segment[order], np.diff(begin)[order]
    heads = np.cumsum(length) - length
    # Nodes of a segment are consecutive, both in `nodes` and in the graph.
    nodes = np.repeat(begin[:-1][order] - heads, length) + np.arange(begin[-1])
    # Offsets have room for `widest` segments at a time; a larger round is split into several ranges.
    widest = max(1, _WIDEST // room)
    nth_of_range = (np.arange(len(order)) - np.searchsorted(rounds, rounds)) % widest
    drop = np.repeat(nth_of_range, length) * (room if widest > 1 else 0)
    opening = np.flatnonzero(nth_of_range == 0)
    return _SegmentsByRound(nodes, heads, drop, np.append(heads[opening], len(nodes)), rounds[opening])


@dataclass(frozen=True, slots=True, eq=False)
class _CallsByRound:
    """Members of calls in the order of their rounds, call by call; calls are numbered in that order."""

    members: Ints
    """The graph's nodes."""
    ends: Flags
    """By member: whether its call determines its end."""
    call: Ints
    """By member: its call."""
    first_member: Ints
    """By call: its first member."""
    bounds: Ints
    """By round with calls: its first member, followed by the number of members."""
    round: Ints
    """By round with calls: its round number."""


def _calls_by_round(members: _Members, round_of_call: Ints) -> _CallsByRound:
    order = np.argsort(round_of_call[members.call], kind="stable")
    rounds = round_of_call[members.call][order]
    is_first_of_call = first_of_run(members.call[order])
    low = np.flatnonzero(first_of_run(rounds))
    return _CallsByRound(
        members=members.node[order],
        ends=members.ends[order],
        call=np.cumsum(is_first_of_call) - 1,
        first_member=np.flatnonzero(is_first_of_call),
        bounds=np.append(low, len(order)),
        round=rounds[low],
    )


def _laid_out(graph: Graph, begin: Ints, members: _Members, round_of_piece: Ints, room: int) -> Plan:
    """Build the plan from the round of each piece; within a round, segments come before calls."""
    segment_count = len(begin) - 1
    segments = _segments_by_round(begin, round_of_piece[:segment_count], room)
    calls = _calls_by_round(members, round_of_piece[segment_count:])
    place = np.empty_like(segments.nodes)
    place[segments.nodes] = np.arange(len(place))
    # Ranges of members and calls of each round with calls.
    low, high = calls.bounds[:-1], calls.bounds[1:]
    low_call, high_call = calls.call[low], calls.call[high - 1] + 1
    arrivals = _arrivals(graph, segments, place, calls)
    first_arrival = np.searchsorted(arrivals.target, segments.bounds)
    turn = np.argsort(np.append(segments.round, calls.round), kind="stable")
    rounds = Rounds(
        is_call=turn >= len(segments.round),
        begin=np.append(segments.bounds[:-1], low_call)[turn],
        end=np.append(segments.bounds[1:], high_call)[turn],
        low=np.append(first_arrival[:-1], low)[turn],
        high=np.append(first_arrival[1:], high)[turn],
    )
    return Plan(
        blocks=tuple(_blocks(segments, rounds, arrivals)),
        nodes=segments.nodes,
        place=place,
        members=place[calls.members],
        ends=calls.ends,
        # Both are indexes within a round.
        first=calls.first_member - np.repeat(low, high_call - low_call),
        call_of=calls.call - np.repeat(low_call, high - low),
    )


def _arrivals(graph: Graph, segments: _SegmentsByRound, place: Ints, calls: _CallsByRound) -> Arrivals:
    """Return the edges in the plan's order, plus one per segment for the end of the lane's previous node."""
    edges, lane, count = graph.edges, graph.nodes.lane, len(place)
    head = segments.nodes[segments.heads]
    after_lane = head[(head > 0) & (lane[head] == lane[head - 1])]
    source = np.concatenate([edges.source, after_lane - 1])
    target = place[np.concatenate([edges.target, after_lane])]
    at_end = np.concatenate([edges.at_end, np.ones(len(after_lane), dtype=bool)])
    edge = np.append(np.arange(len(edges.target)), np.full(len(after_lane), -1))
    # Index in the moments of the end of a tied member; -1 for other nodes, whose end is start plus duration.
    end_of_tied = np.full(count, -1, np.int64)
    end_of_tied[calls.members[calls.ends]] = count + np.flatnonzero(calls.ends)
    is_moment = at_end & (end_of_tied[source] >= 0)
    moment = np.where(is_moment, end_of_tied[source], place[source])
    ended = np.where(at_end & ~is_moment, source, -1)
    order = np.argsort(target, kind="stable")
    return Arrivals(target[order], moment[order], edge[order], ended[order])


def _blocks(segments: _SegmentsByRound, rounds: Rounds, arrivals: Arrivals) -> Iterator[Block]:
    """Yield the rounds in blocks of about `_BLOCK` nodes; each starts with segments."""
    number = np.maximum.accumulate(np.where(rounds.is_call, 0, rounds.begin // _BLOCK))
    cuts = np.append(np.flatnonzero(first_of_run(number)), len(rounds)).tolist()
    for begin, end in pairwise(cuts):
        part = slice(begin, end)
        is_call = rounds.is_call[part]
        node, last_node = int(rounds.begin[begin]), int(rounds.end[part][~is_call][-1])
        arrival, last_arrival = int(rounds.low[begin]), int(rounds.high[part][~is_call][-1])
        head, last_head = np.searchsorted(segments.heads, (node, last_node))
        before_nodes, before_arrivals = np.where(is_call, 0, node), np.where(is_call, 0, arrival)
        own = slice(arrival, last_arrival)
        yield Block(
            Rounds(
                is_call,
                rounds.begin[part] - before_nodes,
                rounds.end[part] - before_nodes,
                rounds.low[part] - before_arrivals,
                rounds.high[part] - before_arrivals,
            ),
            node,
            segments.nodes[node:last_node],
            segments.heads[head:last_head] - node,
            segments.drop[node:last_node],
            Arrivals(arrivals.target[own] - node, arrivals.moment[own], arrivals.edge[own], arrivals.ended[own]),
        )
