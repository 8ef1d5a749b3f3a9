"""What bounds the run: which work, on which rank, is on the way that nothing could have shortened elsewhere?"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from usp_prof.model.metric import Unit
from usp_prof.report.document import DataTable, Section, Stack, StackPart, TableColumn
from usp_prof.report.frames import rows_table
from usp_prof.report.partition import label_of
from usp_prof.report.sections.plain import key_figures, notes

if TYPE_CHECKING:
    from usp_prof.analyses.critical_path import CriticalPathResult
    from usp_prof.report.context import Context
    from usp_prof.report.document import Block
    from usp_prof.report.figures import Figures


def build(context: Context, title: str) -> Section | None:
    """Show the way by part, by rank, and the work on it."""
    if "critical_path" not in context.results:
        return None
    result = cast("CriticalPathResult", context.results["critical_path"])
    blocks: list[Block] = [*key_figures(result)]
    if result.pieces:
        blocks += [_bar(context.figures, result), _ranks(context.figures)]
    if result.bounding:
        blocks.append(rows_table(result.bounding, "Work on the critical path"))
    return Section("critical_path", title, (*blocks, *notes(result)))


def _bar(figures: Figures, result: CriticalPathResult) -> Stack:
    parts = figures.along("critical_path_time", "part")
    stack = tuple(
        StackPart(label_of(str(part)), str(part), value)
        for part, value in sorted(parts.items(), key=lambda item: (-item[1], str(item[0])))
    )
    return Stack("The critical path by part", result.length_ns, Unit.NS, stack)


def _ranks(figures: Figures) -> DataTable:
    """List the ranks that the way goes over, and how much room the others have."""
    path = figures.along("critical_path_time", "rank")
    share = figures.along("critical_path_fraction", "rank")
    slack = figures.along("slack", "rank")
    ranks = sorted(path.keys() | slack.keys(), key=lambda rank: (-path.get(rank, 0), rank))
    columns = (
        TableColumn("rank"),
        TableColumn("on the path", Unit.NS),
        TableColumn("of the path", Unit.FRACTION),
        TableColumn("slack a step", Unit.NS),
    )
    rows = tuple((rank, path.get(rank), share.get(rank), slack.get(rank)) for rank in ranks)
    return DataTable("Ranks", columns, rows)
