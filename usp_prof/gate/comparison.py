"""Comparison of runs for people: all metrics side by side, the waterfall of the step, and the work that changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from usp_prof.analyses.step_time import JOB_STEP_TIME, median_step_ns, ordinary_steps
from usp_prof.gate.facts import BARRED, Difference, FactKind, barred, differences, uncompared
from usp_prof.gate.judge import FROM_ZERO, judge
from usp_prof.gate.judgment import Judgment, Limit, Scale, Verdict, unjudged
from usp_prof.gate.measured import Measured
from usp_prof.gate.policy import Rule
from usp_prof.gate.sample import PRIORS, Noise, noise_of
from usp_prof.gate.series import RATES, STEP_TIME, Series
from usp_prof.gate.verdict import unusable_input
from usp_prof.gate.why import PartChange, Why, explain, waterfall
from usp_prof.model.health import Severity
from usp_prof.model.metric import Better, Unit

_DOUBT = 0.005
"""Tail probability of each interval of a comparison: an interval misses the true change in 1 of 100 cases."""
_NEAR_ZERO = 0.01
"""Times below this share of the step are compared by difference.

Steps of unchanged runs differ by about 1%, so a percentage of a smaller time says nothing about the step.
"""


@dataclass(frozen=True, slots=True)
class Pair:
    """The first run compared with another one: judgments of the metrics of both, and the difference of their steps."""

    label: str
    judgements: tuple[Judgment, ...]
    """A key of the JSON output, which keeps its spelling."""
    differences: tuple[Difference, ...]
    doubts: tuple[str, ...]
    """Damage, missing ranks, and the differences that prevent metrics from being compared."""
    waterfall: tuple[PartChange, ...]
    why: Why


@dataclass(frozen=True, slots=True)
class Comparison:
    """The first run compared with each of the other runs."""

    label: str
    pairs: tuple[Pair, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of all metrics of all pairs, sorted."""
        return tuple(sorted({judgment.key for pair in self.pairs for judgment in pair.judgements}))


def compare(runs: Sequence[Measured], across: Sequence[FactKind] = ()) -> Comparison:
    """Compare the first run with each other run; differences of the kinds in `across` do not prevent a comparison."""
    first = runs[0]
    return Comparison(first.label, tuple(_pair(first, other, across) for other in runs[1:]))


def _pair(first: Measured, other: Measured, across: Sequence[FactKind]) -> Pair:
    differing = differences(first.facts, other.facts)
    old, new = first.by_key(), other.by_key()
    noise = noise_of((first, other), PRIORS)
    near_zero_ns = _NEAR_ZERO * min(_median(old.get(STEP_TIME)), _median(new.get(STEP_TIME)))
    judgments = []
    for key in sorted({*old, *new}):
        series = new[key] if key in new else old[key]
        rule = rule_for(series)
        if series.unit is Unit.NS and max(_median(old.get(key)), _median(new.get(key))) < near_zero_ns:
            rule = _by_difference(rule, _median(old.get(key)))
        bar = barred(series.unit, differing, across)
        judgments.append(_judgment(series, old.get(key), new.get(key), rule, bar, noise))
    parts_before, parts_after = dict(waterfall(first)), dict(waterfall(other))
    steps = tuple(
        PartChange(name, parts_before.get(name, 0.0), parts_after.get(name, 0.0))
        for name in sorted({*parts_before, *parts_after})
    )
    doubts = unusable_input((first,), other, Severity.DATA_LOSS, differing)
    doubts += uncompared(differing, across)
    return Pair(other.label, tuple(judgments), differing, doubts, steps, explain(first, other))


def _median(series: Series | None) -> float:
    return median(series.samples) if series is not None and series.samples else 0.0


def _by_difference(rule: Rule, before_ns: float) -> Rule:
    """Return the rule for differences in ns; runs are assumed to differ by the same share as for relative changes."""
    return replace(
        rule,
        allowed=Limit(0.0, Scale.ABSOLUTE),
        resolve=Limit(rule.resolve.amount, Scale.ABSOLUTE),
        between=Limit(rule.between.amount * abs(before_ns), Scale.ABSOLUTE),
    )


def _judgment(
    series: Series, before: Series | None, after: Series | None, rule: Rule, bar: Difference | None, noise: Noise
) -> Judgment:
    blank = unjudged(series, Verdict.NOT_COMPARED)
    if before is None or after is None:
        if after is None:
            return replace(blank, reason="only in the first run", before=_reported(series))
        return replace(blank, reason="not in the first run", after=_reported(series))
    judgment = judge((before,), after, rule, _DOUBT, noise)
    if judgment.reason == FROM_ZERO:
        judgment = replace(judgment, reason="before is 0")
    if bar is not None:
        judgment = replace(blank, reason=f"{BARRED}{bar}")
    return _as_reported(replace(judgment, before=_reported(before), after=_reported(after)))


def _reported(series: Series) -> float:
    """Return the figure that the run's report shows.

    That is the median of the job's step, the mean of other times, and rates over the time of all ordinary steps.
    """
    if series.metric == JOB_STEP_TIME.id:
        return median_step_ns(series.samples)
    if series.metric in RATES and series.per_step and min(series.samples) > 0:
        time_per_work = 1 / np.asarray(series.samples)
        return 1 / float(time_per_work[ordinary_steps(time_per_work.tolist())].mean())
    return series.mean


def _as_reported(judgment: Judgment) -> Judgment:
    """Return the judgment with the change between the two figures, if its interval contains that change.

    The judged change is that of robust centers, which may even have the other sign.
    """
    if not judgment.low < judgment.high or not judgment.before:
        return judgment
    difference = judgment.after - judgment.before
    change = difference / abs(judgment.before) if judgment.scale is Scale.RELATIVE else difference
    return replace(judgment, change=change) if judgment.low <= change <= judgment.high else judgment


_OF_PEAK = frozenset({"mfu", "hfu", "kernel_efficiency", "link_fraction"})
"""Fractions that are rates relative to a device's or link's peak: 0.1% instead of 0.2% is half the rate."""


def rule_for(series: Series) -> Rule:
    """Return the rule for a series: points for shares, ratios for rates and the rest. Any change above noise counts."""
    is_share = series.unit is Unit.FRACTION and series.metric not in _OF_PEAK
    scale = Scale.ABSOLUTE if is_share else Scale.RELATIVE
    nothing = Limit(0.0, scale)
    return Rule(series.key, nothing, Limit(float("inf"), scale), Limit(0.001, scale))


BETTER, WORSE, CHANGED, SAME, WITHIN_NOISE = "better", "worse", "changed", "same", "within noise"
"""Results of a comparison."""


def direction(judgment: Judgment) -> str:
    """Return the result of a comparison, or "" if the metric was not compared."""
    if judgment.verdict is Verdict.NOT_COMPARED or math.isnan(judgment.low):
        return ""
    if judgment.low == judgment.high == 0:
        return SAME
    if judgment.low <= 0 <= judgment.high:
        return WITHIN_NOISE
    if judgment.better is Better.NEITHER:
        return CHANGED
    return WORSE if judgment.worse > 0 else BETTER
