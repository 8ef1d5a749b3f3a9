"""In which order is a graph replayed? Lanes cut into segments that nothing enters but at their head.

A segment is replayed at once, as a running maximum over its nodes; the order of segments is topological. Launches may
enter a segment anywhere as long as they come from one segment of the host: device and host run far apart in long
stretches, which is what makes the replay quick.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.whatif.graph import EdgeKind

if TYPE_CHECKING:
    from usp_prof.whatif.graph import Flags, Graph, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Segments are `begin[i]:begin[i + 1]` of the nodes; `order` lists segments, and calls as -1 - call."""

    begin: Ints
    order: tuple[int, ...]
    members: tuple[Ints, ...]
    """Nodes of each call."""


def make_plan(graph: Graph) -> Plan:
    """Cut the lanes and order the pieces."""
    nodes, edges = graph.nodes, graph.edges
    head = np.ones(len(nodes), dtype=bool)
    head[1:] = nodes.lane[1:] != nodes.lane[:-1]
    strong = edges.kind != EdgeKind.LAUNCH
    head[edges.target[strong]] = True
    after_part = np.flatnonzero(graph.tied) + 1
    head[after_part[after_part < len(nodes)]] = True
    _cut_where_the_launcher_changes(graph, head)
    begin = np.append(np.flatnonzero(head), len(nodes))
    segment = np.cumsum(head) - 1
    members = _members(graph)
    return Plan(begin, tuple(_order(graph, segment, begin, members)), members)


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


def _members(graph: Graph) -> tuple[Ints, ...]:
    rows = np.flatnonzero(graph.nodes.call >= 0)
    if not len(rows):
        return ()
    rows = rows[np.argsort(graph.nodes.call[rows], kind="stable")]
    cuts = np.flatnonzero(np.diff(graph.nodes.call[rows])) + 1
    return tuple(np.split(rows, cuts))


def _order(graph: Graph, segment: Ints, begin: Ints, members: tuple[Ints, ...]) -> list[int]:
    """Order pieces by need, the earliest measured first; what a circle holds up goes by its measured time."""
    count, calls = len(begin) - 1, len(members)
    pairs = [np.stack([segment[graph.edges.source], segment[graph.edges.target]])]
    inner = np.flatnonzero(graph.nodes.lane[begin[1:-1]] == graph.nodes.lane[begin[1:-1] - 1])
    follows = np.stack([inner, inner + 1])
    for number, rows in enumerate(members):
        tied = rows[graph.tied[rows]]
        pairs.append(np.stack([segment[rows], np.full(len(rows), count + number)]))
        after = tied + 1
        after = after[
            (after < len(segment)) & (graph.nodes.lane[np.minimum(after, len(segment) - 1)] == graph.nodes.lane[tied])
        ]
        pairs.append(np.stack([np.full(len(after), count + number), segment[after]]))
    ends_of = np.full(len(segment), -1, np.int64)
    for number, rows in enumerate(members):
        ends_of[rows[graph.tied[rows]]] = number
    from_call = (ends_of[graph.edges.source] >= 0) & graph.edges.at_end
    pairs.append(np.stack([count + ends_of[graph.edges.source[from_call]], segment[graph.edges.target[from_call]]]))
    needs = np.unique(np.concatenate([*pairs, follows], axis=1), axis=1)
    needs = needs[:, needs[0] != needs[1]]
    when = np.concatenate(
        [graph.nodes.start[begin[:-1]], [int(graph.nodes.start[rows].max()) for rows in members]]
    ).astype(np.int64)
    return [piece if piece < count else count - 1 - piece for piece in _sorted(needs, when, count + calls)]


def _sorted(needs: Ints, when: Ints, pieces: int) -> list[int]:
    missing = np.bincount(needs[1], minlength=pieces)
    by_source = needs[:, np.argsort(needs[0], kind="stable")]
    starts = np.searchsorted(by_source[0], np.arange(pieces + 1)).tolist()
    targets, left, time = by_source[1].tolist(), missing.tolist(), when.tolist()
    ready = [(time[piece], piece) for piece in np.flatnonzero(missing == 0).tolist()]
    heapify(ready)
    stuck = sorted(((time[piece], piece) for piece in range(pieces)), reverse=True)
    done = bytearray(pieces)
    order: list[int] = []
    while len(order) < pieces:
        while not ready:
            piece = stuck.pop()
            if not done[piece[1]]:
                ready.append(piece)
        piece_now = heappop(ready)[1]
        if done[piece_now]:
            continue
        done[piece_now] = 1
        order.append(piece_now)
        for target in targets[starts[piece_now] : starts[piece_now + 1]]:
            left[target] -= 1
            if left[target] == 0 and not done[target]:
                heappush(ready, (time[target], target))
    return order
