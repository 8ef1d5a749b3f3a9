"""The judgement of one metric: limits, the scale on which values are compared, verdicts, and what a judgement holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.errors import UsageError
from usp_prof.model.metric import Better, Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from usp_prof.gate.series import Series

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
        return f"{self.amount:.4g}" if self.scale is Scale.ABSOLUTE else f"{self.amount * 100:.4g}%"

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


# The scale on which values are compared: logarithms where a change is relative
#
# A rate is one over a time. In plain figures a run that takes 1.7 times as long loses 41% of its rate, so the same
# noise would call one a regression and not the other. In logarithms both changes are equal.


_LARGEST_LOGARITHM = 700.0
"""Beyond it the number itself is more than a float holds."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """How values become what is subtracted, and differences become changes again; `unit` divides where no log does."""

    log: bool
    unit: float = 1.0

    def into(self, samples: Sequence[float]) -> NDArray[np.float64]:
        """Turn values into the measure."""
        values = np.asarray(samples, dtype=np.float64)
        return np.log(values) if self.log else values / self.unit

    def value(self, centre: float) -> float:
        """Turn a centre back into the metric's unit."""
        return math.exp(centre) if self.log else centre * self.unit

    def change(self, difference: float) -> float:
        """Turn a difference into a change in the rule's scale."""
        if not self.log:
            return difference
        return math.expm1(difference) if difference < _LARGEST_LOGARITHM else math.inf

    def size(self, centre: float) -> float:
        """Give what a relative spread is multiplied with to lie in the measure."""
        return 1.0 if self.log else abs(centre)

    def limit(self, limit: Limit, better: Better) -> float:
        """Turn an allowed change for the worse into a difference."""
        if not self.log or not math.isfinite(limit.amount):
            return limit.amount
        if better is not Better.HIGHER:
            return math.log1p(limit.amount)
        return -math.log1p(-limit.amount) if limit.amount < 1 else math.inf


def gauge_for(before: Sequence[Series], after: Series, scale: Scale) -> Gauge | None:
    """Choose the measure; `None` where the baseline is 0, so that there is no relative change."""
    if scale is Scale.ABSOLUTE:
        return Gauge(log=False)
    if not after.exact and min(min(series.samples) for series in (*before, after)) > 0:
        return Gauge(log=True)
    centre = abs(float(np.median([np.median(series.samples) for series in before])))
    return Gauge(log=False, unit=centre) if centre else None


# Verdicts and judgements


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
