"""Is this one metric worse? The difference of two robust centres, its interval, and what that allows to be said."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from usp_prof.gate.limit import Scale
from usp_prof.gate.sample import Sample, boil_down, pseudo_median
from usp_prof.gate.student import t_quantile
from usp_prof.model.metric import Better, Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.gate.noise import Noise
    from usp_prof.gate.policy import Rule
    from usp_prof.gate.series import Series

import numpy as np


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


@dataclass(frozen=True, slots=True)
class Shift:
    """A difference in the scale of the rule: its standard error now, and the part of it that more steps would mend."""

    amount: float
    error: float
    mendable: float
    freedom: float


def judge(before: Sequence[Series], after: Series, rule: Rule, tail: float, noise: Noise) -> Judgement:
    """Judge one series against the same series of the baseline's runs; `tail` is its share of the alarm budget."""
    olds = [boil_down(each.samples, each.steps) for each in before]
    new = boil_down(after.samples, after.steps)
    centre = pseudo_median(np.array([old.centre for old in olds]))
    blank = Judgement(
        after.key,
        after.title,
        after.unit,
        after.better,
        Verdict.INCONCLUSIVE,
        before=centre,
        after=new.centre,
        scale=rule.allowed.scale,
        allowed=rule.allowed.amount,
        steps=new.steps,
        warm_up=new.warm_up,
        odd=new.odd,
    )
    unit = abs(centre) if rule.allowed.scale is Scale.RELATIVE else 1.0
    if unit == 0:
        if new.centre == 0:
            return replace(blank, verdict=Verdict.PASS, change=0.0, low=0.0, high=0.0)
        return replace(blank, reason="the baseline is 0, so that no relative change exists; give an absolute limit")
    if after.exact:
        change = (new.centre - centre) / unit
        return _said(replace(blank, change=change, low=change, high=change), rule)
    if after.per_step and math.isinf(max(new.error, *(old.error for old in olds))):
        return replace(blank, reason="one step tells nothing about noise", more_steps=5)
    assumed = max(rule.between.amount, _assumed(after, olds, new, noise) / unit)
    found = _shift(centre, olds, new, unit, (assumed, noise.prior.worth))
    reach = t_quantile(tail, found.freedom) * found.error
    spread = replace(blank, change=found.amount, low=found.amount - reach, high=found.amount + reach)
    said = _said(spread, rule)
    if said.verdict is not Verdict.INCONCLUSIVE:
        return said
    return _unsettled(said, found, rule, tail, len(before))


def _assumed(series: Series, olds: Sequence[Sample], new: Sample, noise: Noise) -> float:
    """Say how much runs are taken to differ: a share of what the steps of the more restless side do."""
    if series.per_step:
        known = [old.spread for old in olds if math.isfinite(old.spread)]
        sides = [sum(known) / len(known) if known else 0.0, new.spread if math.isfinite(new.spread) else 0.0]
        return noise.prior.share * max(sides)
    timed = series.unit is not Unit.BYTES
    return noise.prior.share * noise.step_spread * abs(new.centre) if timed else 0.0


def _shift(centre: float, olds: Sequence[Sample], new: Sample, unit: float, prior: tuple[float, float]) -> Shift:
    runs = len(olds)
    within_new = _within(new) / unit**2
    within_old = sum(_within(old) for old in olds) / runs / unit**2
    assumed, worth = prior
    between, freedom = _square(assumed), worth
    if runs > 1:
        seen = max(float(np.var([old.centre / unit for old in olds], ddof=1)) - within_old, 0.0)
        freedom = worth + runs - 1
        between = (worth * between + (runs - 1) * seen) / freedom
    mine, theirs, runs_apart = within_new, within_old / runs, between * (1 + 1 / runs)
    total = mine + theirs + runs_apart
    doubt = _square(mine) / max(new.freedom, 1) + _square(theirs) / max(sum(old.freedom for old in olds), 1)
    doubt += _square(runs_apart) / freedom
    return Shift(
        (new.centre - centre) / unit,
        math.sqrt(total),
        mine,
        _square(total) / doubt if doubt > 0 else 1e9,
    )


def _said(found: Judgement, rule: Rule) -> Judgement:
    """Give the verdict that the interval allows."""
    if found.better is Better.NEITHER:
        nearest = 0.0 if found.low <= 0 <= found.high else min(abs(found.low), abs(found.high))
        farthest, amount, best = max(abs(found.low), abs(found.high)), abs(found.change), 0.0
    elif found.better is Better.LOWER:
        nearest, farthest, amount, best = found.low, found.high, found.change, found.high
    else:
        nearest, farthest, amount, best = -found.high, -found.low, -found.change, -found.low
    allowed = rule.allowed.amount
    slack = 1e-12 * max(1.0, abs(amount))
    if nearest > allowed + slack:
        return replace(found, verdict=Verdict.REGRESSED)
    if best < -allowed - slack:
        return replace(found, verdict=Verdict.IMPROVED)
    if amount <= allowed + slack and farthest <= max(rule.resolve.amount, allowed) + slack:
        return replace(found, verdict=Verdict.PASS)
    return found


def _unsettled(found: Judgement, shift: Shift, rule: Rule, tail: float, runs: int) -> Judgement:
    """Say what it would take to settle it, taking the difference seen for the true one."""
    amount = abs(found.worse) if found.better is Better.NEITHER else found.worse
    margin = amount - rule.allowed.amount if amount > rule.allowed.amount else rule.resolve.amount - amount
    needed = _square(margin / t_quantile(tail, max(shift.freedom, 10.0)))
    fixed = _square(shift.error) - shift.mendable
    if needed <= fixed:
        one = "one baseline run does not tell how much runs differ: save a baseline of several runs"
        many = "runs differ too much for more steps to settle it: save a baseline of more, longer runs"
        return replace(found, more_steps=-1, reason=one if runs == 1 else many)
    wanted = math.ceil(found.steps * shift.mendable / (needed - fixed))
    more = max(wanted - found.steps, 1)
    return replace(found, more_steps=more, reason=f"about {more} more steps would settle it")


def _within(sample: Sample) -> float:
    """Give the variance that a run's own steps tell; one value for the whole run tells none."""
    return _square(sample.error) if sample.freedom else 0.0


def _square(value: float) -> float:
    return value * value
