"""Does the run keep the absolute bounds of `--min`? Below for certain is a regression, below by luck is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.gate.judgement import Judgement, Verdict
from usp_prof.gate.limit import Scale
from usp_prof.gate.sample import boil_down
from usp_prof.gate.student import t_quantile
from usp_prof.model.metric import Better, Unit

if TYPE_CHECKING:
    from usp_prof.gate.measured import Measured
    from usp_prof.gate.policy import Policy
    from usp_prof.gate.series import Series

SIGN = " >= "
"""Stands in the key of a bound's judgement, between the metric and the bound."""


def judge_bounds(after: Measured, policy: Policy) -> tuple[Judgement, ...]:
    """Judge each bound of the policy."""
    news = after.by_key()
    return tuple(
        _judged(news[name], floor, policy.false_alarm) if name in news else _missing(name, floor)
        for name, floor in policy.minimum
    )


def _missing(name: str, floor: float) -> Judgement:
    reason = f"{name} was not measured, so that its bound {floor:g} cannot be checked"
    return Judgement(f"{name}{SIGN}{floor:g}", name, Unit.RATIO, Better.HIGHER, Verdict.INCONCLUSIVE, reason)


def _judged(series: Series, floor: float, false_alarm: float) -> Judgement:
    sample = boil_down(series.samples, series.steps)
    noisy = series.per_step and sample.freedom >= 1
    reach = t_quantile(false_alarm, sample.freedom) * sample.error if noisy else 0.0
    low, high = sample.centre - reach, sample.centre + reach
    verdict = Verdict.PASS if sample.centre >= floor else Verdict.INCONCLUSIVE
    if high < floor:
        verdict = Verdict.REGRESSED
    return Judgement(
        f"{series.key}{SIGN}{floor:g}",
        f"{series.title}, lower bound",
        series.unit,
        Better.HIGHER,
        verdict,
        "" if verdict is Verdict.PASS else f"{sample.centre:.4g} is below the bound",
        before=floor,
        after=sample.centre,
        change=sample.centre - floor,
        low=low - floor,
        high=high - floor,
        scale=Scale.ABSOLUTE,
        allowed=0.0,
        steps=sample.steps,
    )
