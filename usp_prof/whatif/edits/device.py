"""Device edits: other number types for messages and matrix products, and another device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from usp_prof.model.edit import Edit
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.model.hardware import DEVICES, Device, Precision, element_bytes, find, precision
from usp_prof.replay.graph import Graph, NodeKind
from usp_prof.replay.node_work import Family, work_of
from usp_prof.whatif.edits.kind import WHERE, Again, EditKind, Request
from usp_prof.whatif.edits.where import communication_of
from usp_prof.whatif.fitted_times import kernel_times, network_of, resized
from usp_prof.whatif.layout import Layout

REACHED = 0.88
"""Share of a peak ratio that products reach: measured on H100, fp8 over bf16 is 1403 / 794.5 instead of 2.0."""
CAUTIOUSLY_REACHED = 0.7


def comm_dtype(graph: Graph, request: Request) -> Graph:
    """Change the data type of collectives: fp8, bf16, fp16 or fp32; keys: axis, op."""
    wanted = element_bytes(request.edit.value) or (1 if request.edit.value.startswith("fp8") else 0)
    if not wanted:
        raise UsageError(
            f"edit {request.edit}: {request.edit.value!r} is not a number type", hint="fp8, bf16, fp16, fp32"
        )
    rows, work = communication_of(graph, request), work_of(request.tables)
    element = graph.spread(work.element, missing=-1)
    has_element = rows & (element > 0)
    if not has_element.any():
        raise UsageError(f"edit {request.edit}: the data types of collectives are unknown", hint="record shapes")
    factor = np.where(has_element, wanted / np.maximum(element, 1), 1.0)
    latency = network_of(request.tables).latency(graph) * (2.0 if request.cautious else 1.0)
    latency = np.minimum(latency, graph.transfer)
    transfer = np.where(has_element & graph.tied, resized(graph, latency, volume=factor), graph.transfer)
    untied = has_element & ~graph.tied
    return graph.with_changes(
        transfer=np.rint(transfer).astype(np.int64),
        duration=np.where(untied, np.rint(graph.duration * factor), graph.duration).astype(np.int64),
    )


def matmul_dtype(graph: Graph, request: Request) -> Graph:
    """Change the data type of matrix products (fp8, bf16, fp16, tf32), scaled by the device's peaks."""
    wanted, device = precision(request.edit.value), device_of(request)
    if wanted is None:
        raise UsageError(
            f"edit {request.edit}: {request.edit.value!r} is not a number type", hint="fp8, bf16, fp16, tf32"
        )
    work, peak = work_of(request.tables), device.peak(wanted)
    if not peak:
        raise UsageError(f"edit {request.edit}: no peak of {device.name} is known in {wanted}", hint="try bf16")
    share = CAUTIOUSLY_REACHED if request.cautious else REACHED
    ratios = []
    for shape in work.shapes:
        own = device.peak(shape.precision) if shape.family is Family.PRODUCT and shape.precision else 0.0
        ratios.append(reached(peak / own, share) if own else 1.0)
    ratio = graph.spread(work.of_shapes(ratios), missing=1)
    rows = (graph.nodes.kind == NodeKind.COMPUTE) & (ratio > 0) & (ratio != 1)
    constant = np.minimum(kernel_times(request.tables).constant_ns, graph.duration)
    faster = constant + (graph.duration - constant) / np.where(rows, ratio, 1.0)
    return graph.with_changes(duration=np.where(rows, np.rint(faster), graph.duration).astype(np.int64))


def reached(ratio: float, share: float) -> float:
    """Return the ratio that real kernels reach of a peak ratio: a share of a speedup, all of a slowdown."""
    return max(ratio * share, 1.0) if ratio > 1 else ratio


def device_of(request: Request) -> Device:
    """Return the run's device from the table; raise if it is unknown."""
    name = request.layout.device
    for rank in request.tables.ranks if not name else ():
        rows = request.tables.columns("ranks", rank)
        name = name or (str(rows["device"][0]) if len(rows) else "")
    known_device = find(name)
    if known_device is None:
        problem = f"{name!r}" if name else "not named in the trace"
        examples = ", ".join(device.name for device in DEVICES[:6])
        hint = f"name it by --device or run.assume(device=...): {examples}, ..."
        raise UsageError(f"edit {request.edit}: the run's device is {problem}", hint=hint)
    return known_device


def _with_dtype(layout: Layout, edit: Edit) -> Layout:
    wanted = precision(edit.value)
    return replace(layout, dtype=str(wanted)) if wanted in (Precision.FP8, Precision.BF16, Precision.FP16) else layout


PRECISION_EDITS = (
    EditKind("comm_dtype", "comm_dtype=fp8,axis=dp", WHERE, comm_dtype, modelled=True, again=Again.REPLACES),
    EditKind("matmul_dtype", "matmul_dtype=fp8", (), matmul_dtype, _with_dtype, modelled=True, again=Again.REPLACES),
)


# Device edit: products scale with peak FLOP/s, other kernels with memory bandwidth, messages with link bandwidth.

DOUBT = 0.15
"""Share of a ratio's difference from 1 that may not materialize."""
OTHER = "other"


def device(graph: Graph, request: Request) -> Graph:
    """Change the device, scaled by peaks and bandwidths; for `other`, give the ratios: peak, memory, link."""
    peak, memory, link = _ratios(request)
    work = work_of(request.tables)
    of_work = [peak if shape.family is not Family.OTHER else memory for shape in work.shapes]
    ratio = graph.spread(work.of_shapes(of_work), missing=0)
    ratio = np.where(ratio > 0, ratio, memory)
    compute = graph.nodes.kind == NodeKind.COMPUTE
    duration = np.where(compute, np.rint(graph.duration / ratio), graph.duration).astype(np.int64)
    network = network_of(request.tables)
    inside = (network.spread(graph, ~network.inter_node, 0.0) > 0) & graph.tied & (graph.transfer > 0)
    latency = network.latency(graph)
    transfer = np.where(inside, np.rint(latency + (graph.transfer - latency) / link), graph.transfer)
    return graph.with_changes(duration=duration, transfer=transfer.astype(np.int64))


def _ratios(request: Request) -> tuple[float, float, float]:
    """Return the speedups of products, other kernels and links within a node."""
    edit = request.edit
    if edit.value == OTHER:
        ratios = tuple(edit.number(key, default=1.0) for key in ("peak", "memory", "link"))
    else:
        now, wanted = device_of(request), find(edit.value)
        if wanted is None:
            raise unknown_name("device", edit.value, [known_device.name for known_device in DEVICES])
        kind = precision(request.layout.dtype) or Precision.BF16
        ratios = tuple(
            _ratio(request, name, current, new)
            for name, current, new in (
                (f"{kind} peak", now.peak(kind), wanted.peak(kind)),
                ("memory bandwidth", now.memory_rate, wanted.memory_rate),
                ("link", now.link_rate, wanted.link_rate),
            )
        )
    if min(ratios) <= 0:
        raise UsageError(f"edit {edit}: ratios must be more than 0", hint="device=other,peak=1.3,memory=1.4,link=1")
    if request.cautious:
        ratios = tuple(1 + (ratio - 1) * (1 - DOUBT) for ratio in ratios)
    peak, memory, link = ratios
    return peak, memory, link


def _ratio(request: Request, name: str, current: float, new: float) -> float:
    if not current or not new:
        raise UsageError(
            f"edit {request.edit}: the {name} of one of the two devices is unknown",
            hint="device=other,peak=1.3,memory=1.4,link=1",
        )
    return new / current


def _with_device(layout: Layout, edit: Edit) -> Layout:
    known_device: Device | None = find(edit.value)
    return replace(layout, device=known_device.name if known_device else edit.value)


EDITS = (
    EditKind(
        "device", "device=H200", ("peak", "memory", "link"), device, _with_device, modelled=True, again=Again.REPLACES
    ),
)
