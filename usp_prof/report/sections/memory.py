"""How much memory did each rank need, what was alive at its peak, and how fast were copies?"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from usp_prof.analyses.memory import over_time
from usp_prof.charts.inputs import MemoryLine, MemoryLines
from usp_prof.report.document import Chart, Section
from usp_prof.report.frames import frame_table
from usp_prof.report.sections.plain import key_figures, notes

if TYPE_CHECKING:
    from usp_prof.analyses.memory import MemoryResult
    from usp_prof.report.context import Context
    from usp_prof.report.document import Block
    from usp_prof.tables.table_set import TableSet


MOST_LINES = 4
MOST_POINTS = 2000


def build(context: Context, title: str) -> Section | None:
    """Show peaks by rank and copies by direction."""
    if "memory" not in context.results:
        return None
    result = cast("MemoryResult", context.results["memory"])
    blocks: list[Block] = [*key_figures(result)]
    tables = (("Peaks by rank", result.to_pandas()), ("Copies", result.copy_table()))
    drawn = lines(context.tables, result)
    if drawn.lines:
        blocks.append(Chart("Memory over time, of the fullest ranks", drawn))
    blocks += [frame_table(frame, name, rows=64) for name, frame in tables if len(frame)]
    return Section("memory", title, (*blocks, *notes(result)))


def lines(tables: TableSet, result: MemoryResult) -> MemoryLines:
    """Give the fullest ranks' memory over time; long ones keep the highest of each stretch, so that no peak is lost."""
    fullest = sorted(result.peaks, key=lambda peak: (-peak.allocated, peak.rank))[:MOST_LINES]
    return MemoryLines(tuple(_line(tables, peak.rank) for peak in sorted(fullest, key=lambda peak: peak.rank)))


def _line(tables: TableSet, rank: int) -> MemoryLine:
    found = over_time(tables, rank)
    time, allocated = found["start_ns"].to_numpy(), found["allocated_bytes"].to_numpy()
    stretch = -(-len(time) // MOST_POINTS)
    if stretch > 1:
        begin = np.arange(0, len(time), stretch)
        kept = np.array([low + int(allocated[low : low + stretch].argmax()) for low in begin.tolist()])
    else:
        kept = np.arange(len(time))
    time = time - time[:1].sum()
    return MemoryLine(f"rank {rank}", time[kept], allocated[kept], found["reserved_bytes"].to_numpy()[kept])
