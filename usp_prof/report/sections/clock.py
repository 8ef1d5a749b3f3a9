"""How far apart were the ranks' clocks, and how sure is that?"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from usp_prof.report.document import Section
from usp_prof.report.frames import length, listed
from usp_prof.report.sections.plain import key_figures, notes

if TYPE_CHECKING:
    from usp_prof.analyses.clock import ClockResult
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
    result = cast("ClockResult", context.results["clock"])
    blocks: list[Block] = [*key_figures(result)]
    listing = result.listing()
    if length(listing) > 1:
        blocks.append(listed(listing, "Ranks", _RANKS, rows=64))
    return Section("clock", title, (*blocks, *notes(result)))
