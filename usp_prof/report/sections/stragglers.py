"""Whom do the others wait for, what does it cost the job, and why is it late?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from usp_prof.model.metric import Unit
from usp_prof.report.document import DataTable, Section, TableColumn
from usp_prof.report.frames import listed
from usp_prof.report.sections.plain import key_figures, notes
from usp_prof.report.words import spans

if TYPE_CHECKING:
    from usp_prof.analyses.stragglers import StragglersResult
    from usp_prof.report.context import Context
    from usp_prof.report.document import Block

_LATENESS = {
    "rank": "",
    "axis": "",
    "calls": "",
    "late": "arrives last",
    "late_by_ns": "late by",
    "own_ns": "its own doing",
    "slowdown": "",
}


def build(context: Context, title: str) -> Section | None:
    """Show the culprits with their evidence, then everyone's lateness."""
    if "stragglers" not in context.results:
        return None
    result = cast("StragglersResult", context.results["stragglers"])
    blocks: list[Block] = [*key_figures(result)]
    if result.culprits:
        blocks += [_culprits(result), _evidence(result)]
    if result.lateness:
        latest = sorted(result.lateness, key=lambda late: (-late.own_ns, -late.late_by_ns, late.rank))
        listing = replace(result, lateness=tuple(latest)).listing()
        blocks.append(listed(listing, "Arrivals by rank and axis, all steps, latest first", _LATENESS, rows=32))
    return Section("stragglers", title, (*blocks, *notes(result)))


def _culprits(result: StragglersResult) -> DataTable:
    columns = (
        TableColumn("rank"),
        TableColumn("axis"),
        TableColumn("cause"),
        TableColumn("cost a step", Unit.NS),
        TableColumn("of the step", Unit.FRACTION),
        TableColumn("slowdown", Unit.RATIO),
        TableColumn("steps"),
    )
    rows = tuple(
        (c.rank, c.axis, str(c.why), c.cost_ns, c.step_fraction, c.slowdown, spans(sorted(c.steps)))
        for c in result.culprits
    )
    return DataTable("Culprits", columns, rows)


def _evidence(result: StragglersResult) -> DataTable:
    parts = sorted({part for culprit in result.culprits for part in culprit.evidence})
    rows = tuple((c.rank, *(c.evidence.get(part) for part in parts)) for c in result.culprits)
    columns = (TableColumn("rank"), *(TableColumn(part, Unit.NS) for part in parts))
    return DataTable("Own time over the peers' median, all late steps together", columns, rows)
