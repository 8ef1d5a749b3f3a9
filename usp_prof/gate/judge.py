"""Judgment of one metric against its baseline: difference of two robust centers, its interval, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from usp_prof.gate.judgment import Gauge, Judgment, Scale, Verdict, gauge_for, unjudged, worsening
from usp_prof.gate.measured import Measured
from usp_prof.gate.policy import Policy, Rule
from usp_prof.gate.sample import Noise, Sample, boil_down, boil_down_to_median, pseudo_median, steps_alone, t_quantile
from usp_prof.gate.series import Series
from usp_prof.model.metric import Better, Unit
from usp_prof.model.printable import counted

# The difference of two sets of runs and its standard error. Noise within a run is the error of its center, computed
# from its steps. Noise between runs is the spread of the baseline's runs. If there are few runs, the prior counts as
# much as `Prior.worth` runs.


@dataclass(frozen=True, slots=True)
class Shift:
    """A difference, its standard error, the variance that more steps would remove, and its degrees of freedom.

    More steps means steps of the new run. If medians are judged, it means steps of both sides.
    """

    amount: float
    error: float
    reducible: float
    freedom: float
    runs: int


def shift_of(series: Series, gauge: Gauge, olds: Sequence[Sample], new: Sample, rule: Rule, noise: Noise) -> Shift:
    """Return the difference between `new` and the old runs, with its standard error.

    The variance of the difference is a sum of three parts, each with its own degrees of freedom:

        the new run's center        from the spread of its steps
        the baseline's center       from the spread of its runs' steps, divided by the number of runs
        difference between runs     once for the new run, and divided by the number of runs for the baseline
    """
    runs, least = len(olds), rule.between.amount
    center = pseudo_median(np.array([old.center for old in olds]))
    within_old = sum(_within(old) for old in olds) / runs
    old_spread = 0.0 if rule.stated else _spread_of_steps(series, gauge, olds, noise)
    new_spread = 0.0 if rule.stated else _spread_of_steps(series, gauge, [new], noise)
    assumed = max(least, noise.prior.share * old_spread)
    between, freedom_between = _between(assumed, least, olds, within_old, noise)
    # A run whose steps vary more than the baseline's also differs more from other runs.
    between_new = max(between, _in_proportion(max(between - least**2, 0.0), old_spread, new_spread, noise))
    variances = (_within(new), within_old / runs, between_new + between / runs)
    freedoms = (new.freedom, sum(old.freedom for old in olds), freedom_between)
    variance = sum(variances)
    # Degrees of freedom of the sum, by Welch and Satterthwaite.
    doubt = sum(part * part / max(freedom, 1.0) for part, freedom in zip(variances, freedoms, strict=True))
    freedom = variance * variance / doubt if doubt > 0 else 1e9
    reducible = variances[0] + variances[1] if rule.medians else variances[0]
    return Shift(new.center - center, math.sqrt(variance), reducible, freedom, runs)


def _spread_of_steps(series: Series, gauge: Gauge, samples: Sequence[Sample], noise: Noise) -> float:
    """Return the spread of the steps; a figure with one value per run is assumed to vary as much as the step does."""
    if series.per_step:
        spreads = [sample.spread for sample in samples if math.isfinite(sample.spread)]
        return sum(spreads) / len(spreads) if spreads else 0.0
    is_timed = series.unit is not Unit.BYTES  # memory use does not depend on speed
    return noise.step_spread * gauge.size(samples[-1].center) if is_timed else 0.0


def _between(assumed: float, least: float, olds: Sequence[Sample], within: float, noise: Noise) -> tuple[float, float]:
    """Return the variance between the baseline's runs and its degrees of freedom."""
    runs, prior_runs = len(olds), noise.prior.worth
    if runs == 1:
        return assumed**2, prior_runs
    seen = max(float(np.var([old.center for old in olds], ddof=1)) - within, 0.0)
    if noise.prior.enough <= runs:
        return max(seen, least**2), runs - 1.0
    freedom = prior_runs + runs - 1
    return (prior_runs * assumed**2 + (runs - 1) * seen) / freedom, freedom


def _in_proportion(between: float, old_spread: float, new_spread: float, noise: Noise) -> float:
    """Return the variance between runs whose steps have `new_spread`, in proportion to the baseline's."""
    share = math.sqrt(between) / old_spread if old_spread > 0 else noise.prior.share
    return (share * new_spread) ** 2


def _within(sample: Sample) -> float:
    """Return the variance of a run's center from its steps; 0 if there is one value for the whole run."""
    return sample.error**2 if sample.freedom else 0.0


def judge(before: Sequence[Series], after: Series, rule: Rule, tail: float, noise: Noise) -> Judgment:
    """Judge one series against the same series of the baseline's runs; `tail` is its share of the alarm budget.

    1. Convert all values to the scale on which they are compared (logarithms if changes are relative).
    2. Reduce each run to one center with its error, without warm-up and outlier steps.
    3. Compute the difference of the centers and its interval; an exact figure has no error.
    4. Return the verdict that the whole interval allows. If it allows none, state how many more steps are needed.
    """
    blank = replace(unjudged(after, Verdict.INCONCLUSIVE), scale=rule.allowed.scale, allowed=rule.allowed.amount)
    gauge = gauge_for(before, after, rule.allowed.scale)
    if gauge is None:
        return _from_zero(blank, after)
    boil = boil_down_to_median if rule.medians and after.per_step else boil_down
    olds = [boil(gauge.into(series.samples), series.steps) for series in before]
    new = boil(gauge.into(after.samples), after.steps)
    center = pseudo_median(np.array([old.center for old in olds]))
    measured = replace(
        blank,
        before=gauge.value(center),
        after=gauge.value(new.center),
        steps=new.steps,
        warm_up=new.warm_up,
        odd=new.odd,
    )
    if after.exact or all(series.samples == after.samples for series in before):  # the same steps: no noise
        change = new.center - center
        return _with_verdict(replace(measured, change=change, low=change, high=change), rule)
    if after.per_step and math.isinf(max(new.error, *(old.error for old in olds))):
        return replace(measured, reason="only one step, so noise is unknown", more_steps=5)
    shift = shift_of(after, gauge, olds, new, rule, steps_alone(noise) if rule.medians else noise)
    reach = t_quantile(tail, shift.freedom) * shift.error
    low, high = gauge.change(shift.amount - reach), gauge.change(shift.amount + reach)
    judged = _with_verdict(replace(measured, change=gauge.change(shift.amount), low=low, high=high), rule)
    if judged.verdict is not Verdict.INCONCLUSIVE:
        return judged
    return _with_steps_needed(judged, shift, rule, tail, gauge)


FROM_ZERO = "the baseline is 0, so there is no relative change; give an absolute limit"


def _from_zero(blank: Judgment, after: Series) -> Judgment:
    """Judge against a baseline of 0: only a value of 0 is unchanged."""
    new = boil_down(after.samples, after.steps)
    measured = replace(blank, before=0.0, after=new.center, steps=new.steps)
    if new.center == 0:
        return replace(measured, verdict=Verdict.PASS, change=0.0, low=0.0, high=0.0)
    return replace(measured, reason=FROM_ZERO)


def _worsening(judgment: Judgment) -> tuple[float, float, float]:
    """Return a change's interval and the change itself, with signs flipped so that positive means worse."""
    low, high, change = judgment.low, judgment.high, judgment.change
    if judgment.better is Better.LOWER:
        return low, high, change
    if judgment.better is Better.HIGHER:
        return -high, -low, -change
    least = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    return least, max(abs(low), abs(high)), abs(change)


def _with_verdict(judgment: Judgment, rule: Rule) -> Judgment:
    """Set the verdict that the interval allows; leave it inconclusive if it allows none.

    With 2% allowed and a resolution of 4%:

        +3% to +5%      regressed: the whole interval is worse than allowed
        -6% to -3%      improved: the whole interval is better by more than allowed
        -1% to +3%      pass if the likely change is allowed: the interval ends below the resolution
        -1% to +5%      inconclusive
    """
    least, most, likely = _worsening(judgment)
    allowed = rule.allowed.amount
    slack = 1e-12 * max(1.0, abs(likely))
    if least > allowed + slack:
        return replace(judgment, verdict=Verdict.REGRESSED)
    if most < -allowed - slack:
        return replace(judgment, verdict=Verdict.IMPROVED)
    if likely <= allowed + slack and most <= max(rule.resolve.amount, allowed) + slack:
        return replace(judgment, verdict=Verdict.PASS)
    return judgment


def _with_steps_needed(judgment: Judgment, shift: Shift, rule: Rule, tail: float, gauge: Gauge) -> Judgment:
    """Add how many more steps would settle the judgment, if the measured difference is the true one."""
    amount = worsening(judgment.better, shift.amount)
    allowed, resolve = gauge.limit(rule.allowed, judgment.better), gauge.limit(rule.resolve, judgment.better)
    # Distance from the limit that decides the verdict, and the largest variance that still resolves it.
    margin = amount - allowed if amount > allowed else resolve - amount
    needed = (margin / t_quantile(tail, max(shift.freedom, 10.0))) ** 2
    fixed = shift.error**2 - shift.reducible  # variance that more steps do not remove
    if needed <= fixed:
        for_one = "one baseline run does not show how much runs differ; save a baseline of several runs"
        for_many = "runs differ too much for more steps to decide it; save a baseline of more and longer runs"
        return replace(judgment, more_steps=-1, reason=for_one if shift.runs == 1 else for_many)
    steps_in_all = judgment.steps * shift.reducible / (needed - fixed)
    if not math.isfinite(steps_in_all):
        return replace(judgment, more_steps=-1, reason="the steps of this run do not show its noise")
    more = max(math.ceil(steps_in_all) - judgment.steps, 1)
    where = " in both runs" if rule.medians else ""
    steps = "1 more step" if more == 1 else f"{more} more steps"
    return replace(judgment, more_steps=more, reason=f"about {steps}{where} would decide it")


# Absolute bounds (`--min`): below with certainty is a regression, below within noise is inconclusive


SIGN = " >= "
"""Separator between metric and bound in the key of a bound's judgment."""


FEWEST_STEPS = 3
"""Minimum number of steps for a bound.

With two steps the interval is 32 standard errors wide, so a value of half the bound would stay inconclusive.
"""


def judge_bounds(after: Measured, policy: Policy) -> tuple[Judgment, ...]:
    """Judge each absolute bound of the policy."""
    news = after.by_key()
    return tuple(
        _judge_bound(news[name], floor, policy.false_alarm) if name in news else _missing(name, floor)
        for name, floor in policy.minimum
    )


def _missing(name: str, floor: float) -> Judgment:
    reason = f"{name} was not measured, so its bound {floor:g} cannot be checked"
    return Judgment(f"{name}{SIGN}{floor:g}", name, Unit.RATIO, Better.HIGHER, Verdict.INCONCLUSIVE, reason)


def _judge_bound(series: Series, floor: float, false_alarm: float) -> Judgment:
    sample = boil_down(series.samples, series.steps)
    is_noisy = series.per_step and sample.freedom >= 1
    reach = t_quantile(false_alarm, sample.freedom) * sample.error if is_noisy else 0.0
    low, high = sample.center - reach, sample.center + reach
    verdict = Verdict.PASS if sample.center >= floor else Verdict.INCONCLUSIVE
    if high < floor:
        verdict = Verdict.REGRESSED
    reason = "" if verdict is Verdict.PASS else f"{sample.center:.4g} is below the bound"
    if verdict is Verdict.INCONCLUSIVE and sample.steps < FEWEST_STEPS:
        few = f"{counted(sample.steps, 'step')} {'does' if sample.steps == 1 else 'do'}"
        reason += f", and {few} not show how much steps differ: record {FEWEST_STEPS} or more"
    return Judgment(
        f"{series.key}{SIGN}{floor:g}",
        f"{series.title}, lower bound",
        series.unit,
        Better.HIGHER,
        verdict,
        reason,
        before=floor,
        after=sample.center,
        change=sample.center - floor,
        low=low - floor,
        high=high - floor,
        scale=Scale.ABSOLUTE,
        allowed=0.0,
        steps=sample.steps,
    )
