"""How far apart were the ranks' clocks, and how sure is that?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.report.document import Section
from usp_prof.report.frames import frame_table
from usp_prof.report.sections.plain import key_figures, notes

if TYPE_CHECKING:
    from usp_prof.report.context import Context
    from usp_prof.report.document import Block

_RANKS = {
    "rank": "",
    "host": "",
    "offset_ns": "",
    "drift_ppm": "",
    "residual_p50_ns": "",
    "residual_p99_ns": "",
    "ties": "",
    "component": "",
}


def build(context: Context, title: str) -> Section | None:
    """Show each rank's correction and what is left over."""
    if "clock" not in context.results:
        return None
    result = context.results["clock"]
    blocks: list[Block] = [*key_figures(result)]
    frame = result.to_pandas()
    if len(frame) > 1:
        blocks.append(frame_table(frame, "Ranks", _RANKS, rows=64))
    return Section("clock", title, (*blocks, *notes(result)))
