"""Sections on the work of each rank: ops and kernels compared with the peak, MFU, host work, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from math import nan
from operator import attrgetter, itemgetter
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from usp_prof.analyses.host import HostResult
from usp_prof.analyses.kernels import KernelsResult
from usp_prof.analyses.memory import MemoryResult, line_of
from usp_prof.analyses.mfu import MfuResult
from usp_prof.analyses.result import Listing
from usp_prof.charts.inputs import MemoryLine, MemoryLines, RooflinePoints
from usp_prof.columns.arrays import Ints
from usp_prof.model.hardware import precision
from usp_prof.model.memory_snapshot import MemorySnapshot
from usp_prof.model.metric import Unit
from usp_prof.model.printable import counted
from usp_prof.report.document import Block, Chart, Text
from usp_prof.report.figures import Context
from usp_prof.report.format import quantity
from usp_prof.report.sections.plain import key_figures, length, listing_table
from usp_prof.tables.table_set import TableSet

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


_OPS = (
    "op", "shapes", "time_ns", "share", "efficiency", "rate_flops", "bound", "calls", "mean_ns", "intensity",
    "precision", "total_flop", "total_bytes",
)  # fmt: skip
_OPS_HEADS = {"intensity": "FLOP/byte", "total_flop": "work", "total_bytes": "moved"}
_KERNELS = ("name", "total_ns", "share", "count", "mean_ns", "std_ns", "min_ns", "max_ns")
_MOST_OPS = 400


def build_kernels(context: Context, result: KernelsResult) -> list[Block]:
    """Build ops by shape, the roofline and the kernels."""
    blocks: list[Block] = [*key_figures(context, "kernels")]
    if result.ops:
        blocks.append(listing_table(result.listing(), "Ops by shape, all ranks and steps together", _OPS, _OPS_HEADS))
    points = roofline(result)
    if points is not None:
        blocks.append(Chart("Roofline", points))
    if result.kernels:
        blocks.append(listing_table(result.top_listing(), "Kernels, all ranks and steps together", _KERNELS))
    return blocks


def roofline(result: KernelsResult) -> RooflinePoints | None:
    """Return the ops with FLOP and bytes, and the roof of the precision with the most time."""
    ops = [op for op in result.ops if op.flop and op.bytes and op.time_ns][:_MOST_OPS]
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


# MFU: model FLOP relative to the devices' peak, by each convention, and checked against the trace's own FLOP.

_CONVENTIONS = ("convention", "mfu", "per_token_flop", "tokens_per_second", "chosen")
_CONVENTIONS_HEADS = {"mfu": "MFU", "per_token_flop": "per token", "tokens_per_second": "tokens"}
_CHECK = ("part", "model_flop", "trace_flop", "ratio", "why")
_CHECK_HEADS = {"model_flop": "model", "trace_flop": "trace", "ratio": "trace over model"}


def build_mfu(context: Context, result: MfuResult) -> list[Block]:
    """Build MFU by every convention, the peak, and the cross-check."""
    blocks: list[Block] = [*key_figures(context, "mfu")]
    if result.peak:
        peak = quantity(result.peak, Unit.FLOP_PER_SECOND)
        text = f"Peak: {counted(result.devices, 'device')} at {peak} dense {result.precision}"
        blocks.append(Text(f"{text} ({result.peak_source})." if result.peak_source else f"{text}.", quiet=True))
    if result.flop_per_token:
        blocks.append(listing_table(result.listing(), "By convention", _CONVENTIONS, _CONVENTIONS_HEADS))
    if result.parts:
        blocks.append(listing_table(result.check_listing(), "FLOPs per step: model and trace", _CHECK, _CHECK_HEADS))
    return blocks


# Host: launches, queues, blocking calls and who made them, data loading, CPU time by op.

_HOW: dict[str, Callable[[Sequence[float]], float]] = {"longest_ns": max, "delay_p50_ns": median, "delay_p99_ns": max}


def build_host(context: Context, result: HostResult) -> list[Block]:
    """Build ranks, blocking calls, other calls, and ops by host time, with the rank that has the most."""
    blocks: list[Block] = [*key_figures(context, "host")]
    if result.ranks:
        blocks.append(listing_table(result.listing(), "Ranks", rows=64))
    tables = (
        ("What blocks the host, all ranks together", result.syncs, ("name", "cause"), "time_ns"),
        ("Runtime calls, all ranks together", result.calls, ("name", "kind"), "time_ns"),
        ("Ops by the host's own time, all ranks together", result.ops, ("name",), "self_ns"),
    )
    for name, rows, keys, by in tables:
        if rows:
            together = _together(rows, keys, by)
            # Calls start copies and memsets, not only kernels.
            blocks.append(listing_table(together, name, heads={"kernels": "device events"}))
    return blocks


def _together(rows: Sequence[DataclassInstance], keys: tuple[str, ...], by: str) -> Listing:
    """Sum rows with the same keys over ranks, largest first; for delays, use the median and the maximum."""
    groups: dict[tuple[str, ...], list[Any]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, key) for key in keys), []).append(row)
    figures = [field.name for field in fields(rows[0]) if field.name not in {*keys, "rank"}]
    joined_rows = [
        (*key, *(_combined(name, group) for name in figures), max(group, key=attrgetter(by)).rank)
        for key, group in sorted(groups.items())
    ]
    names = (*keys, *figures, "most_at_rank")
    joined_rows.sort(key=itemgetter(names.index(by)), reverse=True)
    return dict(zip(names, zip(*joined_rows, strict=True), strict=True))


def _combined(name: str, group: Sequence[Any]) -> float:
    """Combine the values of several ranks, without unknown ones."""
    known_values = [figure for figure in map(attrgetter(name), group) if figure == figure]  # noqa: PLR0124 - NaN
    return _HOW.get(name, sum)(known_values) if known_values else nan


# Memory: the need of each rank, allocations at its peak, and the speed of copies.


MOST_MEMORY_LINES = 4
"""Maximum number of ranks in the memory chart: those with the highest peaks."""
MOST_MEMORY_POINTS = 2000
"""Maximum number of points per line."""


def build_memory(context: Context, result: MemoryResult) -> list[Block]:
    """Build memory over time, peaks by rank, copies by direction, and memory snapshots."""
    blocks: list[Block] = [*key_figures(context, "memory")]
    is_since_start = any(peak.since_recording for peak in result.peaks)
    since = "taken after the profiler began" if is_since_start else "in use"
    tables = ((f"Most memory {since}, by rank", result.listing()), ("Copies", result.copy_listing()))
    drawn = memory_lines(context.tables, result)
    if drawn.lines:
        blocks.append(Chart(f"Memory {since} over time, of the fullest ranks", drawn))
    blocks += [listing_table(listing, name, rows=64) for name, listing in tables if length(listing)]
    if result.snapshots:
        blocks += _snapshots(result)
    return blocks


def _snapshots(result: MemoryResult) -> list[Block]:
    """Build what memory snapshots contain: totals, history, and source lines by memory in use."""
    blocks: list[Block] = [listing_table(result.snapshot_listing(), "Memory snapshots", rows=64)]
    fullest = sorted(
        (snapshot for snapshot in result.snapshots if len(snapshot.change)), key=lambda snapshot: -snapshot.peak
    )[:MOST_MEMORY_LINES]
    if fullest:
        drawn = MemoryLines(tuple(_history(snapshot) for snapshot in fullest))
        blocks.append(Chart("Memory over time, from the snapshots' histories", drawn))
    sites = result.site_listing()
    if length(sites):
        blocks.append(listing_table(sites, "What took the memory in use at the snapshots"))
    return blocks


def _history(snapshot: MemorySnapshot) -> MemoryLine:
    label = snapshot.name if snapshot.rank < 0 else f"rank {snapshot.rank}"
    time_ns = _since_first(snapshot.time_us) * 1000
    drawn = _drawn_events(snapshot.in_use)
    return MemoryLine(label, time_ns[drawn], snapshot.in_use[drawn], snapshot.held[drawn])


def memory_lines(tables: TableSet, result: MemoryResult) -> MemoryLines:
    """Return memory over time of the ranks with the highest peaks. Long lines keep the maximum of each section."""
    traced = [peak for peak in result.peaks if peak.at_ns >= 0]
    fullest = sorted(traced, key=lambda peak: (-peak.allocated, peak.rank))[:MOST_MEMORY_LINES]
    return MemoryLines(tuple(_line(tables, peak.rank) for peak in sorted(fullest, key=lambda peak: peak.rank)))


def _line(tables: TableSet, rank: int) -> MemoryLine:
    events = line_of(tables, rank)
    time_ns = _since_first(events["start_ns"])
    drawn = _drawn_events(events["allocated_bytes"])
    sizes = (events[name][drawn] for name in ("allocated_bytes", "reserved_bytes"))
    return MemoryLine(f"rank {rank}", time_ns[drawn], *sizes)


def _since_first(moments: Ints) -> Ints:
    """Return times relative to the first one; there may be none."""
    return moments - moments[0] if len(moments) else moments


def _drawn_events(allocated: Ints) -> Ints:
    """Return the indexes of events to draw: all, or the highest of each section if there are too many."""
    stretch = max(1, -(-len(allocated) // MOST_MEMORY_POINTS))
    begins = range(0, len(allocated), stretch)
    return np.array([low + int(allocated[low : low + stretch].argmax()) for low in begins], np.int64)
