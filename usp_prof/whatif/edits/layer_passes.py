"""Passes through a stage's layers, and where each layer begins in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.replay.graph import EdgeKind, NodeKind
from usp_prof.replay.node_work import BACKWARD, FORWARD, WEIGHT_GRADIENT, work_of

if TYPE_CHECKING:
    from usp_prof.replay.graph import Graph, Ints
    from usp_prof.tables.table_set import TableSet


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """The compute of one pass through a stage's layers, forward or backward, in the order of time."""

    rows: Ints
    key: tuple[int, int, int, int]
    """Step, phase, stage, micro-batch."""


def passes_of(graph: Graph, tables: TableSet, rank: int) -> list[Pass]:
    """Give a rank's passes in the order of time; those of gradients of weights alone are none."""
    work = work_of(tables)
    count = len(work.phase)
    rows = np.flatnonzero((graph.nodes.kind[:count] == NodeKind.COMPUTE) & (graph.nodes.rank[:count] == rank))
    rows = rows[
        np.isin(work.phase[rows], (FORWARD, BACKWARD))
        & (work.kind[rows] != WEIGHT_GRADIENT)
        & (graph.nodes.step[rows] >= 0)
    ]
    rows = rows[np.argsort(graph.nodes.start[rows], kind="stable")]
    keys = np.stack([values[rows] for values in (graph.nodes.step, work.phase, work.stage, work.micro_batch)]).T
    cuts = np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1
    pieces = zip(np.split(rows, cuts), np.split(keys, cuts), strict=True)
    return [Pass(own, (*map(int, key[0]),)) for own, key in pieces if len(own)]  # type: ignore[arg-type] # four


def first_forwards(passes: list[Pass]) -> list[Pass]:
    """Keep the first forward of each step and stage."""
    found: dict[tuple[int, int], Pass] = {}
    for each in passes:
        step, phase, stage, _ = each.key
        if phase == FORWARD:
            found.setdefault((step, stage), each)
    return list(found.values())


def heads(graph: Graph, rows: Ints, layers: int) -> list[tuple[int, int]]:
    """Cut a pass into layers of equal compute; give the layers with the first node of each, where a node precedes it.

    A cut lies where one node ends and the next begins, whichever is nearest: with long nodes (a pace is one wait) the
    first one beyond it may be a layer late.
    """
    done = np.append(0, np.cumsum(graph.duration[rows]))
    wanted = np.arange(layers) * done[-1] / layers
    place = np.searchsorted(done, wanted)
    earlier = np.maximum(place - 1, 0)
    place = np.where(wanted - done[earlier] < done[place] - wanted, earlier, place)
    first_nodes = rows[np.minimum(place, len(rows) - 1)].tolist()
    lane = graph.nodes.lane
    return [(layer, node) for layer, node in enumerate(first_nodes) if node > 0 and lane[node] == lane[node - 1]]


def ready_after(graph: Graph) -> Ints:
    """Give for each node what ended last of all that it waits for: the node before it on its lane, or a transfer."""
    last = np.arange(len(graph.nodes)) - 1
    waits = graph.edges.take(graph.edges.kind == EdgeKind.WAIT)
    order = np.argsort(graph.nodes.end[waits.source], kind="stable")
    source, target = waits.source[order], waits.target[order]
    later = graph.nodes.end[source] > graph.nodes.end[last[target]]
    last[target[later]] = source[later]  # of several that write to one place, the last counts
    return last
