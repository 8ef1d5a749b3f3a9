"""How does a run become a graph? Each rank's nodes and waits on one clock, and the calls that tie ranks together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.tables import calls, clock
from usp_prof.whatif.graph import NEVER, Edges, Graph, NodeKind, Nodes
from usp_prof.whatif.posted import with_asked_posts
from usp_prof.whatif.rank_nodes import nodes_of
from usp_prof.whatif.waits import waits_of

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.graph import Flags, Ints
    from usp_prof.whatif.rank_nodes import RankNodes

_DRIFT_NS, _DRIFT_SHARE = 1_000, 1_000  # a microsecond, and a thousandth of the wait: ten times any clock's drift


def graph_of(tables: TableSet) -> Graph:
    """Build the graph of a run, once."""
    return tables.memo("whatif graph", lambda: with_asked_posts(_build(tables)))


def _build(tables: TableSet) -> Graph:
    clocks = clock.of(tables)
    ranks = [nodes_of(tables, rank) for rank in tables.ranks]
    waits = [waits_of(tables, nodes) for nodes in ranks]
    base = np.cumsum([0, *(len(nodes.lane) for nodes in ranks)])
    lane_base = np.cumsum([0, *(nodes.lanes for nodes in ranks)])
    rank = np.concatenate([np.full(len(nodes.lane), nodes.rank) for nodes in ranks])
    start = np.concatenate([clocks.align(nodes.rank, nodes.start) for nodes in ranks])
    end = np.concatenate([clocks.align(nodes.rank, nodes.end) for nodes in ranks])
    names, axes = _texts(ranks, "name"), _texts(ranks, "axis")
    call = _calls(tables, ranks, len(rank))
    nodes = Nodes(
        rank,
        np.concatenate([nodes.lane + low for nodes, low in zip(ranks, lane_base[:-1], strict=True)]),
        np.concatenate([nodes.kind for nodes in ranks]),
        start,
        end - start,
        np.concatenate([nodes.step for nodes in ranks]),
        axes[0],
        names[0],
        call,
        np.concatenate([nodes.event for nodes in ranks]),
    )
    edges, dropped = _edges(waits, base, nodes)
    transfer, tied = _transfers(nodes)
    gap = np.concatenate([each.gap for each in waits])
    own = np.concatenate([nodes.start for nodes in ranks])
    given = np.concatenate([each.earliest for each in waits])
    earliest = np.where(given == own, start, NEVER)
    edges, gap, earliest = _settled(nodes, edges, gap, earliest)
    return Graph(nodes, gap, earliest, edges, nodes.duration, transfer, tied, axes[1], names[1], dropped)


def _settled(nodes: Nodes, edges: Edges, gap: Ints, earliest: Ints) -> tuple[Edges, Ints, Ints]:
    """Make up for what drift, rounding and dropped edges left unexplained: then the replay is exact.

    The few nanoseconds of drift go to the edge that was waited for, else all of that wait would become think time
    which no edit can shorten; what is larger is think time.
    """
    first = np.ones(len(nodes), dtype=bool)
    first[1:] = nodes.lane[1:] != nodes.lane[:-1]
    room = np.where(first, 0, nodes.start - np.roll(nodes.end, 1))
    gap = np.where(first, 0, np.minimum(gap, room))
    own = np.where(first, earliest, nodes.start - room + gap)
    arrived = np.where(edges.at_end, nodes.end[edges.source], nodes.start[edges.source]) + edges.lag
    bound = own.copy()
    np.maximum.at(bound, edges.target, arrived)
    short, waited = bound < nodes.start, bound > own
    missing = np.where(short & waited, nodes.start - np.where(waited, bound, nodes.start), 0)
    drifted = (missing > 0) & (missing <= _DRIFT_NS + room // _DRIFT_SHARE)
    held = drifted[edges.target] & (arrived == bound[edges.target])
    lag = edges.lag + np.where(held, missing[edges.target], 0)
    short &= ~drifted
    gap, earliest = np.where(short & ~first, room, gap), np.where(short & first, nodes.start, earliest)
    return replace(edges, lag=lag), gap, earliest


def _texts(ranks: list[RankNodes], which: str) -> tuple[Ints, tuple[str, ...]]:
    """Bring the ranks' codes of a text to one list of texts."""
    known: dict[str, int] = {}
    columns = []
    for nodes in ranks:
        codes, texts = getattr(nodes, which)
        numbers = np.array([known.setdefault(text, len(known)) for text in texts] + [-1], np.int64)
        columns.append(numbers[codes])
    return np.concatenate(columns), tuple(known)


def _calls(tables: TableSet, ranks: list[RankNodes], count: int) -> Ints:
    """Give each part its call, where at least two members were read."""
    call = np.full(count, -1, np.int64)
    matched = calls.of(tables)
    found = matched.part_columns()
    if not len(found):
        return call
    read = np.bincount(found["call"])
    low = 0
    for nodes in ranks:
        mine = matched.rows_of(nodes.rank)
        mine = mine[read[found["call"][mine]] > 1]
        width = max(int(nodes.part.max(initial=-1)), int(found["part"][mine].max(initial=-1))) + 2
        of_part = np.full(width, -1, np.int64)
        of_part[found["part"][mine]] = found["call"][mine]
        call[low : low + len(nodes.lane)] = of_part[nodes.part]
        low += len(nodes.lane)
    used = np.unique(call[call >= 0])
    return np.where(call >= 0, np.searchsorted(used, call), -1)


def _edges(waits: list, base: Ints, nodes: Nodes) -> tuple[Edges, int]:  # type: ignore[type-arg]
    source = np.concatenate([each.source + low for each, low in zip(waits, base[:-1], strict=True)])
    target = np.concatenate([each.target + low for each, low in zip(waits, base[:-1], strict=True)])
    at_end, lag, kind = (np.concatenate([getattr(each, name) for each in waits]) for name in ("at_end", "lag", "kind"))
    arrived = np.where(at_end, nodes.end[source], nodes.start[source])
    good = arrived + np.minimum(lag, 0) <= nodes.start[target]
    lag = np.minimum(lag, nodes.start[target] - arrived)
    order = np.argsort(target[good], kind="stable")
    edges = Edges(source[good], at_end[good], target[good], lag[good], kind[good]).take(order)
    return edges, int((~good).sum())


def _transfers(nodes: Nodes) -> tuple[Ints, Flags]:
    """Measure from a call's last begin to each member's end; who ended before that was not waiting."""
    transfer, tied = np.zeros(len(nodes), np.int64), np.zeros(len(nodes), dtype=bool)
    rows = np.flatnonzero((nodes.call >= 0) & (nodes.kind == NodeKind.COMMUNICATION))
    if not len(rows):
        return transfer, tied
    last = np.full(int(nodes.call.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, nodes.call[rows], nodes.start[rows])
    transfer[rows] = nodes.end[rows] - last[nodes.call[rows]]
    tied[rows] = transfer[rows] >= 0
    return transfer, tied
