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

from usp_prof.columns.rows import numbered
from usp_prof.replay.graph import EdgeKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from usp_prof.replay.graph import Flags, Graph, Ints

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
    head = nodes.first_of_lane.copy()
    strong = edges.kind != EdgeKind.LAUNCH
    head[edges.target[strong]] = True
    after_part = np.flatnonzero(graph.tied) + 1
    head[after_part[after_part < len(nodes)]] = True
    _cut_where_the_launcher_changes(graph, head)
    begin = np.append(np.flatnonzero(head), len(nodes))
    segment = np.cumsum(head) - 1
    members = _members(graph)
    level = _levels(graph, segment, begin, members)
    return _laid_out(begin, members, level, reach * span(graph), nodes.lane)


def span(graph: Graph) -> int:
    """Measure how far apart the run's first and last moments are."""
    nodes = graph.nodes
    return int(nodes.end.max()) - int(nodes.start.min()) + 1 if len(nodes) else 1


def _cut_where_the_launcher_changes(graph: Graph, head: Flags) -> None:
    """Cut a stream where its launches come from the host's next segment; host segments are final by then."""
    launches = graph.edges.take(graph.edges.kind == EdgeKind.LAUNCH)
    if not len(launches.target):
        return
    segment = np.cumsum(head) - 1
    launcher = np.full(len(head), -1, np.int64)
    launcher[launches.target] = segment[launches.source]
    same_lane = launches.target[1:]
    changed = (launcher[same_lane] != launcher[launches.target[:-1]]) | (
        graph.nodes.lane[same_lane] != graph.nodes.lane[launches.target[:-1]]
    )
    head[launches.target[:1]] = True
    head[same_lane[changed]] = True


def _members(graph: Graph) -> tuple[Ints, Ints]:
    """Give the calls' members, call by call, and the number of each one's call, counted from 0."""
    rows = np.flatnonzero(graph.nodes.call >= 0)
    rows = rows[np.argsort(graph.nodes.call[rows], kind="stable")]
    return rows, numbered(graph.nodes.call[rows])[1]


def _levels(graph: Graph, segment: Ints, begin: Ints, members: tuple[Ints, Ints]) -> Ints:
    """Give the round of each piece: the segments, then the calls.

    What comes behind a call comes behind its members by way of it: that is said once.
    """
    nodes, edges, (rows, number) = graph.nodes, graph.edges, members
    count, calls = len(begin) - 1, int(number.max(initial=-1)) + 1
    tied = graph.tied[rows]
    after = rows[tied] + 1
    follows = after < len(segment)
    follows[follows] = nodes.lane[after[follows]] == nodes.lane[after[follows] - 1]
    ends = begin[1:-1]
    inner = np.flatnonzero((nodes.lane[ends] == nodes.lane[ends - 1]) & ~graph.tied[ends - 1])
    ends_of = np.full(len(segment), -1, np.int64)
    ends_of[rows[tied]] = number[tied]
    from_call = (ends_of[edges.source] >= 0) & edges.at_end
    direct = np.flatnonzero(~from_call)
    call = count + number
    source = [
        segment[edges.source[direct]],
        inner,
        segment[rows],
        call[tied][follows],
        count + ends_of[edges.source[from_call]],
    ]
    target = [segment[edges.target[direct]], inner + 1, call, segment[after[follows]], segment[edges.target[from_call]]]
    pieces = count + calls
    last = np.full(calls, np.iinfo(np.int64).min)
    np.maximum.at(last, number, nodes.start[rows])
    in_time = np.argsort(np.append(nodes.start[begin[:-1]], last), kind="stable")
    place = np.empty_like(in_time)
    place[in_time] = np.arange(pieces)
    before, behind = place[np.concatenate(source)], place[np.concatenate(target)]
    needs = np.sort(before[before != behind] * pieces + behind[before != behind])
    needs = needs[np.append(True, needs[1:] != needs[:-1])[: len(needs)]]  # np.unique hashes, which takes longer
    return _rounds(needs // pieces, needs % pieces, pieces)[place]


def _rounds(source: Ints, target: Ints, pieces: int) -> Ints:
    """Give each piece the round behind the last that it waits for; pieces are numbered as they were measured to begin.

    What waits for something comes behind it in that order, so that one look at each need is enough; where it does not
    (a circle), pieces are taken round by round.
    """
    level = [0] * pieces
    for begin in range(0, len(source), _LISTED):
        part = slice(begin, begin + _LISTED)
        for before, behind in zip(source[part].tolist(), target[part].tolist(), strict=True):
            if level[before] >= level[behind]:
                level[behind] = level[before] + 1
    found = np.array(level, np.int64)
    return found if (found[source] < found[target]).all() else _round_by_round(source, target, pieces)


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


def _laid_out(begin: Ints, members: tuple[Ints, Ints], level: Ints, room: int, lane: Ints) -> Plan:
    """Lay the pieces side by side, round by round."""
    count = len(begin) - 1
    order = np.argsort(level[:count], kind="stable")
    length = np.diff(begin)[order]
    heads = np.cumsum(length) - length
    nodes = np.repeat(begin[:-1][order] - heads, length) + np.arange(begin[-1])
    place = np.empty_like(nodes)
    place[nodes] = np.arange(len(nodes))
    ranked = level[:count][order]
    width = max(1, _WIDEST // room)
    nth = np.arange(count) - np.searchsorted(ranked, ranked)
    opens = np.flatnonzero(nth % width == 0)
    stops = np.append(heads, len(nodes))[np.append(opens, count)[1:]]
    drop = np.repeat(nth % width, length) * (room if width > 1 else 0)
    rows, number = members
    by_level = np.argsort(level[count:][number], kind="stable")
    rows, of_member = rows[by_level], level[count:][number][by_level]
    opened = np.append(True, np.diff(number[by_level]) != 0)[: len(rows)]
    first = np.flatnonzero(opened)
    call_of = np.cumsum(opened) - 1
    low = np.flatnonzero(np.append(True, np.diff(of_member) != 0)[: len(rows)])
    high = np.append(low, len(rows))[1:]
    first_call = call_of[low]
    rounds = Rounds(
        np.append(heads[opens], first_call),
        np.append(stops, call_of[high - 1] + 1),
        np.append(np.full(len(opens), -1), low),
        np.append(np.full(len(opens), -1), high),
    )
    turn = np.argsort(np.append(ranked[opens], of_member[low]), kind="stable")  # segments before calls of their level
    rounds = Rounds(*(getattr(rounds, name)[turn] for name in ("begin", "end", "first_member", "last_member")))
    call_of -= np.repeat(first_call, high - low)
    first -= np.repeat(low, np.diff(first_call, append=len(first)))
    bounds = np.append(heads[opens], len(nodes))
    head = nodes[heads]
    inner = (head > 0) & (lane[head] == lane[head - 1])
    before = np.where(inner, place[head - 1], -1)
    return Plan(nodes, place, heads, before, drop, place[rows], first, call_of, rounds, bounds)
