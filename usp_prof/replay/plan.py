"""Plan of a replay: lanes cut into segments that are entered only at their head, laid in rounds.

A segment is replayed at once, as a running maximum over its nodes. Launches may enter a segment anywhere as long as
they come from one segment of the host: device and host run far apart in long stretches. All segments whose needs are
met make a round; the nodes of a round lie side by side, so that one running maximum replays them all: behind each
segment the offsets drop by `room`, more than any two moments are apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import distinct, first_of_run, numbered, sorted_by
from usp_prof.replay.graph import EdgeKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.replay.graph import Graph

_WIDEST = 2**61
_LISTED = 1 << 14
"""Needs that are looked at as numbers of Python's at once: they take five times the memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Rounds:
    """An entry for each round: segments, as a range of the plan's nodes, or calls, as ranges of calls and members."""

    begin: Ints
    end: Ints
    first_member: Ints
    """-1 where no calls end in a round."""
    last_member: Ints

    def __len__(self) -> int:
        return len(self.begin)

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        columns = (self.begin, self.end, self.first_member, self.last_member)
        return zip(*(column.tolist() for column in columns), strict=True)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The order of nodes and calls; `rounds` are replayed one after the other."""

    nodes: Ints
    """The graph's nodes, round by round and segment by segment."""
    place: Ints
    """Where each of the graph's nodes lies in `nodes`."""
    heads: Ints
    """Where segments begin in `nodes`."""
    before: Ints
    """Where in `nodes` the lane's node before each segment lies; -1 where the segment opens its lane."""
    drop: Ints
    """For each of `nodes`, by how much its offset is lowered for the segments before it in its round."""
    members: Ints
    """Where the calls' members lie in `nodes`, call by call."""
    first: Ints
    """Where each call begins among the members of its round."""
    call_of: Ints
    """For each of `members`, its call among those of its round."""
    rounds: Rounds
    bounds: Ints
    """Where in `nodes` the rounds of segments begin, and where the last ends."""


def make_plan(graph: Graph, reach: int = 16) -> Plan:
    """Cut the lanes and order the pieces; edits may lengthen the run by up to `reach`, or it is to be made again."""
    nodes, edges = graph.nodes, graph.edges
    # Segments begin with a lane, where anything but a launch arrives, and behind a member of a call.
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
    """Measure how far apart the run's first and last moments are."""
    nodes = graph.nodes
    return int(nodes.end.max()) - int(nodes.start.min()) + 1 if len(nodes) else 1


def _cut_where_the_launcher_changes(graph: Graph, is_head: Flags) -> None:
    """Cut a stream where its launches come from the host's next segment; host segments are final by then."""
    launches = graph.edges.take(graph.edges.kind == EdgeKind.LAUNCH)
    if not len(launches.target):
        return
    # Edges are sorted by target, so launches of one stream follow each other.
    launcher = (np.cumsum(is_head) - 1)[launches.source]
    lane = graph.nodes.lane[launches.target]
    is_head[launches.target[first_of_run(launcher, lane)]] = True


def _members(graph: Graph) -> tuple[Ints, Ints]:
    """Give the calls' members, call by call, and the number of each one's call, counted from 0."""
    rows = sorted_by(graph.nodes.call, np.flatnonzero(graph.nodes.call >= 0))
    return rows, numbered(graph.nodes.call[rows])[1]


def _rounds_of_pieces(graph: Graph, segment: Ints, begin: Ints, members: tuple[Ints, Ints]) -> Ints:
    """Give the round of each piece: first the segments, then the calls.

    A piece comes behind another where
      an edge  goes from a node of the other to one of its own;
      a lane   goes on from the other to it;
      a call   has a member in the other; what comes behind a member's end comes behind the call.
    """
    nodes, edges = graph.nodes, graph.edges
    member_rows, call_of_member = members
    segment_count, call_count = len(begin) - 1, int(call_of_member.max(initial=-1)) + 1
    piece_count = segment_count + call_count
    # By node: the piece that says when it ends. Of tied members it is their call, of all others their segment.
    ended_by = segment.copy()
    is_tied = graph.tied[member_rows]
    ended_by[member_rows[is_tied]] = segment_count + call_of_member[is_tied]
    inner = begin[1:-1]
    inner = inner[nodes.lane[inner] == nodes.lane[inner - 1]]  # first nodes of segments that go on with a lane
    of_edges = np.where(edges.at_end, ended_by[edges.source], segment[edges.source])
    before = np.concatenate([of_edges, ended_by[inner - 1], segment[member_rows]])
    behind = np.concatenate([segment[edges.target], segment[inner], segment_count + call_of_member])
    # Number the pieces by when they were measured to begin: a segment with its head, a call with its last member.
    last_begun = np.full(call_count, np.iinfo(np.int64).min)
    np.maximum.at(last_begun, call_of_member, nodes.start[member_rows])
    in_time = np.argsort(np.append(nodes.start[begin[:-1]], last_begun), kind="stable")
    number = np.empty_like(in_time)
    number[in_time] = np.arange(piece_count)
    before, behind = number[before], number[behind]
    pairs = distinct(before[before != behind] * piece_count + behind[before != behind])
    return _rounds(pairs // piece_count, pairs % piece_count, piece_count)[number]


def _rounds(source: Ints, target: Ints, pieces: int) -> Ints:
    """Give each piece the round after the last that it waits for; pieces are numbered as they were measured to begin.

    A piece has a higher number than what it waits for, so one look at each pair (sorted by source) is enough. Where it
    has not (a circle), pieces are taken round by round.
    """
    round_of = [0] * pieces
    for begin in range(0, len(source), _LISTED):
        part = slice(begin, begin + _LISTED)
        for before, behind in zip(source[part].tolist(), target[part].tolist(), strict=True):
            if round_of[before] >= round_of[behind]:
                round_of[behind] = round_of[before] + 1
    rounds = np.array(round_of, np.int64)
    return rounds if (rounds[source] < rounds[target]).all() else _round_by_round(source, target, pieces)


def _round_by_round(source: Ints, target: Ints, pieces: int) -> Ints:
    """Take in each round what waits for nothing; what a circle holds up goes by its measured time."""
    left = np.bincount(target, minlength=pieces).tolist()
    first = np.searchsorted(source, np.arange(pieces + 1)).tolist()
    targets = target.tolist()
    level = [-1] * pieces
    earliest = 0
    ready = [piece for piece in range(pieces) if not left[piece]]
    done = number = 0
    while done < pieces:
        if not ready:
            while level[earliest] >= 0:
                earliest += 1
            ready = [earliest]
        for piece in ready:
            level[piece] = number
        done, number, freed = done + len(ready), number + 1, []
        for piece in ready:
            for each in targets[first[piece] : first[piece + 1]]:
                left[each] -= 1
                if not left[each] and level[each] < 0:
                    freed.append(each)
        ready = freed
    return np.array(level, np.int64)


def _laid_out(begin: Ints, members: tuple[Ints, Ints], round_of_piece: Ints, room: int, lane: Ints) -> Plan:
    """Lay segments, and members of calls, side by side, round by round."""
    segment_count = len(begin) - 1
    # Segments in the order of their rounds, their nodes behind each other.
    order = np.argsort(round_of_piece[:segment_count], kind="stable")
    round_of_segment = round_of_piece[order]
    length = np.diff(begin)[order]
    heads = np.cumsum(length) - length
    nodes = np.repeat(begin[:-1][order] - heads, length) + np.arange(begin[-1])
    place = np.empty_like(nodes)
    place[nodes] = np.arange(len(nodes))
    # Offsets have room for so many segments at once; a round of more is cut into several.
    widest = max(1, _WIDEST // room)
    nth_of_round = np.arange(segment_count) - np.searchsorted(round_of_segment, round_of_segment)
    opening = np.flatnonzero(nth_of_round % widest == 0)
    drop = np.repeat(nth_of_round % widest, length) * (room if widest > 1 else 0)
    bounds = np.append(heads[opening], len(nodes))
    # Members of calls in the order of their rounds, call by call; calls are numbered in that order.
    member_rows, call_of_member = members
    round_of_member = round_of_piece[segment_count:][call_of_member]
    order = np.argsort(round_of_member, kind="stable")
    member_rows, round_of_member = member_rows[order], round_of_member[order]
    first_member = _run_starts(call_of_member[order])
    call_of_member = np.repeat(np.arange(len(first_member)), np.diff(first_member, append=len(order)))
    low = _run_starts(round_of_member)
    high = np.append(low, len(order))[1:]
    low_call, high_call = call_of_member[low], call_of_member[high - 1] + 1
    none = np.full(len(opening), -1)
    # Of one round, segments go before calls.
    turn = np.argsort(np.append(round_of_segment[opening], round_of_member[low]), kind="stable")
    rounds = Rounds(
        begin=np.append(bounds[:-1], low_call)[turn],
        end=np.append(bounds[1:], high_call)[turn],
        first_member=np.append(none, low)[turn],
        last_member=np.append(none, high)[turn],
    )
    head = nodes[heads]
    goes_on = (head > 0) & (lane[head] == lane[head - 1])
    return Plan(
        nodes=nodes,
        place=place,
        heads=heads,
        before=np.where(goes_on, place[head - 1], -1),
        drop=drop,
        members=place[member_rows],
        # Both are counted within a round.
        first=first_member - np.repeat(low, high_call - low_call),
        call_of=call_of_member - np.repeat(low_call, high - low),
        rounds=rounds,
        bounds=bounds,
    )


def _run_starts(values: Ints) -> Ints:
    """Give where runs of equal values begin."""
    return np.flatnonzero(first_of_run(values))
