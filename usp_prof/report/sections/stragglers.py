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
    from collections.abc import Iterable, Mapping

    from usp_prof.analyses.stragglers import StragglersResult
    from usp_prof.model.finding import Finding
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
        blocks += [_culprits(result, worth_by_rank(context.findings)), _evidence(result)]
    if result.lateness:
        latest = sorted(result.lateness, key=lambda late: (-late.own_ns, -late.late_by_ns, late.rank))
        listing = replace(result, lateness=tuple(latest)).listing()
        blocks.append(listed(listing, "Arrivals by rank and axis, all steps, latest first", _LATENESS, rows=32))
    return Section("stragglers", title, (*blocks, *notes(result)))


def worth_by_rank(findings: Iterable[Finding]) -> dict[int, float]:
    """Give what each late rank is worth: the gain of its finding, as there is one figure for that question."""
    return {
        rank: finding.gain_fraction
        for finding in findings
        if finding.code == "late-rank" and isinstance(rank := finding.where.get("rank"), int)
    }


def _culprits(result: StragglersResult, worth: Mapping[int, float]) -> DataTable:
    columns = (
        TableColumn("rank"),
        TableColumn("axis"),
        TableColumn("cause"),
        TableColumn("late by, a step", Unit.NS),
        TableColumn("worth, replayed", Unit.FRACTION),
        TableColumn("slowdown", Unit.RATIO),
        TableColumn("steps"),
    )
    rows = tuple(
        (c.rank, c.axis, str(c.why), c.cost_ns, worth.get(c.rank), c.slowdown, spans(sorted(c.steps)))
        for c in result.culprits
    )
    return DataTable("Culprits", columns, rows)


def _evidence(result: StragglersResult) -> DataTable:
    parts = sorted({part for culprit in result.culprits for part in culprit.evidence})
    rows = tuple((c.rank, *(c.evidence.get(part) for part in parts)) for c in result.culprits)
    columns = (TableColumn("rank"), *(TableColumn(part, Unit.NS) for part in parts))
    return DataTable("Own time over the peers' median, all late steps together", columns, rows)
