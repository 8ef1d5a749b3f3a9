"""Bars: one line of the benchmark's table each, and the figures that several of them share."""

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
    """One bar: a figure, and the least or the most that it may be; `beside` is what the baselines reach."""

    what: str
    rows: int
    value: float
    least: float = -np.inf
    most: float = np.inf
    beside: str = ""

    @property
    def has_bar(self) -> bool:
        """Whether there is anything to meet."""
        return bool(np.isfinite(self.least) or np.isfinite(self.most))

    @property
    def is_met(self) -> bool:
        """Whether the figure lies within its bar."""
        return bool(self.least <= self.value <= self.most)

    def __str__(self) -> str:
        """Write it as a row of a table."""
        ends = [f"{100 * end:.3g}%" for end in (self.least, self.most) if np.isfinite(end)]
        sign = ("≥ " if np.isfinite(self.least) else "≤ ") if len(ends) == 1 else ""
        verdict = ("met" if self.is_met else "missed") if self.has_bar else ""
        return (
            f"| {self.what} | {self.rows} | {self.value:.1%} | {self.beside} | {sign}{' to '.join(ends)} | {verdict} |"
        )


HEAD = "| what | rows | figure | baselines | bar | |\n|---|---|---|---|---|---|\n"


def median_error(predicted: Numbers, measured: Numbers) -> float:
    """Give the median of the error's size."""
    return float(np.median(np.abs(predicted / measured - 1))) if len(measured) else float("nan")


def roofline_reaches(predicted: Numbers, measured: Numbers) -> str:
    """Write the plain roofline's error."""
    return f"roofline {median_error(predicted, measured):.1%}"


def folds_of(rows: int) -> NDArray[np.int64]:
    """Deal rows to folds by their number."""
    return np.arange(rows) % FOLDS
