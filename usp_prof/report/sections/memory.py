"""How much memory did each rank need, what was alive at its peak, and how fast were copies?"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from usp_prof.report.document import Section
from usp_prof.report.frames import frame_table
from usp_prof.report.sections.plain import key_figures, notes

if TYPE_CHECKING:
    from usp_prof.analyses.memory import MemoryResult
    from usp_prof.report.context import Context
    from usp_prof.report.document import Block


def build(context: Context, title: str) -> Section | None:
    """Show peaks by rank and copies by direction."""
    if "memory" not in context.results:
        return None
    result = cast("MemoryResult", context.results["memory"])
    blocks: list[Block] = [*key_figures(result)]
    tables = (("Peaks by rank", result.to_pandas()), ("Copies", result.copy_table()))
    blocks += [frame_table(frame, name, rows=64) for name, frame in tables if len(frame)]
    return Section("memory", title, (*blocks, *notes(result)))
