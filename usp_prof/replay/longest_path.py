"""Longest path: start and end time of every node in the replay graph.

A loop over the nodes would work. For speed, it is replaced with a few hundred array operations:

  1. Lanes are cut into *segments*, and edges enter a segment only at its head. Launches may enter it anywhere, as long
     as they come from a single host segment. Segments are long because device and host rarely synchronize.
  2. A segment is replayed in one operation. `offset` is the sum of the durations and gaps before each node, and `bound`
     is the earliest start that its edges allow:

         start[n] = offset[n] + max over j <= n of (bound[j] - offset[j])

         durations 3 2 4    offset 0 3 5    bound 0 6 7    bound - offset 0 3 2, its running maximum 0 3 3
         so the nodes start at 0 6 8

  3. Segments and calls are ordered in *rounds*, each after everything it waits for. The nodes of a round are adjacent,
     so one running maximum replays all of them. From one segment to the next, offsets drop by `room`, which exceeds the
     length of the run. This raises `bound - offset` above all earlier values.
  4. All members of a call end `transfer` after the last one starts.

The *plan* (segments and rounds) of the unedited graph works for all edits that add no dependency.

Measured on 604,872 nodes with 423,084 edges (8 ranks of 200,000 events): 0.11 CPU s for the plan and 0.15 s for each
replay. A plain loop over the nodes took 0.49 s, plus 0.17 s to convert the arrays to lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import distinct, first_of_run, numbered, sorted_by
from usp_prof.replay.graph import EdgeKind, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.replay.graph import Edges, Graph

_WIDEST = 2**61
_PAIRS_PER_CHUNK = 1 << 14
"""Pairs converted to Python ints per chunk; Python ints use five times the memory of NumPy's."""


@dataclass(frozen=True, slots=True, eq=False)
class Rounds:
    """One entry per round: segments as a range of the plan's nodes, or calls as ranges of calls and members."""

    begin: Ints
    end: Ints
    first_member: Ints
    """-1 for rounds of segments."""
    last_member: Ints

    def __len__(self) -> int:
        return len(self.begin)

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        columns = (self.begin, self.end, self.first_member, self.last_member)
        return zip(*(column.tolist() for column in columns), strict=True)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The order of nodes and calls; `rounds` are replayed in sequence."""

    nodes: Ints
    """The graph's nodes, round by round and segment by segment."""
    place: Ints
    """Index in `nodes` of each node of the graph."""
    heads: Ints
    """Index in `nodes` of the first node of each segment."""
    before: Ints
    """Index in `nodes` of the lane's node before each segment; -1 if the segment is the first of its lane."""
    drop: Ints
    """For each of `nodes`: how much its offset is lowered because of the segments before it in its round."""
    members: Ints
    """Indexes in `nodes` of the calls' members, call by call."""
    first: Ints
    """Index of each call's first member among the members of its round."""
    call_of: Ints
    """For each of `members`: its call among those of its round."""
    rounds: Rounds
    bounds: Ints
    """Index in `nodes` at which each round of segments starts, and the end of the last one."""

    _arrivals: list[Arrivals] = field(default_factory=list, init=False, repr=False)

    def arrivals_of(self, graph: Graph) -> Arrivals:
        """Return the dependencies of a graph; they are computed once for all graphs with the edges of the first."""
        if not self._arrivals:
            self._arrivals.append(_arrivals(graph, self))
        arrivals = self._arrivals[0]
        return arrivals if arrivals.are_of(graph) else _arrivals(graph, self)


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Dependencies, sorted by `target`: `bound[target]` is at least `moments[moment]` plus a lag (see `_lags`)."""

    edges: Edges
    tied: Flags
    """`edges` and `tied` of the graph that has these dependencies."""
    target: Ints
    """Index of the waiting node in the plan's order."""
    moment: Ints
    """Index in `moments` (see `_replayed`)."""
    lag: Ints
    """Index in the lags of the edges, followed by the gaps of the graph's nodes."""
    base: Ints
    """Index of what the moment lacks, in the offsets of the plan's nodes, their offsets plus durations, and 0."""
    first: Ints
    """By round of segments: its first dependency, followed by the number of dependencies."""

    def are_of(self, graph: Graph) -> bool:
        """Return whether these are the dependencies of a graph, whatever its lags are."""
        edges = graph.edges
        return (
            edges.source is self.edges.source
            and edges.target is self.edges.target
            and edges.at_end is self.edges.at_end
            and graph.tied is self.tied
        )


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
    return _laid_out(begin, members, rounds, reach * span(graph), nodes.lane)


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


def _members(graph: Graph) -> tuple[Ints, Ints]:
    """Return the members of calls, call by call, and the call number of each, counted from 0."""
    rows = sorted_by(graph.nodes.call, np.flatnonzero(graph.nodes.call >= 0))
    return rows, numbered(graph.nodes.call[rows])[1]


def _rounds_of_pieces(graph: Graph, segment: Ints, begin: Ints, members: tuple[Ints, Ints]) -> Ints:
    """Return the round of each piece: first the segments, then the calls.

    A piece comes after another if
      an edge  connects a node of the other piece to one of its nodes;
      a lane   continues from the other piece to it;
      a call   has a member in the other piece. Pieces that wait for the end of a member come after the call.
    """
    nodes, edges = graph.nodes, graph.edges
    member_rows, call_of_member = members
    segment_count, call_count = len(begin) - 1, int(call_of_member.max(initial=-1)) + 1
    piece_count = segment_count + call_count
    # By node: the piece that determines its end, which is the call for tied members and the segment for others.
    ended_by = segment.copy()
    is_tied = graph.tied[member_rows]
    ended_by[member_rows[is_tied]] = segment_count + call_of_member[is_tied]
    inner = begin[1:-1]
    inner = inner[nodes.lane[inner] == nodes.lane[inner - 1]]  # first nodes of segments that continue a lane
    of_edges = np.where(edges.at_end, ended_by[edges.source], segment[edges.source])
    before = np.concatenate([of_edges, ended_by[inner - 1], segment[member_rows]])
    behind = np.concatenate([segment[edges.target], segment[inner], segment_count + call_of_member])
    # Number the pieces by measured start: that of a segment's head, or of a call's last member.
    last_begun = np.full(call_count, np.iinfo(np.int64).min)
    np.maximum.at(last_begun, call_of_member, nodes.start[member_rows])
    in_time = np.argsort(np.append(nodes.start[begin[:-1]], last_begun), kind="stable")
    number = np.empty_like(in_time)
    number[in_time] = np.arange(piece_count)
    before, behind = number[before], number[behind]
    pairs = distinct(before[before != behind] * piece_count + behind[before != behind])
    return _rounds(pairs // piece_count, pairs % piece_count, piece_count)[number]


def _rounds(source: Ints, target: Ints, pieces: int) -> Ints:
    """Return the round of each piece: one more than the last that it waits for. Pieces are numbered by measured start.

    A piece normally has a higher number than the pieces it waits for, so one pass over the pairs (sorted by source) is
    enough. Otherwise (cycles), rounds are assigned one at a time.
    """
    round_of = [0] * pieces
    for begin in range(0, len(source), _PAIRS_PER_CHUNK):
        part = slice(begin, begin + _PAIRS_PER_CHUNK)
        for before, behind in zip(source[part].tolist(), target[part].tolist(), strict=True):
            if round_of[before] >= round_of[behind]:
                round_of[behind] = round_of[before] + 1
    rounds = np.array(round_of, np.int64)
    return rounds if (rounds[source] < rounds[target]).all() else _round_by_round(source, target, pieces)


def _round_by_round(source: Ints, target: Ints, pieces: int) -> Ints:
    """Assign rounds one at a time to pieces that wait for nothing; cycles are opened at their earliest piece."""
    # By piece: number of unsatisfied waits, index of its first pair as a source, and its round (-1: not assigned).
    waits_left = np.bincount(target, minlength=pieces).tolist()
    first_pair = np.searchsorted(source, np.arange(pieces + 1)).tolist()
    behind = target.tolist()
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
            for waiting in behind[first_pair[piece] : first_pair[piece + 1]]:
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
    """`nodes`, `heads` and `drop` are as in `Plan`."""
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
    call: Ints
    """By member: its call."""
    first_member: Ints
    """By call: its first member."""
    bounds: Ints
    """By round with calls: its first member, followed by the number of members."""
    round: Ints
    """By round with calls: its round number."""


def _calls_by_round(members: tuple[Ints, Ints], round_of_call: Ints) -> _CallsByRound:
    nodes, call = members
    order = np.argsort(round_of_call[call], kind="stable")
    rounds = round_of_call[call][order]
    is_first_of_call = first_of_run(call[order])
    low = np.flatnonzero(first_of_run(rounds))
    return _CallsByRound(
        members=nodes[order],
        call=np.cumsum(is_first_of_call) - 1,
        first_member=np.flatnonzero(is_first_of_call),
        bounds=np.append(low, len(order)),
        round=rounds[low],
    )


def _laid_out(begin: Ints, members: tuple[Ints, Ints], round_of_piece: Ints, room: int, lane: Ints) -> Plan:
    """Build the plan from the round of each piece; within a round, segments come before calls."""
    segment_count = len(begin) - 1
    segments = _segments_by_round(begin, round_of_piece[:segment_count], room)
    calls = _calls_by_round(members, round_of_piece[segment_count:])
    place = np.empty_like(segments.nodes)
    place[segments.nodes] = np.arange(len(place))
    # Ranges of members and calls of each round with calls.
    low, high = calls.bounds[:-1], calls.bounds[1:]
    low_call, high_call = calls.call[low], calls.call[high - 1] + 1
    none = np.full(len(segments.round), -1)
    turn = np.argsort(np.append(segments.round, calls.round), kind="stable")
    rounds = Rounds(
        begin=np.append(segments.bounds[:-1], low_call)[turn],
        end=np.append(segments.bounds[1:], high_call)[turn],
        first_member=np.append(none, low)[turn],
        last_member=np.append(none, high)[turn],
    )
    head = segments.nodes[segments.heads]
    continues_lane = (head > 0) & (lane[head] == lane[head - 1])
    return Plan(
        nodes=segments.nodes,
        place=place,
        heads=segments.heads,
        before=np.where(continues_lane, place[head - 1], -1),
        drop=segments.drop,
        members=place[calls.members],
        # Both are indexes within a round.
        first=calls.first_member - np.repeat(low, high_call - low_call),
        call_of=calls.call - np.repeat(low_call, high - low),
        rounds=rounds,
        bounds=segments.bounds,
    )


# Replay: start and end times of a graph's nodes, one round of its plan at a time.

_REACH, _FARTHER = 16, 64


def replay(graph: Graph, plan: Plan | None = None) -> Timeline:
    """Replay a graph; the plan of the unedited graph works for all edits that add no dependency."""
    reach = _REACH
    plan = plan or make_plan(graph, reach)
    while (timeline := _replayed(graph, plan)) is None:  # an edit made the run longer than the plan has room for
        reach *= _FARTHER
        plan = make_plan(graph, reach)
    return timeline


def _replayed(graph: Graph, plan: Plan) -> Timeline | None:
    """Return the replayed times, or `None` if the plan's room is too small to keep the segments of a round apart.

    All arrays except those of `graph` are in the plan's order, with times relative to the run's first start.
    """
    nodes, count = graph.nodes, len(graph.nodes)
    if not count:
        return Timeline(nodes.start, nodes.end)
    origin = int(nodes.start.min())
    duration = graph.duration.take(plan.nodes)
    offset = np.cumsum(duration + graph.gap.take(plan.nodes)) - duration - plan.drop
    earliest = np.maximum(graph.earliest.take(plan.nodes), origin - span(graph)) - origin
    bound = earliest - offset
    # Times that other nodes wait for: each node's start minus its offset, then the end of each call member. They are
    # initialized with measured values, which matters only if nodes wait for each other in a cycle.
    members = plan.nodes[plan.members]
    moments = np.concatenate([nodes.start.take(plan.nodes) - origin - offset, nodes.end[members] - origin])
    start_less_offset, ends = moments[:count], moments[count:]
    is_tied = graph.tied[members]
    arrivals = plan.arrivals_of(graph)
    lags = _lags(graph, arrivals, offset, duration)
    _take_rounds(plan, moments, bound, (arrivals, lags), offset[plan.members], graph.transfer[members])
    if (start_less_offset[plan.heads] != bound[plan.heads]).any():
        return None
    start = start_less_offset + offset + origin
    end = start + duration
    end[plan.members[is_tied]] = ends[is_tied] + origin
    return Timeline(start.take(plan.place), end.take(plan.place))


def _arrivals(graph: Graph, plan: Plan) -> Arrivals:
    """Return the edges in the plan's order, plus one per segment for the end of the lane's previous node."""
    edges, count = graph.edges, len(plan.nodes)
    follows = np.flatnonzero(plan.before >= 0)
    heads = plan.heads[follows]
    source = np.concatenate([plan.place[edges.source], plan.before[follows]])
    target = np.concatenate([plan.place[edges.target], heads])
    at_end = np.concatenate([edges.at_end, np.ones(len(heads), dtype=bool)])
    lag = np.concatenate([np.arange(len(edges.lag)), len(edges.lag) + plan.nodes[heads]])
    # Index in `moments` of the end of a tied member; -1 for other nodes, whose end is start plus duration.
    is_tied = graph.tied[plan.nodes[plan.members]]
    end_of_tied = np.full(count, -1, np.int64)
    end_of_tied[plan.members[is_tied]] = count + np.flatnonzero(is_tied)
    moment = np.where(at_end & (end_of_tied[source] >= 0), end_of_tied[source], source)
    base = np.where(moment >= count, 2 * count, np.where(at_end, count + source, source))
    order = np.argsort(target, kind="stable")
    target = target[order]
    first = np.searchsorted(target, plan.bounds)
    return Arrivals(edges, graph.tied, target, moment[order], lag[order], base[order], first)


def _lags(graph: Graph, arrivals: Arrivals, offset: Ints, duration: Ints) -> Ints:
    """Return by dependency the time from its moment to its bound, both less the offsets of their nodes."""
    lag = np.concatenate([graph.edges.lag, graph.gap]).take(arrivals.lag)
    base = np.concatenate([offset, offset + duration, [0]])
    return np.asarray(lag + base.take(arrivals.base) - offset.take(arrivals.target))


def _take_rounds(
    plan: Plan,
    moments: Ints,
    bound: Ints,
    dependencies: tuple[Arrivals, Ints],
    member_offset: Ints,
    transfer: Ints,
) -> None:
    """Fill `moments` round by round; `dependencies` have their lags, and the last two one entry per call member."""
    arrivals, lags = dependencies
    start_less_offset, ends = moments[: len(bound)], moments[len(bound) :]
    first_arrival = iter(arrivals.first.tolist())
    low = next(first_arrival)
    for begin, end, first_member, last_member in plan.rounds:
        if first_member >= 0:  # calls: all members end `transfer` after the last one starts
            part = slice(first_member, last_member)
            begun = start_less_offset.take(plan.members[part]) + member_offset[part]
            last_begun = np.maximum.reduceat(begun, plan.first[begin:end])
            ends[part] = np.maximum(begun, last_begun.take(plan.call_of[part]) + transfer[part])
            continue
        high = next(first_arrival)
        if high > low:
            arrived = moments.take(arrivals.moment[low:high]) + lags[low:high]
            np.maximum.at(bound, arrivals.target[low:high], arrived)
        low = high
        np.maximum.accumulate(bound[begin:end], out=start_less_offset[begin:end])
