"""Device edit: products scale by peak FLOP/s, other kernels by memory bandwidth, messages by links."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.model.hardware import DEVICES, Precision, find, precision
from usp_prof.replay.graph import NodeKind
from usp_prof.replay.node_work import Family, work_of
from usp_prof.whatif.edits.kind import EditKind, Request
from usp_prof.whatif.edits.precision import device_of
from usp_prof.whatif.network import network_of

if TYPE_CHECKING:
    from usp_prof.model.edit import Edit
    from usp_prof.model.hardware import Device
    from usp_prof.replay.graph import Graph
    from usp_prof.whatif.layout import Layout

DOUBT = 0.15
"""Of a ratio's distance from one, so much may not come about."""
OTHER = "other"


def device(graph: Graph, request: Request) -> Graph:
    """Run on another device, by ratios of peaks and bandwidths; keys for `other`: peak, memory, link (ratios)."""
    peak, memory, link = _ratios(request)
    work = work_of(request.tables)
    of_work = [peak if shape.family is not Family.OTHER else memory for shape in work.shapes]
    ratio = np.append(work.of_shapes(of_work), np.zeros(graph.added))
    ratio = np.where(ratio > 0, ratio, memory)
    compute = graph.nodes.kind == NodeKind.COMPUTE
    duration = np.where(compute, np.rint(graph.duration / ratio), graph.duration).astype(np.int64)
    found = network_of(request.tables)
    inside = (found.spread(graph, ~found.inter_node, 0.0) > 0) & graph.tied & (graph.transfer > 0)
    latency = found.latency(graph)
    transfer = np.where(inside, np.rint(latency + (graph.transfer - latency) / link), graph.transfer)
    return graph.with_changes(duration=duration, transfer=transfer.astype(np.int64))


def _ratios(request: Request) -> tuple[float, float, float]:
    """Give how much faster products, other kernels and the links inside a node are."""
    edit = request.edit
    if edit.value == OTHER:
        given = tuple(edit.number(key, default=1.0) for key in ("peak", "memory", "link"))
    else:
        now, wanted = device_of(request), find(edit.value)
        if wanted is None:
            raise unknown_name("device", edit.value, [each.name for each in DEVICES])
        kind = precision(request.layout.dtype) or Precision.BF16
        given = tuple(
            _ratio(request, name, one, other)
            for name, one, other in (
                (f"{kind} peak", now.peak(kind), wanted.peak(kind)),
                ("memory bandwidth", now.memory_rate, wanted.memory_rate),
                ("link", now.link_rate, wanted.link_rate),
            )
        )
    if min(given) <= 0:
        raise UsageError(f"edit {edit}: ratios are more than 0", hint="device=other,peak=1.3,memory=1.4,link=1")
    if request.cautious:
        given = tuple(1 + (ratio - 1) * (1 - DOUBT) for ratio in given)
    peak, memory, link = given
    return peak, memory, link


def _ratio(request: Request, name: str, one: float, other: float) -> float:
    if not one or not other:
        raise UsageError(
            f"edit {request.edit}: no {name} of one of the two is known", hint="device=other,peak=1.3,memory=1.4,link=1"
        )
    return other / one


def _relaid(layout: Layout, edit: Edit) -> Layout:
    found: Device | None = find(edit.value)
    return replace(layout, device=found.name if found else edit.value)


EDITS = (EditKind("device", "device=H200", ("peak", "memory", "link"), device, _relaid, modelled=True),)
