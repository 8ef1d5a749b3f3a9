"""The judgement of one metric: verdict, change with its interval, allowed limit, and the steps needed to know more."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from usp_prof.model.errors import UsageError
from usp_prof.model.metric import Better, Unit

# Limits: `2%` is relative to the baseline, `1pp` counts points of a fraction, `5` the metric's own units


class Scale(StrEnum):
    """What a difference is measured in."""

    RELATIVE = "relative"
    ABSOLUTE = "absolute"


@dataclass(frozen=True, slots=True)
class Limit:
    """An amount of change, as a fraction of the baseline or in the metric's own unit."""

    amount: float
    scale: Scale

    def __str__(self) -> str:
        return f"{self.amount:.4g}" if self.scale is Scale.ABSOLUTE else f"{self.amount * 100:.4g} %"

    def times(self, factor: float) -> Limit:
        """Give a wider or narrower limit of the same scale."""
        return Limit(self.amount * factor, self.scale)


def parse_limit(text: str) -> Limit:
    """Read a limit; `UsageError` for anything else."""
    word = text.strip()
    if word.endswith("pp"):
        return Limit(_number(word[:-2], text) / 100, Scale.ABSOLUTE)
    if word.endswith("%"):
        return Limit(_number(word[:-1], text) / 100, Scale.RELATIVE)
    return Limit(_number(word, text), Scale.ABSOLUTE)


def _number(word: str, text: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise UsageError(f"{text!r} is not a limit", hint="write 2% (of the baseline), 1pp (points) or a plain number")
    return value


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
