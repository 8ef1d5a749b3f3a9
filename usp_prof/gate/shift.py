"""How far do two sets of runs lie apart, and how sure is that? Noise within runs and noise between them.

Within: the error of each run's centre, from its steps. Between: what several baseline runs show; before there are
enough, what the prior assumes, which weighs as much as so many runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.gate.sample import pseudo_median
from usp_prof.model.metric import Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.gate.gauge import Gauge
    from usp_prof.gate.noise import Noise
    from usp_prof.gate.policy import Rule
    from usp_prof.gate.sample import Sample
    from usp_prof.gate.series import Series


@dataclass(frozen=True, slots=True)
class Shift:
    """A difference: its standard error now, what more steps would mend of its variance, and how well it is known."""

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
    return Shift(new.centre - centre, math.sqrt(total), parts[0], freedom, runs)


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
