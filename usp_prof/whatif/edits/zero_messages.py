"""Messages of another ZeRO stage: weight gathers and gradient reductions, with times from the run's own messages.

    stage   gradients                         weights
    0       all-reduced in backward           -
    1, 2    reduce-scattered in backward      gathered after the optimizer
    3       reduce-scattered in backward      gathered before each layer's forward and backward

Gloo is different: it runs a reduce-scatter as an all-reduce, which takes as long. ZeRO-2 on a CPU is that of FSDP2 or
our trainer, which gather each layer's weights before its first forward and keep them until the update.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.intervals import union
from usp_prof.model.errors import UsageError
from usp_prof.replay.graph import EdgeKind, Graph, NodeKind
from usp_prof.replay.insertion import Added
from usp_prof.replay.node_work import BACKWARD, FORWARD, OPTIMIZER, WEIGHT_GRADIENT, work_of
from usp_prof.replay.peers import calls_of
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.edits.kind import Request
from usp_prof.whatif.edits.where import on_axis
from usp_prof.whatif.fitted_times import network_of, over_gloo

# Passes through a stage's layers, and the start of each layer in them.


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """The compute of one pass through a stage's layers, forward or backward, sorted by time."""

    rows: Ints
    key: tuple[int, int, int, int]
    """Step, phase, stage, micro-batch."""


def passes_of(graph: Graph, tables: TableSet, rank: int) -> list[Pass]:
    """Return a rank's passes sorted by time; work for weight gradients only does not count as a pass."""
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
    """Return the first forward of each step and stage."""
    first_of_stage: dict[tuple[int, int], Pass] = {}
    for one_pass in passes:
        step, phase, stage, _ = one_pass.key
        if phase == FORWARD:
            first_of_stage.setdefault((step, stage), one_pass)
    return list(first_of_stage.values())


def heads(graph: Graph, rows: Ints, layers: int) -> list[tuple[int, int]]:
    """Return the layers of a pass, cut into equal compute, with the first node of each that has a predecessor.

    Cuts are at the nearest node boundary. With long nodes (a simulated action is a single wait), the next boundary
    could be a full layer late.
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
    """Return for each node its last dependency to end: the previous node of its lane, or a transfer."""
    last = np.arange(len(graph.nodes)) - 1
    waits = graph.edges.take(graph.edges.kind == EdgeKind.WAIT)
    order = np.argsort(graph.nodes.end[waits.source], kind="stable")
    source, target = waits.source[order], waits.target[order]
    later = graph.nodes.end[source] > graph.nodes.end[last[target]]
    last[target[later]] = source[later]  # of several writes to one entry, the last one counts
    return last


# Messages that replace the run's own.

SLOWER = 1.25
"""Cautious factor on the time of a gather relative to a reduction of the same bytes."""
TOGETHER = 1.4
"""Cautious factor if messages that were sent concurrently are sent one at a time, or vice versa. In recordings of
ZeRO-0 to ZeRO-3 over gloo with communication-bound steps, predicted message times were off by up to 1.3x."""


@dataclass(frozen=True, slots=True, eq=False)
class Reductions:
    """The run's gradient reductions: by rank, the group, and the latency and transfer time of the bytes per step."""

    rows: Flags
    group: dict[int, int]
    latency_ns: float
    bytes_ns: dict[int, float]
    """Time for a gather of all these bytes."""


def reductions(graph: Graph, request: Request, *, slower: float = SLOWER) -> Reductions:
    """Return the gradient reductions over data-parallel ranks; cautious gather times are multiplied by `slower`."""
    network = network_of(request.tables)
    phase = graph.spread(work_of(request.tables).phase, missing=0)
    rows = on_axis(graph, request, "dp") & network.runs(graph, "all_reduce", "reduce_scatter")
    rows = rows & graph.tied & (phase != OPTIMIZER)
    if not rows.any():
        raise UsageError(
            f"edit {request.edit}: no reduction of gradients over dp was seen on two ranks of a group",
            hint="read all ranks of a group; the run needs dp of at least 2",
        )
    as_all_reduce = ("all_reduce", "reduce_scatter") if over_gloo(request.tables) else ("all_reduce",)
    # Time for a gather of the same bytes: an all-reduce moves them twice.
    halved = np.array([0.5 if op in as_all_reduce else 1.0 for op in network.op])[network.op_code]
    latency_ns = float(np.median(network.latency(graph)[rows]))
    bytes_ns = np.maximum(graph.transfer - latency_ns, 0) * network.spread(graph, halved, 1.0)
    group_of_node = network.spread(graph, calls_of(request.tables).codes("group")[0].astype(np.float64), -1.0)
    steps = max(1, len(np.unique(graph.nodes.step[rows])))
    cautiously = slower if request.cautious else 1.0
    group, bytes_of_rank = {}, {}
    for rank in np.unique(graph.nodes.rank[rows]).tolist():
        of_rank = rows & (graph.nodes.rank == rank)
        group[rank] = int(group_of_node[np.flatnonzero(of_rank)[0]])
        bytes_of_rank[rank] = float(bytes_ns[of_rank].sum()) * _apart(graph, of_rank) / steps * cautiously
    return Reductions(rows, group, latency_ns * cautiously, bytes_of_rank)


def _apart(graph: Graph, rows: Flags) -> float:
    """Return the time in which any of these calls moves data, divided by the sum of their times (1: no overlap).

    Messages that share a link take longer individually, but not in total.
    """
    end, transfer = graph.nodes.end[rows], graph.transfer[rows]
    return union(end - transfer, end).length / max(1, int(transfer.sum()))


@dataclass(frozen=True, slots=True)
class Units:
    """Units that are gathered and reduced in one message: each layer of a stage, and all weights outside of layers."""

    layers: int
    outside: float
    """Share of the weights in the embedding and the head; 0 with a pipeline, in which two stages share them."""
    stages: int
    """Stages per rank."""

    @property
    def layer(self) -> float:
        """A layer's share of the rank's weights."""
        return (1 - self.outside) / self.layers / self.stages


_OUTSIDE = -1
"""Layer number of the embedding and the head in a message's key."""


def _units(request: Request) -> Units:
    model, layout = request.layout.model, request.layout
    layers = model.layers // max(layout.pp * layout.chunks, 1) if model else 0
    if model is None or layers < 1:
        hint = "give its config.json by --model or run.assume(model=...)"
        raise UsageError(f"edit {request.edit}: the model's number of layers is unknown", hint=hint)
    beside = model.embedding_parameters * (1 if model.tied_embeddings else 2)
    is_whole = layout.pp == 1 and 0 < beside < model.parameters
    return Units(layers, beside / model.parameters if is_whole else 0.0, max(1, layout.chunks))


@dataclass(frozen=True, slots=True)
class Message:
    """One rank's part of an inserted call; see `Added`. Parts of a group's ranks with equal `key` are one call."""

    rank: int
    group: int
    key: tuple[int, ...]
    transfer_ns: float
    after: int
    before: int
    asked_ns: int
    at_start: bool = False


def _added(messages: list[Message], name: str) -> Added:
    numbers: dict[tuple[int, tuple[int, ...]], int] = {}
    calls = [numbers.setdefault((message.group, message.key), len(numbers)) for message in messages]
    columns = [
        (
            message.rank,
            call,
            round(message.transfer_ns),
            message.after,
            message.at_start,
            message.asked_ns,
            message.before,
        )
        for message, call in zip(messages, calls, strict=True)
    ]
    rank, call, transfer, after, at_start, asked_ns, before = np.array(columns, np.int64).reshape(-1, 7).T
    return Added(rank, call, transfer, after, at_start.astype(bool), asked_ns, before, "dp", name)


def gathers_of_weights(graph: Graph, request: Request, own_reductions: Reductions) -> Added:
    """Return gathers of all weights once per step, after the optimizer; the next step of its stream waits for them."""
    phase = graph.spread(work_of(request.tables).phase, missing=0)
    compute = (graph.nodes.kind == NodeKind.COMPUTE) & graph.measured
    work = ~graph.nodes.of_host & (graph.nodes.kind != NodeKind.COMMUNICATION) & graph.measured
    messages: list[Message] = []
    for rank, group in own_reductions.group.items():
        nodes_of_rank = np.flatnonzero(compute & (graph.nodes.rank == rank) & (graph.nodes.step >= 0))
        nodes_of_rank = nodes_of_rank[np.argsort(graph.nodes.start[nodes_of_rank], kind="stable")]
        steps = graph.nodes.step[nodes_of_rank]
        streams = np.flatnonzero(work & (graph.nodes.rank == rank))
        streams = streams[np.argsort(graph.nodes.start[streams], kind="stable")]
        for step in np.unique(steps).tolist():
            own = nodes_of_rank[steps == step]
            stepping = own[phase[own] == OPTIMIZER]
            last = int((stepping if len(stepping) else own)[-1])
            same_stream = graph.nodes.lane[streams] == graph.nodes.lane[last]
            following = streams[same_stream & (graph.nodes.step[streams] > step)]
            time = own_reductions.latency_ns + own_reductions.bytes_ns[rank]
            before = int(following[0]) if len(following) else -1
            messages.append(Message(rank, group, (step,), time, last, before, int(graph.nodes.end[last])))
    return _added(messages, "all_gather")


def gathers_of_layers(graph: Graph, request: Request, own_reductions: Reductions, *, keep: bool = False) -> Added:
    """Return gathers of each layer's weights before its forward and backward, issued when the previous layer starts.

    Weights of the embedding and the head come first, in a separate message, and are kept. If all weights are kept until
    the update (`keep`), they are gathered only before the first forward of a step.
    """
    units, ready, start = _units(request), ready_after(graph), graph.nodes.start
    messages: list[Message] = []
    for rank, group in own_reductions.group.items():
        bytes_ns, latency = own_reductions.bytes_ns[rank], own_reductions.latency_ns
        passes = passes_of(graph, request.tables, rank)
        opening = first_forwards(passes)
        for one_pass in opening if keep else passes:
            before = -1
            for layer, head in heads(graph, one_pass.rows, units.layers):
                key, time = (*one_pass.key, layer), latency + bytes_ns * units.layer
                if before >= 0:
                    messages.append(Message(rank, group, key, time, before, head, int(start[before]), at_start=True))
                else:  # issued when the pass starts, not with earlier work, which may be of another step
                    opened = (int(ready[head]), head, int(start[head]))
                    if units.outside and one_pass in opening:
                        outside = (*one_pass.key, _OUTSIDE)
                        messages.append(Message(rank, group, outside, latency + bytes_ns * units.outside, *opened))
                    messages.append(Message(rank, group, key, time, *opened))
                before = head
    return _added(messages, "all_gather")


def reductions_beside_backward(graph: Graph, request: Request, own_reductions: Reductions) -> Added:
    """Return the run's own reductions with a single wait after backward; over gloo, FSDP2 waits for each layer's."""
    nodes = graph.nodes
    phase = graph.spread(work_of(request.tables).phase, missing=0)
    backward = (nodes.kind == NodeKind.COMPUTE) & (phase == BACKWARD)
    posts = graph.edges.take(graph.edges.kind == EdgeKind.ISSUE)
    posted_by = np.full(len(nodes), -1, np.int64)
    posted_by[posts.target] = posts.source
    rows = np.flatnonzero(own_reductions.rows)
    rows = rows[np.lexsort((nodes.start[rows], nodes.rank[rows]))]
    after_backward: dict[tuple[int, int], int] = {}
    for rank, step in set(zip(nodes.rank[rows].tolist(), nodes.step[rows].tolist(), strict=True)):
        nodes_of_step = np.flatnonzero(backward & (nodes.rank == rank) & (nodes.step == step))
        last = int(nodes_of_step[np.argmax(nodes.end[nodes_of_step])]) if len(nodes_of_step) else -1
        after_backward[rank, step] = _next_on_lane(graph, last) if last >= 0 else -1
    before = [after_backward[int(nodes.rank[row]), int(nodes.step[row])] for row in rows]
    _, call = np.unique(nodes.call[rows], return_inverse=True)
    return Added(
        nodes.rank[rows],
        call.ravel(),
        graph.transfer[rows],
        posted_by[rows],
        np.zeros(len(rows), bool),
        nodes.start[rows],
        np.array(before, np.int64),
        "dp",
        "reduce_scatter",
        stands_for=rows,
    )


def _next_on_lane(graph: Graph, node: int) -> int:
    """Return the next node on the lane, or -1 after the last one."""
    following = node + 1
    return following if following < len(graph.nodes) and graph.nodes.lane[following] == graph.nodes.lane[node] else -1
