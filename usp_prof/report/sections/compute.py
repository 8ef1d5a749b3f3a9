"""Sections on compute: ops and kernels against the device's peak, MFU, and whether the host keeps the device fed."""

from __future__ import annotations

from dataclasses import fields
from math import nan
from operator import attrgetter, itemgetter
from statistics import median
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from usp_prof.charts.inputs import RooflinePoints
from usp_prof.model.hardware import precision
from usp_prof.model.metric import Unit
from usp_prof.report.document import Chart, Section, Text
from usp_prof.report.format import quantity
from usp_prof.report.sections.plain import key_figures, listed, notes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from _typeshed import DataclassInstance

    from usp_prof.analyses.host import HostResult
    from usp_prof.analyses.kernels import KernelsResult
    from usp_prof.analyses.mfu import MfuResult
    from usp_prof.analyses.result import Listing
    from usp_prof.report.document import Block
    from usp_prof.report.figures import Context


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


def build_kernels(context: Context, title: str) -> Section | None:
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


# Which share of the devices' peak becomes model, by which convention, and does the trace agree?

_CONVENTIONS = {
    "convention": "",
    "mfu": "MFU",
    "per_token_flop": "model FLOP per token",
    "tokens_per_second": "tokens",
    "chosen": "",
}
_CHECK = {"part": "", "model_flop": "model", "trace_flop": "trace", "ratio": "trace over model", "why": ""}


def build_mfu(context: Context, title: str) -> Section | None:
    """Show MFU by every convention, the peak it is held against, and the cross-check."""
    if "mfu" not in context.results:
        return None
    result = cast("MfuResult", context.results["mfu"])
    blocks: list[Block] = [*key_figures(result)]
    if result.peak:
        peak = quantity(result.peak, Unit.FLOP_PER_SECOND)
        text = f"Held against {result.devices} devices at {peak} {result.precision} dense"
        blocks.append(Text(f"{text} ({result.peak_source})." if result.peak_source else f"{text}.", quiet=True))
    if result.flop_per_token:
        blocks.append(listed(result.listing(), "By convention", _CONVENTIONS))
    if result.parts:
        blocks.append(listed(result.check_listing(), "FLOP of a step: the model's and the trace's", _CHECK))
    return Section("mfu", title, (*blocks, *notes(result)))


# Does the host keep the device fed: launches, queues, blocking calls and who made them, input, CPU time by op?

_HOW: dict[str, Callable[[Sequence[float]], float]] = {"longest_ns": max, "delay_p50_ns": median, "delay_p99_ns": max}


def build_host(context: Context, title: str) -> Section | None:
    """Show ranks, then what blocks, what is called and which ops take the host's time, with the rank that has most."""
    if "host" not in context.results:
        return None
    result = cast("HostResult", context.results["host"])
    blocks: list[Block] = [*key_figures(result)]
    if result.ranks:
        blocks.append(listed(result.listing(), "Ranks", rows=64))
    tables = (
        ("What blocks the host, all ranks together", result.syncs, ("name", "cause"), "time_ns"),
        ("Runtime calls, all ranks together", result.calls, ("name", "kind"), "time_ns"),
        ("Ops by the host's own time, all ranks together", result.ops, ("name",), "self_ns"),
    )
    for name, rows, keys, by in tables:
        if rows:
            together = _together(rows, keys, by)
            # Calls start copies and memsets too, not kernels alone.
            blocks.append(listed(together, name, dict.fromkeys(together, "") | {"kernels": "device events"}))
    return Section("host", title, (*blocks, *notes(result)))


def _together(rows: Sequence[DataclassInstance], keys: tuple[str, ...], by: str) -> Listing:
    """Add up what has the same keys over ranks, most first; of delays the median and the longest stand for all."""
    groups: dict[tuple[str, ...], list[Any]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, key) for key in keys), []).append(row)
    figures = [field.name for field in fields(rows[0]) if field.name not in {*keys, "rank"}]
    found = [
        (*key, *(_joined(name, alike) for name in figures), max(alike, key=attrgetter(by)).rank)
        for key, alike in sorted(groups.items())
    ]
    names = (*keys, *figures, "most_at_rank")
    found.sort(key=itemgetter(names.index(by)), reverse=True)
    return dict(zip(names, zip(*found, strict=True), strict=True))


def _joined(name: str, alike: Sequence[Any]) -> float:
    """Make one figure of those of several ranks; what is not known on some is that of the others."""
    known = [figure for figure in map(attrgetter(name), alike) if figure == figure]  # noqa: PLR0124 - NaN
    return _HOW.get(name, sum)(known) if known else nan
