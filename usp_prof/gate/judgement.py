"""What is said of one metric? Its verdict, the change with its interval, and what it would take to know more."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from usp_prof.gate.limit import Scale
from usp_prof.model.metric import Better, Unit


class Verdict(StrEnum):
    """What can be said of a metric, or of the whole check."""

    PASS = "pass"  # noqa: S105 - no password
    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"
    IMPROVED = "improved"
    NOT_COMPARED = "not compared"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one series.

    `change` and its interval are after less before, in `scale`; `more_steps` is -1 when steps alone cannot settle it.
    """

    key: str
    title: str
    unit: Unit
    better: Better
    verdict: Verdict
    reason: str = ""
    before: float = math.nan
    after: float = math.nan
    change: float = math.nan
    low: float = math.nan
    high: float = math.nan
    scale: Scale = Scale.RELATIVE
    allowed: float = math.nan
    steps: int = 0
    more_steps: int = 0
    warm_up: tuple[int, ...] = ()
    odd: tuple[int, ...] = ()

    @property
    def worse(self) -> float:
        """The change in the bad direction, in `scale`; for metrics that have none, its size."""
        return worsening(self.better, self.change)


def worsening(better: Better, change: float) -> float:
    """Turn a change so that worse is positive."""
    if better is Better.HIGHER:
        return -change
    return change if better is Better.LOWER else abs(change)
