"""What was wrong with the input, and what cannot be known because of it?

Damage is data: each fault is a row, shown on every screen; only input that nothing can be made of raises.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Severity(StrEnum):
    """How bad a row of health is."""

    INFO = "info"
    ERROR = "error"
    DATA_LOSS = "data_loss"


@dataclass(frozen=True, slots=True, order=True)
class HealthRow:
    """One thing that was found wrong or missing: where, how often, and what it means for the figures."""

    code: str
    severity: Severity
    rank: int = -1
    count: int = 1
    detail: str = ""
    file: str = ""


def gathered(rows: Iterable[HealthRow]) -> tuple[HealthRow, ...]:
    """Sort rows, each once; what was found alike on several ranks becomes one row that names them."""
    alike: dict[tuple[str, Severity, str], list[HealthRow]] = {}
    for row in sorted(set(rows)):
        alike.setdefault((row.code, row.severity, row.detail), []).append(row)
    return tuple(sorted(_joined(found) for found in alike.values()))


def _joined(found: list[HealthRow]) -> HealthRow:
    ranks = sorted({row.rank for row in found if row.rank >= 0})
    if len(ranks) < 2:
        return found[0]
    detail = f"ranks {spans(ranks)}: {found[0].detail}"
    return replace(found[0], rank=-1, count=sum(row.count for row in found), detail=detail, file="")


def spans(numbers: Iterable[int]) -> str:
    """Write numbers shortly: 0-3, 7."""
    out: list[list[int]] = []
    for number in sorted(numbers):
        if out and number == out[-1][1] + 1:
            out[-1][1] = number
        else:
            out.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in out)
