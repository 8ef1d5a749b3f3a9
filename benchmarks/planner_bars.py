"""Bars: lines of the benchmark's table, and figures that several of them share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Mask = NDArray[np.bool_]

FOLDS = 5


@dataclass(frozen=True, slots=True)
class Line:
    """One bar: a value, and its minimum or maximum; `beside` is the baselines' value."""

    label: str
    rows: int
    value: float
    least: float = -np.inf
    most: float = np.inf
    beside: str = ""

    @property
    def has_bar(self) -> bool:
        """Whether there is a bar."""
        return bool(np.isfinite(self.least) or np.isfinite(self.most))

    @property
    def is_met(self) -> bool:
        """Whether the value meets its bar."""
        return bool(self.least <= self.value <= self.most)

    def __str__(self) -> str:
        """Format the bar as a table row."""
        ends = [f"{100 * end:.3g}%" for end in (self.least, self.most) if np.isfinite(end)]
        sign = ("≥ " if np.isfinite(self.least) else "≤ ") if len(ends) == 1 else ""
        verdict = ("met" if self.is_met else "missed") if self.has_bar else ""
        return (
            f"| {self.label} | {self.rows} | {self.value:.1%} | {self.beside} | {sign}{' to '.join(ends)} | {verdict} |"
        )


HEAD = "| test | rows | result | baselines | required | |\n|---|---|---|---|---|---|\n"


def median_error(predicted: Numbers, measured: Numbers) -> float:
    """Return the median absolute error."""
    return float(np.median(np.abs(predicted / measured - 1))) if len(measured) else float("nan")


def roofline_reaches(predicted: Numbers, measured: Numbers) -> str:
    """Format the plain roofline's error."""
    return f"roofline {median_error(predicted, measured):.1%}"


def folds_of(rows: int) -> NDArray[np.int64]:
    """Return the fold of each row, by row number."""
    return np.arange(rows) % FOLDS
