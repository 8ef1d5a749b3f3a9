"""How much memory did each rank need, what was alive at its peak, and how fast were copies?"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from usp_prof.analyses.memory import line_of
from usp_prof.charts.inputs import MemoryLine, MemoryLines
from usp_prof.report.document import Chart, Section
from usp_prof.report.sections.plain import key_figures, length, listed, notes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.analyses.memory import MemoryResult
    from usp_prof.model.memory_snapshot import MemorySnapshot
    from usp_prof.report.document import Block
    from usp_prof.report.figures import Context
    from usp_prof.tables.table_set import TableSet


MOST_LINES = 4
MOST_POINTS = 2000


def build_memory(context: Context, title: str) -> Section | None:
    """Show peaks by rank and copies by direction."""
    if "memory" not in context.results:
        return None
    result = cast("MemoryResult", context.results["memory"])
    blocks: list[Block] = [*key_figures(result)]
    taken = any(peak.since_recording for peak in result.peaks)
    since = "taken after the profiler began" if taken else "in use"
    tables = ((f"Most memory {since}, by rank", result.listing()), ("Copies", result.copy_listing()))
    drawn = lines(context.tables, result)
    if drawn.lines:
        blocks.append(Chart(f"Memory {since} over time, of the fullest ranks", drawn))
    blocks += [listed(listing, name, rows=64) for name, listing in tables if length(listing)]
    if result.snapshots:
        blocks += _snapshots(result)
    return Section("memory", title, (*blocks, *notes(result)))


def _snapshots(result: MemoryResult) -> list[Block]:
    """Show what was read of memory snapshots: totals, history, and which lines took what is in use."""
    blocks: list[Block] = [listed(result.snapshot_listing(), "Memory snapshots", rows=64)]
    fullest = sorted((one for one in result.snapshots if len(one.change)), key=lambda one: -one.peak)[:MOST_LINES]
    if fullest:
        drawn = MemoryLines(tuple(_history(one) for one in fullest))
        blocks.append(Chart("Memory over time, as the snapshots' histories tell", drawn))
    sites = result.site_listing()
    if length(sites):
        blocks.append(listed(sites, "What took the memory in use at the snapshots"))
    return blocks


def _history(one: MemorySnapshot) -> MemoryLine:
    label = one.name if one.rank < 0 else f"rank {one.rank}"
    time = (one.time_us - one.time_us[:1].sum()) * 1000
    kept = _kept(one.in_use)
    return MemoryLine(label, time[kept], one.in_use[kept], one.held[kept])


def lines(tables: TableSet, result: MemoryResult) -> MemoryLines:
    """Give the fullest ranks' memory over time; long ones keep the highest of each stretch, so that no peak is lost."""
    traced = [peak for peak in result.peaks if peak.at_ns >= 0]
    fullest = sorted(traced, key=lambda peak: (-peak.allocated, peak.rank))[:MOST_LINES]
    return MemoryLines(tuple(_line(tables, peak.rank) for peak in sorted(fullest, key=lambda peak: peak.rank)))


def _line(tables: TableSet, rank: int) -> MemoryLine:
    found = line_of(tables, rank)
    time, allocated = found["start_ns"], found["allocated_bytes"]
    kept = _kept(allocated)
    time = time - time[:1].sum()
    return MemoryLine(f"rank {rank}", time[kept], allocated[kept], found["reserved_bytes"][kept])


def _kept(allocated: NDArray[np.int64]) -> NDArray[np.int64]:
    """Choose the events to draw: all, or the highest of each stretch."""
    stretch = -(-len(allocated) // MOST_POINTS)
    begin = np.arange(0, len(allocated), max(1, stretch))
    return np.array([low + int(allocated[low : low + stretch].argmax()) for low in begin.tolist()], np.int64)
