"""Is this one metric worse? The difference of two robust centres, its interval, and what that allows to be said."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.gate.gauge import gauge_for
from usp_prof.gate.judgement import Judgement, Verdict, worsening
from usp_prof.gate.sample import boil_down, pseudo_median
from usp_prof.gate.shift import shift_of
from usp_prof.gate.student import t_quantile
from usp_prof.model.metric import Better

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.gate.gauge import Gauge
    from usp_prof.gate.noise import Noise
    from usp_prof.gate.policy import Rule
    from usp_prof.gate.series import Series
    from usp_prof.gate.shift import Shift


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
    olds = [boil_down(gauge.into(each.samples), each.steps) for each in before]
    new = boil_down(gauge.into(after.samples), after.steps)
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
        return replace(blank, reason="one step tells nothing about noise", more_steps=5)
    found = shift_of(after, gauge, olds, new, rule, noise)
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
    return replace(blank, reason="the baseline is 0, so that no relative change exists; give an absolute limit")


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


def _unsettled(found: Judgement, shift: Shift, rule: Rule, tail: float, gauge: Gauge) -> Judgement:
    """Say what it would take to settle it, taking the difference seen for the true one."""
    amount = worsening(found.better, shift.amount)
    allowed, resolve = gauge.limit(rule.allowed, found.better), gauge.limit(rule.resolve, found.better)
    margin = amount - allowed if amount > allowed else resolve - amount
    needed = (margin / t_quantile(tail, max(shift.freedom, 10.0))) ** 2
    fixed = shift.error**2 - shift.mendable
    if needed <= fixed:
        one = "one baseline run does not tell how much runs differ: save a baseline of several runs"
        many = "runs differ too much for more steps to settle it: save a baseline of more, longer runs"
        return replace(found, more_steps=-1, reason=one if shift.runs == 1 else many)
    wanted = found.steps * shift.mendable / (needed - fixed)
    if not math.isfinite(wanted):
        return replace(found, more_steps=-1, reason="the steps of this run tell nothing about its noise")
    more = max(math.ceil(wanted) - found.steps, 1)
    return replace(found, more_steps=more, reason=f"about {more} more steps would settle it")
