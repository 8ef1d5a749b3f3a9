"""One metric against its baseline: the difference of two robust centres, its interval, and the verdict they allow."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.gate.judgement import Judgement, Scale, Verdict, worsening
from usp_prof.gate.sample import boil_down, boil_down_to_median, pseudo_median, steps_alone, t_quantile
from usp_prof.model.metric import Better, Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from usp_prof.gate.judgement import Limit
    from usp_prof.gate.measured import Measured
    from usp_prof.gate.policy import Policy, Rule
    from usp_prof.gate.sample import Noise, Sample
    from usp_prof.gate.series import Series


# The difference of two sets of runs and its standard error
#
# Noise within a run: the error of its centre, from its steps. Noise between runs: the spread of the baseline's runs;
# as long as there are few, the prior counts as much as `Prior.worth` runs.


@dataclass(frozen=True, slots=True)
class Shift:
    """A difference: its standard error now, what more steps would mend of its variance, and how well it is known.

    More steps are those of the new run; where medians are judged, those of both sides.
    """

    amount: float
    error: float
    mendable: float
    freedom: float
    runs: int


def shift_of(series: Series, gauge: Gauge, olds: Sequence[Sample], new: Sample, rule: Rule, noise: Noise) -> Shift:
    """Measure how far `new` lies from the old runs."""
    runs, least = len(olds), rule.between.amount
    centre = pseudo_median(np.array([old.centre for old in olds]))
    theirs = sum(_within(old) for old in olds) / runs
    sides = (olds, [new])
    restless = [0.0 if rule.stated else _restless(series, gauge, side, noise) for side in sides]
    between, known = _between(max(least, noise.prior.share * restless[0]), least, olds, theirs, noise)
    moved = _moved(max(between - least**2, 0.0), restless[0], restless[1], noise)
    parts = (_within(new), theirs / runs, max(between, moved) + between / runs)
    freedoms = (new.freedom, sum(old.freedom for old in olds), known)
    total = sum(parts)
    doubt = sum(part * part / max(freedom, 1.0) for part, freedom in zip(parts, freedoms, strict=True))
    freedom = total * total / doubt if doubt > 0 else 1e9  # Welch and Satterthwaite
    mendable = parts[0] + parts[1] if rule.medians else parts[0]
    return Shift(new.centre - centre, math.sqrt(total), mendable, freedom, runs)


def _restless(series: Series, gauge: Gauge, samples: Sequence[Sample], noise: Noise) -> float:
    """Give the spread of the steps; a figure that there is once a run is taken to vary as the step does."""
    if series.per_step:
        known = [each.spread for each in samples if math.isfinite(each.spread)]
        return sum(known) / len(known) if known else 0.0
    timed = series.unit is not Unit.BYTES  # what is allocated does not depend on how fast it goes
    return noise.step_spread * gauge.size(samples[-1].centre) if timed else 0.0


def _between(assumed: float, least: float, olds: Sequence[Sample], within: float, noise: Noise) -> tuple[float, float]:
    """Give the variance between the baseline's runs and how many degrees of freedom it is known with."""
    runs, worth = len(olds), noise.prior.worth
    if runs == 1:
        return assumed**2, worth
    seen = max(float(np.var([old.centre for old in olds], ddof=1)) - within, 0.0)
    if noise.prior.enough <= runs:
        return max(seen, least**2), runs - 1.0
    freedom = worth + runs - 1
    return (worth * assumed**2 + (runs - 1) * seen) / freedom, freedom


def _moved(between: float, old: float, new: float, noise: Noise) -> float:
    """Give the variance that a run with such restless steps brings, in proportion to the baseline's."""
    share = math.sqrt(between) / old if old > 0 else noise.prior.share
    return (share * new) ** 2


def _within(sample: Sample) -> float:
    """Give the variance that a run's own steps tell; one value for the whole run tells none."""
    return sample.error**2 if sample.freedom else 0.0


# The scale on which values are compared: logarithms where a change is relative
#
# A rate is one over a time. In plain figures a run that takes 1.7 times as long loses 41 % of its rate, so the same
# noise would call one a regression and not the other. In logarithms both changes are equal.


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
        return math.expm1(difference) if difference < _LARGEST else math.inf

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


_LARGEST = 700.0


def gauge_for(before: Sequence[Series], after: Series, scale: Scale) -> Gauge | None:
    """Choose the measure; `None` where the baseline is 0, so that there is no relative change."""
    if scale is Scale.ABSOLUTE:
        return Gauge(log=False)
    if not after.exact and min(min(each.samples) for each in (*before, after)) > 0:
        return Gauge(log=True)
    centre = abs(float(np.median([np.median(each.samples) for each in before])))
    return Gauge(log=False, unit=centre) if centre else None


def judge(before: Sequence[Series], after: Series, rule: Rule, tail: float, noise: Noise) -> Judgement:
    """Judge one series against the same series of the baseline's runs; `tail` is its share of the alarm budget."""
    blank = Judgement(
        after.key,
        after.title,
        after.unit,
        after.better,
        Verdict.INCONCLUSIVE,
        scale=rule.allowed.scale,
        allowed=rule.allowed.amount,
    )
    gauge = gauge_for(before, after, rule.allowed.scale)
    if gauge is None:
        return _from_zero(blank, after)
    boiled = boil_down_to_median if rule.medians and after.per_step else boil_down
    olds = [boiled(gauge.into(each.samples), each.steps) for each in before]
    new = boiled(gauge.into(after.samples), after.steps)
    centre = pseudo_median(np.array([old.centre for old in olds]))
    blank = replace(
        blank,
        before=gauge.value(centre),
        after=gauge.value(new.centre),
        steps=new.steps,
        warm_up=new.warm_up,
        odd=new.odd,
    )
    if after.exact:
        change = new.centre - centre
        return _said(replace(blank, change=change, low=change, high=change), rule)
    if after.per_step and math.isinf(max(new.error, *(old.error for old in olds))):
        return replace(blank, reason="one step shows no noise", more_steps=5)
    assumed = steps_alone(noise) if rule.medians else noise
    found = shift_of(after, gauge, olds, new, rule, assumed)
    reach = t_quantile(tail, found.freedom) * found.error
    low, high = gauge.change(found.amount - reach), gauge.change(found.amount + reach)
    said = _said(replace(blank, change=gauge.change(found.amount), low=low, high=high), rule)
    if said.verdict is not Verdict.INCONCLUSIVE:
        return said
    return _unsettled(said, found, rule, tail, gauge)


def _from_zero(blank: Judgement, after: Series) -> Judgement:
    new = boil_down(after.samples, after.steps)
    blank = replace(blank, before=0.0, after=new.centre, steps=new.steps)
    if new.centre == 0:
        return replace(blank, verdict=Verdict.PASS, change=0.0, low=0.0, high=0.0)
    return replace(blank, reason="the baseline is 0, so there is no relative change; give an absolute limit")


def _said(found: Judgement, rule: Rule) -> Judgement:
    """Give the verdict that the interval allows."""
    # All for the worse: the least and the largest change that the interval holds, the likely one, and the best case.
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


def _unsettled(found: Judgement, shift: Shift, rule: Rule, tail: float, gauge: Gauge) -> Judgement:
    """Say what it would take to settle it, taking the difference seen for the true one."""
    amount = worsening(found.better, shift.amount)
    allowed, resolve = gauge.limit(rule.allowed, found.better), gauge.limit(rule.resolve, found.better)
    margin = amount - allowed if amount > allowed else resolve - amount
    needed = (margin / t_quantile(tail, max(shift.freedom, 10.0))) ** 2
    fixed = shift.error**2 - shift.mendable
    if needed <= fixed:
        one = "one baseline run does not show how much runs differ: save a baseline of several runs"
        many = "runs differ too much for more steps to settle it: save a baseline of more, longer runs"
        return replace(found, more_steps=-1, reason=one if shift.runs == 1 else many)
    wanted = found.steps * shift.mendable / (needed - fixed)
    if not math.isfinite(wanted):
        return replace(found, more_steps=-1, reason="the steps of this run do not show its noise")
    more = max(math.ceil(wanted) - found.steps, 1)
    where = " in both runs" if rule.medians else ""
    steps = "1 more step" if more == 1 else f"{more} more steps"
    return replace(found, more_steps=more, reason=f"about {steps}{where} would settle it")


# Absolute bounds (`--min`): below for certain is a regression, below within the noise is inconclusive


SIGN = " >= "
"""Stands in the key of a bound's judgement, between the metric and the bound."""


FEWEST_STEPS = 3
"""Of fewer, the interval is so wide (32 standard errors for two) that a bound missed by half would be left open."""


def judge_bounds(after: Measured, policy: Policy) -> tuple[Judgement, ...]:
    """Judge each bound of the policy."""
    news = after.by_key()
    return tuple(
        _judged(news[name], floor, policy.false_alarm) if name in news else _missing(name, floor)
        for name, floor in policy.minimum
    )


def _missing(name: str, floor: float) -> Judgement:
    reason = f"{name} was not measured, so its bound {floor:g} cannot be checked"
    return Judgement(f"{name}{SIGN}{floor:g}", name, Unit.RATIO, Better.HIGHER, Verdict.INCONCLUSIVE, reason)


def _judged(series: Series, floor: float, false_alarm: float) -> Judgement:
    sample = boil_down(series.samples, series.steps)
    noisy = series.per_step and sample.freedom >= 1
    reach = t_quantile(false_alarm, sample.freedom) * sample.error if noisy else 0.0
    low, high = sample.centre - reach, sample.centre + reach
    verdict = Verdict.PASS if sample.centre >= floor else Verdict.INCONCLUSIVE
    if high < floor:
        verdict = Verdict.REGRESSED
    reason = "" if verdict is Verdict.PASS else f"{sample.centre:.4g} is below the bound"
    if verdict is Verdict.INCONCLUSIVE and sample.steps < FEWEST_STEPS:
        reason += f", and {sample.steps} steps do not show how much steps differ: record {FEWEST_STEPS} or more"
    return Judgement(
        f"{series.key}{SIGN}{floor:g}",
        f"{series.title}, lower bound",
        series.unit,
        Better.HIGHER,
        verdict,
        reason,
        before=floor,
        after=sample.centre,
        change=sample.centre - floor,
        low=low - floor,
        high=high - floor,
        scale=Scale.ABSOLUTE,
        allowed=0.0,
        steps=sample.steps,
    )
