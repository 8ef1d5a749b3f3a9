"""Gathers of another ZeRO stage: after the optimizer or before each layer, as long as the run's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.intervals import union
from usp_prof.columns.rows import lookup
from usp_prof.model.errors import UsageError
from usp_prof.replay.graph import EdgeKind, NodeKind
from usp_prof.replay.insertion import Added, with_calls
from usp_prof.replay.node_work import BACKWARD, FORWARD, OPTIMIZER, work_of
from usp_prof.replay.peers import calls_of
from usp_prof.whatif.edits.kind import EditKind, Request
from usp_prof.whatif.fitted_times import kernel_times, network_of, on_axis

if TYPE_CHECKING:
    from usp_prof.model.edit import Edit
    from usp_prof.replay.graph import Flags, Graph, Ints
    from usp_prof.whatif.layout import Layout


SLOWER = 1.25
"""Cautiously, a gather takes so many times what a reduction of as many bytes does."""
LONGER = 1.1
"""Cautiously, an all-reduce takes so many times what twice the crossings of a reduce-scatter say."""
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
        {
            rank: float(only[rows].sum()) * _apart(graph, rows) / steps * (SLOWER if request.cautious else 1.0)
            for rank, rows in mine.items()
        },
    )


def _apart(graph: Graph, rows: Flags) -> float:
    """Give the time in which any of these calls moves data, as a share of the sum of all: 1 where none overlap.

    Messages that share a link take longer each, not together.
    """
    end, transfer = graph.nodes.end[rows], graph.transfer[rows]
    return union(end - transfer, end).length / max(1, int(transfer.sum()))


def gathers_of_weights(graph: Graph, request: Request, whole: Reductions) -> Added:
    """Gather all weights once a step, after the optimizer; what its stream does in the next step waits for them."""
    phase = np.append(work_of(request.tables).phase, np.zeros(graph.added, np.int64))
    compute = (graph.nodes.kind == NodeKind.COMPUTE) & graph.measured
    work = ~graph.nodes.of_host & (graph.nodes.kind != NodeKind.COMMUNICATION) & graph.measured
    rows: list[tuple[int, int, int, int, int]] = []
    for rank, group in whole.group.items():
        mine = np.flatnonzero(compute & (graph.nodes.rank == rank) & (graph.nodes.step >= 0))
        mine = mine[np.argsort(graph.nodes.start[mine], kind="stable")]
        steps = graph.nodes.step[mine]
        streams = np.flatnonzero(work & (graph.nodes.rank == rank))
        streams = streams[np.argsort(graph.nodes.start[streams], kind="stable")]
        for number, step in enumerate(np.unique(steps).tolist()):
            own = mine[steps == step]
            stepping = own[phase[own] == OPTIMIZER]
            last = int((stepping if len(stepping) else own)[-1])
            following = streams[
                (graph.nodes.lane[streams] == graph.nodes.lane[last]) & (graph.nodes.step[streams] > step)
            ]
            time = round(whole.latency_ns + whole.bytes_ns[rank])
            rows.append((rank, group * 1_000_000 + number, time, last, int(following[0]) if len(following) else -1))
    return _added(rows, np.zeros(len(rows), bool), graph.nodes.end[[row[3] for row in rows]])


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
    ready = _ready(graph)
    for rank, group in whole.group.items():
        number = 0
        stages = max(1, layout.chunks)
        time = round(whole.latency_ns + whole.bytes_ns[rank] / layers / stages)
        for own in _passes(graph, request, rank):
            heads = _heads(graph, own, layers)
            for place, head in enumerate(heads):
                after = heads[place - 1] if place else int(ready[head])
                rows.append((rank, group * 1_000_000 + number, time, after, head))
                at_start.append(place > 0)
                number += 1
    # The first layer's gather is asked for when its pass begins, and not with the work before, of another step maybe.
    asked = np.where(at_start, graph.nodes.start[[row[3] for row in rows]], graph.nodes.start[[row[4] for row in rows]])
    return _added(rows, np.array(at_start, bool), asked)


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


def _ready(graph: Graph) -> Ints:
    """Give for each node what ended last of all that it waits for: the node before it on its lane, or a transfer."""
    last = np.arange(len(graph.nodes)) - 1
    waits = graph.edges.take(graph.edges.kind == EdgeKind.WAIT)
    order = np.argsort(graph.nodes.end[waits.source], kind="stable")
    source, target = waits.source[order], waits.target[order]
    later = graph.nodes.end[source] > graph.nodes.end[last[target]]
    last[target[later]] = source[later]  # of several that write to one place, the last counts
    return last


def _heads(graph: Graph, rows: Ints, layers: int) -> list[int]:
    """Cut a pass into layers of equal compute and give the first node of each; none is its lane's first."""
    done = np.cumsum(graph.duration[rows]) - graph.duration[rows]
    whole = int(graph.duration[rows].sum())
    place = np.unique(np.searchsorted(done, np.arange(layers) * whole / layers))
    heads = rows[np.minimum(place, len(rows) - 1)]
    follows = (heads > 0) & (graph.nodes.lane[heads] == graph.nodes.lane[heads - 1])
    return [int(head) for head in np.unique(heads[follows])]


def _added(rows: list[tuple[int, int, int, int, int]], at_start: Flags, asked: Ints) -> Added:
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    _, call = np.unique(columns[1], return_inverse=True)
    whole = (columns[0], call.astype(np.int64), columns[2], columns[3], at_start, asked, columns[4])
    return Added(*whole, "dp", "all_gather")


# Sharding edits: another ZeRO stage, and gathers asked for earlier or later.
#
# Stages 1 and 2 talk alike: gradients are reduce-scattered, weights gathered after the optimizer. Stage 3 gathers each
# layer's weights before its forward and its backward instead. Without ZeRO gradients are all-reduced: twice the bytes.

SHARDED_WEIGHTS = 3
DOUBT = 0.4
"""Of what prefetch changes so much may not come about: between recorded runs with and without it up to a third of the
change depended on which of a rank's threads ran first, which no trace shows."""


def zero(graph: Graph, request: Request) -> Graph:
    """Use another ZeRO stage (0 to 3): what data-parallel ranks shard, and so what they send when."""
    now = request.layout.zero
    wanted = int(request.edit.number())
    if wanted not in range(4) or request.edit.number() != wanted:
        raise UsageError(f"edit {request.edit}: ZeRO has stages 0 to 3", hint="zero=3")
    if now < 0:
        raise UsageError(f"edit {request.edit}: the run's ZeRO stage was not recorded", hint="record a manifest")
    if wanted == now or {wanted, now} == {1, 2}:
        return graph
    whole = reductions(graph, request)
    gathers = _gathers(graph, request)
    phase = np.append(work_of(request.tables).phase, np.zeros(graph.added, np.int64))
    inside = np.isin(phase, (FORWARD, BACKWARD))
    if min(wanted, now) == 0:
        graph = _reduced(graph, request, whole.rows, 0.5 if now == 0 else 2.0)
        graph = _optimizing(graph, request, phase == OPTIMIZER, shrink=now == 0)
    if now in (1, 2):
        graph = _without(graph, gathers & ~inside)
    elif now == SHARDED_WEIGHTS:
        graph = _without(graph, gathers & inside)
    if wanted in (1, 2):
        return with_calls(graph, gathers_of_weights(graph, request, whole))
    return with_calls(graph, gathers_of_layers(graph, request, whole)) if wanted == SHARDED_WEIGHTS else graph


def prefetch(graph: Graph, request: Request) -> Graph:
    """Ask for a layer's weights while the layer before computes (on), or when they are needed (off); needs ZeRO-3."""
    if request.edit.value not in ("on", "off"):
        raise UsageError(f"edit {request.edit}: prefetch is on or off", hint="prefetch=on")
    phase = np.append(work_of(request.tables).phase, np.zeros(graph.added, np.int64))
    rows = np.flatnonzero(_gathers(graph, request) & np.isin(phase, (FORWARD, BACKWARD)) & graph.tied)
    if not len(rows):
        raise UsageError(
            f"edit {request.edit}: no weights are gathered in forward or backward",
            hint="edit zero=3 first, or record it",
        )
    consumer = _consumers(graph, rows)
    work = work_of(request.tables)
    passes = [
        phase[rows],
        *(np.append(each, np.full(graph.added, -1))[rows] for each in (work.stage, work.micro_batch)),
    ]
    keys = (*passes, graph.nodes.step[rows], graph.nodes.rank[rows])
    order = np.lexsort((graph.nodes.start[rows], *keys))
    rows, consumer = rows[order], consumer[order]
    same = np.append(False, np.all([each[order][1:] == each[order][:-1] for each in keys], axis=0))
    later = np.flatnonzero(same & (consumer >= 0) & (np.roll(consumer, 1) >= 0))
    on = request.edit.value == "on"
    call = np.unique(graph.nodes.call[rows[later]], return_inverse=True)[1].ravel()
    moved = rows[later]
    asked = Added(
        graph.nodes.rank[moved],
        call,
        np.rint(graph.transfer[moved] * (SLOWER if request.cautious else 1.0)).astype(np.int64),
        consumer[later - 1] if on else consumer[later] - 1,  # of the layer before: its begin, or its end
        np.full(len(later), on),
        graph.nodes.start[moved],
        consumer[later],
        "dp",
        "all_gather",
        stands_for=moved,
    )
    gone = np.zeros(len(graph.nodes), dtype=bool)
    gone[moved] = True
    edges = graph.edges
    # On lanes of their own: what they queue behind now is not what they would queue behind then.
    alone = graph.with_changes(
        duration=np.where(gone, 0, graph.duration),
        tied=graph.tied & ~gone,
        edges=edges.take(~(gone[edges.source] & (edges.kind == EdgeKind.WAIT))),
    )
    return with_calls(alone, asked)


def _consumers(graph: Graph, rows: Ints) -> Ints:
    """Give the compute that waits for each gather: what an edge names, else the first to begin after its end."""
    found = np.full(len(graph.nodes), -1, np.int64)
    waits = graph.edges.take(graph.edges.kind == EdgeKind.WAIT)
    compute = graph.nodes.kind == NodeKind.COMPUTE
    good = compute[waits.target] & (graph.nodes.rank[waits.source] == graph.nodes.rank[waits.target])
    found[waits.source[good][::-1]] = waits.target[good][::-1]
    for rank in np.unique(graph.nodes.rank[rows]).tolist():
        mine = rows[(graph.nodes.rank[rows] == rank) & (found[rows] < 0)]
        work = np.flatnonzero(compute & (graph.nodes.rank == rank) & graph.measured)
        work = work[np.argsort(graph.nodes.start[work], kind="stable")]
        place = np.searchsorted(graph.nodes.start[work], graph.nodes.end[mine])
        found[mine] = lookup(work, place, missing=-1)
    inner = found[rows]
    first = np.ones(len(graph.nodes) + 1, dtype=bool)
    first[1:-1] = graph.nodes.lane[1:] != graph.nodes.lane[:-1]
    return np.where(first[inner], -1, inner)


def _gathers(graph: Graph, request: Request) -> Flags:
    rows = on_axis(graph, request, "dp")
    found = network_of(request.tables)
    named = np.array([op == "all_gather" for op in found.op], bool)[found.op_code]
    return np.asarray(rows & (found.spread(graph, named, 0.0) > 0))


def _without(graph: Graph, rows: Flags) -> Graph:
    return graph.with_changes(duration=np.where(rows, 0, graph.duration), tied=graph.tied & ~rows)


def _reduced(graph: Graph, request: Request, rows: Flags, factor: float) -> Graph:
    """Let the reduction of gradients be a scatter, or no longer: half the crossings, or twice."""
    latency = network_of(request.tables).latency(graph)
    cautiously = LONGER if request.cautious and factor > 1 else 1.0
    changed = latency + (graph.transfer - latency) * factor * cautiously
    return graph.with_changes(transfer=np.where(rows, np.rint(changed), graph.transfer).astype(np.int64))


def _optimizing(graph: Graph, request: Request, rows: Flags, *, shrink: bool) -> Graph:
    """Let each rank step a part of the weights, or all of them."""
    size = request.layout.dp
    times = kernel_times(request.tables).scaled(
        graph.duration, np.zeros(len(graph.nodes)), 1 / size if shrink else float(size), cautious=request.cautious
    )
    return graph.with_changes(duration=np.where(rows & (graph.nodes.kind == NodeKind.COMPUTE), times, graph.duration))


def _relaid(layout: Layout, edit: Edit) -> Layout:
    return replace(layout, zero=int(edit.number()))


EDITS = (
    EditKind("zero", "zero=3", (), zero, _relaid, modelled=True),
    EditKind("prefetch", "prefetch=on", (), prefetch, modelled=True, doubt=DOUBT),
)
