"""Gathers of another ZeRO stage: after the optimizer or before each layer, as long as the run's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.errors import UsageError
from usp_prof.replay.graph import NodeKind
from usp_prof.replay.insertion import Added
from usp_prof.replay.node_work import BACKWARD, FORWARD, OPTIMIZER, work_of
from usp_prof.replay.peers import calls_of
from usp_prof.whatif.network import network_of, on_axis

if TYPE_CHECKING:
    from usp_prof.replay.graph import Flags, Graph, Ints
    from usp_prof.whatif.edits.kind import Request

SLOWER = 1.25
"""Cautiously, a gather takes so many times what a reduction of as many bytes does."""
_W = 3


@dataclass(frozen=True, slots=True, eq=False)
class Reductions:
    """The run's reductions of gradients. By rank: the group, and one step's latency and time of the bytes alone."""

    rows: Flags
    group: dict[int, int]
    latency_ns: float
    bytes_ns: dict[int, float]
    """As a gather of all these bytes would take."""


def reductions(graph: Graph, request: Request) -> Reductions:
    """Find what reduces gradients over the data-parallel ranks."""
    found, rows = network_of(request.tables), on_axis(graph, request, "dp")
    kinds = [op in ("all_reduce", "reduce_scatter") for op in found.op]
    reduces = found.spread(graph, np.array(kinds, bool)[found.op_code], 0.0) > 0
    phase = np.append(work_of(request.tables).phase, np.zeros(graph.added, np.int64))
    rows = rows & reduces & graph.tied & (phase != OPTIMIZER)
    if not rows.any():
        raise UsageError(
            f"edit {request.edit}: no reduction of gradients over dp was seen on two ranks of a group",
            hint="read all ranks of a group; the run needs dp of at least 2",
        )
    halved = np.array([0.5 if op == "all_reduce" else 1.0 for op in found.op])[found.op_code]
    latency = float(np.median(found.latency(graph)[rows]))
    only = np.maximum(graph.transfer - latency, 0) * found.spread(graph, halved, 1.0)
    groups = found.spread(graph, calls_of(request.tables).codes("group")[0].astype(np.float64), -1.0)
    steps = max(1, len(np.unique(graph.nodes.step[rows])))
    ranks = np.unique(graph.nodes.rank[rows]).tolist()
    mine = {rank: rows & (graph.nodes.rank == rank) for rank in ranks}
    return Reductions(
        np.asarray(rows),
        {rank: int(groups[np.flatnonzero(mine[rank])[0]]) for rank in ranks},
        latency * (SLOWER if request.cautious else 1.0),
        {rank: float(only[mine[rank]].sum()) / steps * (SLOWER if request.cautious else 1.0) for rank in ranks},
    )


def gathers_of_weights(graph: Graph, request: Request, whole: Reductions) -> Added:
    """Gather all weights once a step, after the optimizer; the next step waits for them."""
    phase = np.append(work_of(request.tables).phase, np.zeros(graph.added, np.int64))
    compute = (graph.nodes.kind == NodeKind.COMPUTE) & graph.measured
    rows: list[tuple[int, int, int, int, int]] = []
    for rank, group in whole.group.items():
        mine = np.flatnonzero(compute & (graph.nodes.rank == rank) & (graph.nodes.step >= 0))
        mine = mine[np.argsort(graph.nodes.start[mine], kind="stable")]
        steps = graph.nodes.step[mine]
        for number, step in enumerate(np.unique(steps).tolist()):
            own = mine[steps == step]
            stepping = own[phase[own] == OPTIMIZER]
            last = int((stepping if len(stepping) else own)[-1])
            following = mine[steps > step]
            time = round(whole.latency_ns + whole.bytes_ns[rank])
            rows.append((rank, group * 1_000_000 + number, time, last, int(following[0]) if len(following) else -1))
    return _added(rows, np.zeros(len(rows), bool))


def gathers_of_layers(graph: Graph, request: Request, whole: Reductions) -> Added:
    """Gather each layer's weights before its forward and its backward, asked for when the layer before begins."""
    model, layout = request.layout.model, request.layout
    layers = model.layers // max(layout.pp * layout.chunks, 1) if model else 0
    if layers < 1:
        raise UsageError(
            f"edit {request.edit}: the model's number of layers is not known", hint="give --model config.json"
        )
    rows: list[tuple[int, int, int, int, int]] = []
    at_start: list[bool] = []
    for rank, group in whole.group.items():
        number = 0
        stages = max(1, layout.chunks)
        time = round(whole.latency_ns + whole.bytes_ns[rank] / layers / stages)
        for own in _passes(graph, request, rank):
            heads = _heads(graph, own, layers)
            for place, head in enumerate(heads):
                after = heads[place - 1] if place else head - 1
                rows.append((rank, group * 1_000_000 + number, time, after, head))
                at_start.append(place > 0)
                number += 1
    return _added(rows, np.array(at_start, bool))


def _passes(graph: Graph, request: Request, rank: int) -> list[Ints]:
    """Give the compute of each pass through a stage's layers, forward or backward, in the order of time."""
    work = work_of(request.tables)
    count = len(work.phase)
    rows = np.flatnonzero((graph.nodes.kind[:count] == NodeKind.COMPUTE) & (graph.nodes.rank[:count] == rank))
    rows = rows[
        np.isin(work.phase[rows], (FORWARD, BACKWARD)) & (work.kind[rows] != _W) & (graph.nodes.step[rows] >= 0)
    ]
    rows = rows[np.argsort(graph.nodes.start[rows], kind="stable")]
    key = np.stack([values[rows] for values in (graph.nodes.step, work.phase, work.stage, work.micro_batch)])
    cuts = np.flatnonzero((key[:, 1:] != key[:, :-1]).any(axis=0)) + 1
    return [each for each in np.split(rows, cuts) if len(each)]


def _heads(graph: Graph, rows: Ints, layers: int) -> list[int]:
    """Cut a pass into layers of equal compute and give the first node of each; none is its lane's first."""
    done = np.cumsum(graph.duration[rows]) - graph.duration[rows]
    whole = int(graph.duration[rows].sum())
    place = np.unique(np.searchsorted(done, np.arange(layers) * whole / layers))
    heads = rows[np.minimum(place, len(rows) - 1)]
    follows = (heads > 0) & (graph.nodes.lane[heads] == graph.nodes.lane[heads - 1])
    return [int(head) for head in np.unique(heads[follows])]


def _added(rows: list[tuple[int, int, int, int, int]], at_start: Flags) -> Added:
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    _, call = np.unique(columns[1], return_inverse=True)
    return Added(columns[0], call.astype(np.int64), columns[2], columns[3], at_start, columns[4], "dp", "all_gather")
