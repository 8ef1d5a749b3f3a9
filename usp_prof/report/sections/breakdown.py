"""Where does each rank's step go? The partition by rank, as bars and as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.charts.inputs import BreakdownRows, Part
from usp_prof.model.metric import Unit
from usp_prof.report.document import Chart, DataTable, Section, TableColumn
from usp_prof.report.partition import parts
from usp_prof.report.sections.plain import notes
from usp_prof.report.sections.summary import where_the_step_goes

if TYPE_CHECKING:
    from usp_prof.report.context import Context
    from usp_prof.report.document import Block
    from usp_prof.report.figures import Figures, Number

_ROWS = 64
_BARS = 40


def build(context: Context, title: str) -> Section | None:
    """Show the mean rank, then each rank."""
    result = context.results.get("breakdown")
    if result is None:
        return None
    blocks: list[Block] = []
    mean = where_the_step_goes(context.figures)
    if mean is not None:
        blocks.append(mean)
    rows = by_rank(context.figures)
    if rows is not None:
        blocks += [_table(rows), Chart("Where each rank's step goes", readable(rows))]
    return Section("breakdown", title, (*blocks, *notes(result)))


def by_rank(figures: Figures) -> BreakdownRows | None:
    """Give the partition of each rank; a part that a rank does not have is nought."""
    ranks = [int(rank) for rank in figures.along("compute_time", "rank")]
    if not ranks:
        return None
    found = {rank: {role: (label, value) for label, role, value in parts(figures, rank=rank)} for rank in ranks}
    roles = {role: label for label, role, _ in parts(figures)}
    for of_rank in found.values():
        roles |= {role: label for role, (label, _) in of_rank.items() if role not in roles}
    return BreakdownRows(
        tuple(f"rank {rank}" for rank in ranks),
        tuple(
            Part(label, role, tuple(float(found[rank].get(role, ("", 0))[1]) for rank in ranks))
            for role, label in roles.items()
        ),
    )


def readable(rows: BreakdownRows, most: int = _BARS) -> BreakdownRows:
    """Keep the rows that are least like the median row where there are too many, and the mean of all others."""
    if len(rows.labels) <= most:
        return rows
    values = np.array([part.values_ns for part in rows.parts])
    strange = np.abs(values - np.median(values, axis=1, keepdims=True)).sum(axis=0)
    kept = np.sort(np.argsort(-strange, kind="stable")[: most - 1])
    others = np.setdiff1d(np.arange(len(rows.labels)), kept)
    return BreakdownRows(
        (f"mean of {len(others)} others", *(rows.labels[place] for place in kept)),
        tuple(
            Part(part.label, part.role, (float(one[others].mean()), *(float(each) for each in one[kept])))
            for part, one in zip(rows.parts, values, strict=True)
        ),
    )


def _table(rows: BreakdownRows) -> DataTable:
    columns = (TableColumn(""), *(TableColumn(part.label, Unit.NS) for part in rows.parts))
    cells: list[tuple[str | Number, ...]] = [
        (label, *(int(part.values_ns[place]) for part in rows.parts)) for place, label in enumerate(rows.labels)
    ]
    return DataTable("By rank", columns, tuple(cells[:_ROWS]), more=max(0, len(cells) - _ROWS))
