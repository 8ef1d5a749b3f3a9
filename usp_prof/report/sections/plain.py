"""How is an analysis shown that has no section of its own? Its whole figures, its table, its notes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.report.document import Health, KeyFigure, KeyFigures, Section
from usp_prof.report.frames import frame_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.analyses.result import Result
    from usp_prof.report.context import Context
    from usp_prof.report.document import Block

_MOST_FIGURES = 10


def build(context: Context, name: str, title: str) -> Section | None:
    """Show one analysis plainly."""
    result = context.results.get(name)
    if result is None:
        return None
    blocks: list[Block] = [*key_figures(result)]
    frame = result.to_pandas()
    if len(frame):
        blocks.append(frame_table(frame, ""))
    blocks.extend(notes(result))
    return Section(name, title, tuple(blocks))


def key_figures(result: Result) -> Iterable[KeyFigures]:
    """Give the values that an analysis has over everything."""
    whole = [value for value in result.values() if not value.dims]
    if whole:
        yield KeyFigures(
            tuple(KeyFigure(value.metric.title, value.value, value.metric.unit) for value in whole[:_MOST_FIGURES])
        )


def notes(result: Result) -> Iterable[Health]:
    """Say what the analysis could not know."""
    if result.notes:
        yield Health(tuple(sorted(result.notes)))
