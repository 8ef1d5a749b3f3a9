"""Columns of a report's tables: one scale for all values, with the unit in the head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.report.format import UNKNOWN, column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.model.metric import Unit
    from usp_prof.report.document import Cell


def column_texts(values: Sequence[Cell], unit: Unit | None) -> tuple[str, list[str]]:
    """Write a column: numbers on one scale when it has a unit, texts and bare numbers as they are."""
    if unit is not None and not any(isinstance(value, str) for value in values):
        return column([value for value in values if not isinstance(value, str)], unit)
    return "", [_bare(value) for value in values]


def head_text(head: str, unit: str) -> str:
    """Write a column's head with its unit."""
    return f"{head} {unit}".strip()


def is_number(values: Sequence[Cell]) -> bool:
    """Say whether a column is set flush right."""
    return any(isinstance(value, (int, float)) for value in values)


def _bare(value: Cell) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.4g}" if isinstance(value, float) else str(value)
