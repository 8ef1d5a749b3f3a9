"""What do sections show alike? An analysis' whole figures, and what it could not know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.analyses.result import impossible
from usp_prof.report.document import Health, KeyFigure, KeyFigures

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.analyses.result import Result

_MOST_FIGURES = 10


def key_figures(result: Result) -> Iterable[KeyFigures]:
    """Give the values that an analysis has over everything."""
    whole = [value for value in result.values() if not value.dims]
    if whole:
        yield KeyFigures(
            tuple(KeyFigure(value.metric.title, value.value, value.metric.unit) for value in whole[:_MOST_FIGURES])
        )


def notes(result: Result) -> Iterable[Health]:
    """Say what the analysis could not know, and what it left out since it cannot be."""
    rows = (*result.notes, *impossible(result.values()))
    if rows:
        yield Health(tuple(sorted(rows)))
