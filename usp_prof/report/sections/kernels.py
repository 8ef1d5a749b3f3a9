"""Which ops take the time, how near are they to what the device can do, and how much of that is known?"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from usp_prof.charts.inputs import RooflinePoints
from usp_prof.model.hardware import precision
from usp_prof.report.document import Chart, Section
from usp_prof.report.frames import listed
from usp_prof.report.sections.plain import key_figures, notes

if TYPE_CHECKING:
    from usp_prof.analyses.kernels import KernelsResult
    from usp_prof.report.context import Context
    from usp_prof.report.document import Block

_OPS = {
    "op": "",
    "shapes": "",
    "time_ns": "",
    "share": "",
    "efficiency": "",
    "rate_flops": "",
    "bound": "",
    "calls": "",
    "mean_ns": "",
    "intensity": "FLOP/byte",
    "precision": "",
    "total_flop": "work",
    "total_bytes": "moved",
}
_KERNELS = {
    "name": "",
    "total_ns": "",
    "share": "",
    "count": "",
    "mean_ns": "",
    "std_ns": "",
    "min_ns": "",
    "max_ns": "",
}
_MOST_POINTS = 400


def build(context: Context, title: str) -> Section | None:
    """Show ops by shape, the roofline and the kernels."""
    if "kernels" not in context.results:
        return None
    result = cast("KernelsResult", context.results["kernels"])
    blocks: list[Block] = [*key_figures(result)]
    if result.ops:
        blocks.append(listed(result.listing(), "Ops by shape, all ranks and steps together", _OPS))
    points = roofline(result)
    if points is not None:
        blocks.append(Chart("Roofline", points))
    if result.kernels:
        blocks.append(listed(result.top_listing(), "Kernels, all ranks and steps together", _KERNELS))
    return Section("kernels", title, (*blocks, *notes(result)))


def roofline(result: KernelsResult) -> RooflinePoints | None:
    """Set the ops with FLOP and bytes under the roof of the precision that takes most of their time."""
    ops = [op for op in result.ops if op.flop and op.bytes and op.time_ns][:_MOST_POINTS]
    if not ops or not result.total_ns or not result.roof.memory_rate:
        return None
    times: dict[str, int] = {}
    for op in ops:
        times[op.precision] = times.get(op.precision, 0) + op.time_ns
    main = max(times, key=lambda name: (times[name], name))
    peak = result.roof.peak(precision(main))
    if not peak:
        return None
    return RooflinePoints(
        tuple(f"{op.name} {op.dims}" for op in ops),
        np.array([op.intensity for op in ops]),
        np.array([op.rate for op in ops]),
        np.array([op.time_ns / result.total_ns for op in ops]),
        peak,
        result.roof.memory_rate,
        f"{result.roof.name}, {main}",
    )
