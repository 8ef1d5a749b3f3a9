"""Degree edits: more or fewer ranks of an axis change kernel sizes and collectives.

Kernels by the line through the run's own products (`kernel_times`), collectives by the run's own latency and bandwidth
(`network`). What only the other layout would show, such as links between nodes that none of the run's groups crosses,
is in the error.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.errors import UsageError
from usp_prof.replay.graph import NodeKind
from usp_prof.replay.node_work import OPTIMIZER, Family, Work, work_of
from usp_prof.whatif.edits.communication import with_transfer
from usp_prof.whatif.edits.kind import EditKind, Request
from usp_prof.whatif.fitted_times import Algorithm, hops, kernel_times, network_of, on_axis, volume

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.model.edit import Edit
    from usp_prof.replay.graph import Flags, Graph
    from usp_prof.whatif.layout import Layout

    Floats = NDArray[np.float64]

CROSSING = 2.0
"""Cautiously, bytes take so many times as long where groups begin to cross nodes."""
OTHERWISE = 1.05
"""The same within a node: groups of another size reach about the same bandwidth, not exactly the same."""


def data_parallel(graph: Graph, request: Request) -> Graph:
    """Use another number of replicas; keys: scaling (weak, as without: a bigger batch; strong: fewer micro-batches)."""
    _check_scaling(request)
    graph = _communicating(graph, request, "dp", bytes_ratio=1.0)
    if request.layout.zero < 1:
        return graph
    return _computing(graph, request, _optimizing(graph, request), request.layout.dp / request.whole())


def tensor_parallel(graph: Graph, request: Request) -> Graph:
    """Use another number of tensor-parallel ranks: products, attention and what else is split get smaller or larger."""
    ratio, work = request.layout.tp / request.whole(), work_of(request.tables)
    graph = _communicating(graph, request, "tp", bytes_ratio=1.0)
    split = [_is_split(shape.family, shape.sizes, request.layout) for shape in work.shapes]
    rows = np.append(work.of_shapes(split) > 0, np.zeros(graph.added, dtype=bool)) | _optimizing(graph, request)
    return _less_sent(_computing(graph, request, rows, ratio), request, ("dp",), ratio)


def context_parallel(graph: Graph, request: Request) -> Graph:
    """Use another number of context-parallel ranks: each has a smaller or larger part of every sequence."""
    ratio = request.layout.cp / request.whole()
    graph = _communicating(graph, request, "cp", bytes_ratio=1.0)
    rows = (graph.nodes.kind == NodeKind.COMPUTE) & ~_optimizing(graph, request)
    return _less_sent(_computing(graph, request, rows, ratio), request, ("tp", "pp", "ep"), ratio)


def expert_parallel(graph: Graph, request: Request) -> Graph:
    """Use another number of expert-parallel ranks: as many tokens for each, over larger or smaller groups."""
    return _communicating(graph, request, "ep", bytes_ratio=1.0)


def _communicating(graph: Graph, request: Request, axis: str, *, bytes_ratio: float) -> Graph:
    """Give the axis' calls another number of members; with one there are none."""
    size, now = request.whole(), request.layout.degree(axis)
    if size == now:
        return graph
    if now < 2:
        raise UsageError(
            f"edit {request.edit}: the run has no {axis}, so that nothing tells what its collectives take",
            hint=f"record a run with {axis} of at least 2",
        )
    rows, found = on_axis(graph, request, axis), network_of(request.tables)
    if size == 1:
        return graph.with_changes(duration=np.where(rows, 0, graph.duration), tied=graph.tied & ~rows)
    crossing = 1.0
    if request.cautious:
        crossing = CROSSING if _begins_to_cross(request, axis, size) else OTHERWISE
    how = Algorithm.RING if request.cautious else Algorithm.TREE
    fewer, less = [], []
    for code, members in zip(found.op_code.tolist(), found.size.tolist(), strict=True):
        op, after = found.op[code], max(2, round(members * size / now))
        if op in ("send", "recv", "send_recv"):  # a ring: of smaller pieces, more
            fewer.append((size - 1) / (now - 1))
            less.append((size - 1) / (now - 1) * now / size)
        elif members < 2:
            fewer.append(1.0)
            less.append(1.0)
        else:
            fewer.append(hops(op, after, how) / hops(op, members, how))
            less.append(volume(op, after) / volume(op, members) * bytes_ratio * crossing)
    latency = found.latency(graph)
    longer = latency * found.spread(graph, fewer, 1.0)
    longer += (graph.transfer - latency) * found.spread(graph, less, 1.0)
    return with_transfer(graph, request, rows, longer)


def _begins_to_cross(request: Request, axis: str, size: int) -> bool:
    """Say whether groups that lay in one node no longer fit there (or whether that is not known)."""
    manifest = request.tables.manifest
    node = manifest.devices_per_node if manifest else 0
    inner = request.layout.tp if axis != "tp" else 1
    return size > request.layout.degree(axis) and size * inner > node >= 1


def _computing(graph: Graph, request: Request, rows: Flags, ratio: float) -> Graph:
    """Multiply the work of some kernels."""
    work = work_of(request.tables)
    flop = np.append(work.of_shapes([shape.flop for shape in work.shapes]), np.zeros(graph.added))
    rows = rows & (graph.nodes.kind == NodeKind.COMPUTE)
    times = kernel_times(request.tables).scaled(graph.duration, flop, ratio, cautious=request.cautious)
    return graph.with_changes(duration=np.where(rows, times, graph.duration))


def _less_sent(graph: Graph, request: Request, axes: tuple[str, ...], ratio: float) -> Graph:
    """Multiply the bytes of other axes' messages, which hold a part of what the changed axis splits."""
    latency = network_of(request.tables).latency(graph)
    rows = np.any([graph.on_axis(axis) for axis in axes if axis in graph.axes] or [np.zeros(len(graph.nodes), bool)], 0)
    rows &= graph.tied & (graph.transfer > 0)
    transfer = np.where(rows, np.rint(latency + (graph.transfer - latency) * ratio), graph.transfer)
    return graph.with_changes(transfer=transfer.astype(np.int64))


def _optimizing(graph: Graph, request: Request) -> Flags:
    work: Work = work_of(request.tables)
    return np.append(work.phase == OPTIMIZER, np.zeros(graph.added, dtype=bool))


def _is_split(family: Family, sizes: frozenset[int], layout: Layout) -> bool:
    """Say whether tensor parallelism splits an op: products and attention, and what has a split size in its shapes."""
    model, tp = layout.model, layout.tp
    if family is not Family.OTHER:
        return True
    if model is None:
        return False
    whole = [model.ffn_hidden, 2 * model.ffn_hidden, model.heads * model.head_dim, model.kv_heads * model.head_dim]
    tokens = layout.micro_batch_tokens // max(layout.cp, 1)
    split = {size // tp for size in (*whole, tokens, model.vocab) if size} - {model.hidden}
    return bool(split & sizes) and tp > 1


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
    EditKind("dp", "dp=16,scaling=weak", ("scaling",), data_parallel, partial(_relaid, "dp"), modelled=True),
    EditKind("tp", "tp=4", (), tensor_parallel, partial(_relaid, "tp"), modelled=True),
    EditKind("cp", "cp=4", (), context_parallel, partial(_relaid, "cp"), modelled=True),
    EditKind("ep", "ep=4", (), expert_parallel, partial(_relaid, "ep"), modelled=True),
)
