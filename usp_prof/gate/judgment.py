"""Judgment of one metric: limits, the scale on which values are compared, verdicts, and the record itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from usp_prof.gate.series import Series
from usp_prof.model.errors import UsageError
from usp_prof.model.metric import Better, Unit

# Limits: `2%` is relative to the baseline, `1pp` means percentage points of a fraction, `5` is in the metric's own
# units


class Scale(StrEnum):
    """The scale of a difference: relative to the baseline or in the metric's own unit."""

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
        """Return a limit of the same scale, multiplied by `factor`."""
        return Limit(self.amount * factor, self.scale)


def parse_limit(text: str) -> Limit:
    """Parse a limit; raise UsageError for anything that is not one."""
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


# The scale on which values are compared: logarithms if changes are relative. A rate is the inverse of a time. A run
# that takes 1.7x as long loses 41% of its rate, so the same noise would make one a regression and not the other. In
# logarithms both changes have the same size.


_LARGEST_LOGARITHM = 700.0
"""Largest exponent: beyond it the result does not fit a float."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """Conversion of values to the scale of comparison, and of differences back to changes.

    `unit` divides values unless `log` is set.
    """

    log: bool
    unit: float = 1.0

    def into(self, samples: Sequence[float]) -> NDArray[np.float64]:
        """Convert values to the scale of comparison."""
        values = np.asarray(samples, dtype=np.float64)
        return np.log(values) if self.log else values / self.unit

    def value(self, center: float) -> float:
        """Convert a center back to the metric's unit."""
        return math.exp(center) if self.log else center * self.unit

    def change(self, difference: float) -> float:
        """Convert a difference to a change in the rule's scale."""
        if not self.log:
            return difference
        return math.expm1(difference) if difference < _LARGEST_LOGARITHM else math.inf

    def size(self, center: float) -> float:
        """Return the factor that converts a relative spread to the scale of comparison."""
        return 1.0 if self.log else abs(center)

    def limit(self, limit: Limit, better: Better) -> float:
        """Convert an allowed change for the worse to a difference."""
        if not self.log or not math.isfinite(limit.amount):
            return limit.amount
        if better is not Better.HIGHER:
            return math.log1p(limit.amount)
        return -math.log1p(-limit.amount) if limit.amount < 1 else math.inf


def gauge_for(before: Sequence[Series], after: Series, scale: Scale) -> Gauge | None:
    """Return the scale of comparison, or None if the baseline is 0 and a relative change is undefined."""
    if scale is Scale.ABSOLUTE:
        return Gauge(log=False)
    if not after.exact and min(min(series.samples) for series in (*before, after)) > 0:
        return Gauge(log=True)
    center = abs(float(np.median([np.median(series.samples) for series in before])))
    return Gauge(log=False, unit=center) if center else None


# Verdicts and judgments


class Verdict(StrEnum):
    """The verdict on a metric, or on the whole check."""

    PASS = "pass"  # noqa: S105 - not a password
    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"
    IMPROVED = "improved"
    NOT_COMPARED = "not compared"


@dataclass(frozen=True, slots=True)
class Judgment:
    """The verdict on one series.

    `change` and its interval are after minus before, in `scale`. `more_steps` is -1 if steps alone cannot settle it.
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
        """The change in the bad direction, in `scale`; its absolute size for metrics without a direction."""
        return worsening(self.better, self.change)


def worsening(better: Better, change: float) -> float:
    """Return a change with its sign flipped so that positive means worse."""
    if better is Better.HIGHER:
        return -change
    return change if better is Better.LOWER else abs(change)


def unjudged(series: Series, verdict: Verdict, reason: str = "") -> Judgment:
    """Return a judgment of a metric without figures."""
    return Judgment(series.key, series.title, series.unit, series.better, verdict, reason)
