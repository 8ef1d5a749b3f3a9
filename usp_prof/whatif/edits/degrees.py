"""Degree edits: other sizes of dp, tp, cp or ep, which change the sizes of kernels and collectives.

    kernels      take the time that the fitted line of the run's products predicts for their new size (`kernel_times`)
    collectives  take the run's latency times the hops of the new group, and the run's bandwidth (`network_of`)

Effects that only the other layout would show are part of the error, such as links between nodes that none of the run's
groups crosses.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from usp_prof.columns.arrays import Flags
from usp_prof.model.edit import Edit
from usp_prof.model.errors import UsageError
from usp_prof.replay.graph import Graph, NodeKind
from usp_prof.replay.node_work import OPTIMIZER, Family, NodeWork, work_of
from usp_prof.whatif.edits.communication import with_transfer, without_communication
from usp_prof.whatif.edits.kind import Again, EditKind, Request
from usp_prof.whatif.edits.where import on_axis
from usp_prof.whatif.fitted_times import Algorithm, hops, kernel_times, network_of, resized, volume
from usp_prof.whatif.layout import Layout

CROSSING = 2.0
"""Factor on the time of bytes in the cautious model if groups start to cross nodes."""
OTHERWISE = 1.05
"""The same factor within a node: groups of another size reach approximately the same bandwidth."""


def data_parallel(graph: Graph, request: Request) -> Graph:
    """Change the data-parallel degree; keys: scaling (weak: larger batch, default; strong: fewer micro-batches)."""
    _check_scaling(request)
    graph = _communicating(graph, request, "dp")
    if request.layout.zero < 1:
        return graph
    return _computing(graph, request, _optimizing(graph, request), request.layout.dp / request.integer())


def tensor_parallel(graph: Graph, request: Request) -> Graph:
    """Change the tensor-parallel degree; split work such as products and attention scales with it."""
    if request.layout.model is not None:
        _check_divides(request, "attention heads", request.layout.model.heads)
    ratio, work = request.layout.tp / request.integer(), work_of(request.tables)
    graph = _communicating(graph, request, "tp")
    is_split = [_is_split(shape.family, shape.sizes, request.layout) for shape in work.shapes]
    rows = graph.spread(work.of_shapes(is_split) > 0, missing=False) | _optimizing(graph, request)
    graph = _computing(graph, request, rows, ratio)
    return _less_sent(graph, request, ("dp",), ratio)


def context_parallel(graph: Graph, request: Request) -> Graph:
    """Change the context-parallel degree; each rank gets a smaller or larger part of every sequence."""
    ratio = request.layout.cp / request.integer()
    graph = _communicating(graph, request, "cp")
    rows = (graph.nodes.kind == NodeKind.COMPUTE) & ~_optimizing(graph, request)
    graph = _computing(graph, request, rows, ratio)
    return _less_sent(graph, request, ("tp", "pp", "ep"), ratio)


def expert_parallel(graph: Graph, request: Request) -> Graph:
    """Change the expert-parallel degree; tokens per rank stay, and exchanges span larger or smaller groups."""
    if request.layout.model is not None:
        _check_divides(request, "experts", request.layout.model.experts)
    return _communicating(graph, request, "ep")


def _check_divides(request: Request, parts: str, number: int) -> None:
    """Refuse a degree that does not divide the model's heads or experts, if their number is known."""
    size = request.integer()
    if number % size:
        fitting = min((part for part in range(1, number + 1) if number % part == 0), key=lambda part: abs(part - size))
        raise UsageError(
            f"edit {request.edit}: {size} does not divide the model's {number} {parts}",
            hint=f"{request.edit.name}={fitting}",
        )


def _communicating(graph: Graph, request: Request, axis: str) -> Graph:
    """Return the graph with another group size of an axis; with size 1, its calls disappear."""
    size, now = request.integer(), request.layout.degree(axis)
    if size == now:
        return graph
    if now < 2:
        raise UsageError(
            f"edit {request.edit}: the run has no {axis}, so the time of its collectives is unknown",
            hint=f"record a run with {axis} of at least 2",
        )
    rows, network = on_axis(graph, request, axis), network_of(request.tables)
    if size == 1:
        return without_communication(graph, rows)
    crossing = 1.0
    if request.cautious:
        crossing = CROSSING if _begins_to_cross(request, axis, size) else OTHERWISE
    how = Algorithm.RING if request.cautious else Algorithm.TREE
    # By kind of call (operation and group size): hops and bytes with the new size relative to the old one.
    hop_ratios, byte_ratios = [], []
    for code, members in zip(network.op_code.tolist(), network.size.tolist(), strict=True):
        op, after = network.op[code], max(2, round(members * size / now))
        if op in ("send", "recv", "send_recv"):  # a ring of n ranks sends 1/n of the data n-1 times
            hop_ratios.append((size - 1) / (now - 1))
            byte_ratios.append((size - 1) / (now - 1) * now / size)
        elif members < 2:
            hop_ratios.append(1.0)
            byte_ratios.append(1.0)
        else:
            hop_ratios.append(hops(op, after, how) / hops(op, members, how))
            byte_ratios.append(volume(op, after) / volume(op, members) * crossing)
    hop_ratio, byte_ratio = (network.spread(graph, ratios, 1.0) for ratios in (hop_ratios, byte_ratios))
    changed = resized(graph, network.latency(graph), hops=hop_ratio, volume=byte_ratio)
    return with_transfer(graph, request, rows, changed)


def _begins_to_cross(request: Request, axis: str, size: int) -> bool:
    """Return whether groups may no longer fit in one node with the new size."""
    manifest = request.tables.manifest
    node = manifest.devices_per_node if manifest else 0
    inner = request.layout.tp if axis != "tp" else 1
    return size > request.layout.degree(axis) and size * inner > node >= 1


def _computing(graph: Graph, request: Request, rows: Flags, ratio: float) -> Graph:
    """Return the graph with the work of the given kernels multiplied by `ratio`."""
    work = work_of(request.tables)
    flop = graph.spread(work.of_shapes([shape.flop for shape in work.shapes]), missing=0)
    rows = rows & (graph.nodes.kind == NodeKind.COMPUTE)
    times = kernel_times(request.tables).scaled(graph.duration, flop, ratio, cautious=request.cautious)
    return graph.with_changes(duration=np.where(rows, times, graph.duration))


def _less_sent(graph: Graph, request: Request, axes: tuple[str, ...], ratio: float) -> Graph:
    """Return the graph with the message bytes of `axes`, which depend on the changed axis, multiplied by `ratio`."""
    latency = network_of(request.tables).latency(graph)
    on_axes = np.zeros(len(graph.nodes), dtype=bool)
    for axis in axes:
        if axis in graph.axes:
            on_axes |= graph.on_axis(axis)
    rows = on_axes & graph.tied & (graph.transfer > 0)
    transfer = np.where(rows, np.rint(resized(graph, latency, volume=ratio)), graph.transfer)
    return graph.with_changes(transfer=transfer.astype(np.int64))


def _optimizing(graph: Graph, request: Request) -> Flags:
    """Mark the work of the optimizer."""
    work: NodeWork = work_of(request.tables)
    return graph.spread(work.phase == OPTIMIZER, missing=False)


def _is_split(family: Family, sizes: frozenset[int], layout: Layout) -> bool:
    """Return whether tensor parallelism splits an op: products, attention, and ops whose shapes have a split size."""
    model, tp = layout.model, layout.tp
    if family is not Family.OTHER:
        return True
    if model is None:
        return False
    heads, kv_heads = model.heads * model.head_dim, model.kv_heads * model.head_dim
    tokens = layout.micro_batch_tokens // max(layout.cp, 1)
    whole_sizes = (model.ffn_hidden, 2 * model.ffn_hidden, heads, kv_heads, tokens, model.vocab)
    split_sizes = {size // tp for size in whole_sizes if size} - {model.hidden}
    return bool(split_sizes & sizes) and tp > 1


def _check_scaling(request: Request) -> None:
    if request.edit.place("scaling", "weak") not in ("weak", "strong"):
        raise UsageError(f"edit {request.edit}: scaling is weak or strong", hint="dp=16,scaling=strong")


def _relaid(axis: str, layout: Layout, edit: Edit) -> Layout:
    size = int(edit.number())
    resized = layout.resized(axis, size)
    if axis == "dp" and layout.dp:
        return replace(resized, tokens_per_step=layout.tokens_per_step * size // layout.dp)
    return resized


EDITS = (
    EditKind(
        "dp",
        "dp=16,scaling=weak",
        ("scaling",),
        data_parallel,
        partial(_relaid, "dp"),
        modelled=True,
        again=Again.REPLACES,
    ),
    EditKind("tp", "tp=4", (), tensor_parallel, partial(_relaid, "tp"), modelled=True, again=Again.REPLACES),
    EditKind("cp", "cp=4", (), context_parallel, partial(_relaid, "cp"), modelled=True, again=Again.REPLACES),
    EditKind("ep", "ep=4", (), expert_parallel, partial(_relaid, "ep"), modelled=True, again=Again.REPLACES),
)
