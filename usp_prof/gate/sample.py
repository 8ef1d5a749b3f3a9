"""Samples and noise: one run's steps without warm-up and outliers, and the spread between runs of one configuration.

The center is the pseudo-median (Hodges and Lehmann: the median of all pairwise means). It tolerates 29% bad steps and
needs 5% more steps than a mean; a median needs 57% more. Its error accounts for the correlation of consecutive steps,
which carry less information than independent ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from usp_prof.columns.statistics import robust_sigma
from usp_prof.gate.facts import Fact, FactKind
from usp_prof.gate.measured import Measured
from usp_prof.gate.series import STEP_TIME

ODD = 5.0
"""A step is an outlier if it is more than this many robust standard deviations from the median.

The limit is wider for few steps, whose deviation is uncertain. Only 1 in 1.7 million normal steps exceeds it, so
removed steps are not ordinary noise.
"""

FEWEST = 6
"""With fewer steps nothing is removed: the spread needed to detect outliers is unknown."""

MOST_ODD = 0.2
"""If more than this share of steps looks like outliers, the run itself is like that: only warm-up is removed."""

MOST_WARM_UP = 1 / 3
"""Largest share of the steps that counts as warm-up."""

_PSEUDO_MEDIAN_VARIANCE = math.pi / 3
"""Variance of the pseudo-median of normal samples, relative to that of their mean."""

_MEAN_DEVIATION_TO_SD = 1.2533


@dataclass(frozen=True, slots=True)
class Sample:
    """Statistics of a series. `error` is the center's standard error; infinite if there is only one step."""

    center: float
    median: float
    spread: float
    error: float
    freedom: float
    steps: int
    warm_up: tuple[int, ...] = ()
    odd: tuple[int, ...] = ()


def boil_down(samples: Sequence[float] | NDArray[np.float64], steps: Sequence[int]) -> Sample:
    """Remove warm-up and outlier steps and estimate the center and its error; `steps` are the numbers of the steps."""
    values = np.asarray(samples, dtype=np.float64)
    numbers = np.asarray(steps, dtype=np.int64)
    if not len(values):
        raise ValueError("a series has at least one sample")
    first = _warm_up(values)
    is_used = np.ones(len(values), dtype=bool)
    is_used[:first] = False
    odd = np.zeros(len(values), dtype=bool)
    if is_used.sum() >= FEWEST:
        odd = is_used & _far(values, values[is_used])
    if odd.sum() > max(1, MOST_ODD * is_used.sum()):
        odd[:] = False
    is_used &= ~odd
    clean = values[is_used]
    n = len(clean)
    spread = float(clean.std(ddof=1)) if n > 1 else math.nan
    effective = effective_number(clean)
    return Sample(
        center=pseudo_median(clean),
        median=float(np.median(clean)),
        spread=spread,
        error=spread * math.sqrt(_PSEUDO_MEDIAN_VARIANCE / effective) if n > 1 else math.inf,
        freedom=max(effective - 1, float(min(n - 1, 3))) if n > 1 else 0.0,
        steps=n,
        warm_up=tuple(int(step) for step in numbers[:first]),
        odd=tuple(int(step) for step in numbers[odd]),
    )


def pseudo_median(values: NDArray[np.float64]) -> float:
    """Return the median of all pairwise means, including each value paired with itself."""
    if len(values) > 2000:  # pairs would not fit in memory; the median of this many values is precise enough
        return float(np.median(values))
    left, right = np.triu_indices(len(values))
    return float(np.median((values[left] + values[right]) / 2))


def effective_number(values: NDArray[np.float64]) -> float:
    """Return the number of independent steps equivalent to these correlated ones, from their lag-one correlation."""
    n = len(values)
    if n < FEWEST:
        return float(n)
    centered = values - values.mean()
    power = float(centered @ centered)
    if power <= 0:
        return float(n)
    raw = float(centered[1:] @ centered[:-1]) / power
    rho = raw + (1 + 3 * raw) / n  # the estimate from few steps is biased downward
    if rho <= 1.3 / math.sqrt(n):  # not distinguishable from 0: one run in ten with independent steps exceeds it
        return float(n)
    rho = min(rho, 0.95)
    return max(n * (1 - rho) / (1 + rho), 2.0)


def _far(values: NDArray[np.float64], ordinary: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask of values too far from the ordinary ones; the limit is wider if there are few of those."""
    center = float(np.median(ordinary))
    spread = robust_sigma(ordinary) or float(np.abs(ordinary - center).mean()) * _MEAN_DEVIATION_TO_SD
    reach = ODD * (1 + 5 / len(ordinary)) * spread
    return np.abs(values - center) > reach + 1e-9 * abs(center)


def _warm_up(values: NDArray[np.float64]) -> int:
    """Return the number of leading steps outside the range of the later two thirds of the run."""
    n = len(values)
    if n < FEWEST:
        return 0
    most = int(n * MOST_WARM_UP)
    is_far = _far(values[:most], values[most:])
    return int(np.argmin(np.append(is_far, False)))


# Student's t quantile: number of standard errors in an interval when the noise itself is estimated. Uses Hill's
# algorithm 396 (Communications of the ACM 13, 1970) with the normal quantile of the standard library, so that the gate
# does not need SciPy. It has six digits for the degrees of freedom that occur.


_NORMAL = NormalDist()


def t_quantile(tail: float, freedom: float) -> float:
    """Return the value that Student's t with `freedom` degrees of freedom exceeds with probability `tail` (< 0.5)."""
    if not 0 < tail < 0.5:
        raise ValueError(f"tail must be between 0 and 0.5, not {tail}")
    two_tails = 2 * tail
    if freedom >= 1e6:
        return -_NORMAL.inv_cdf(tail)
    n = max(freedom, 1.0)
    if n == 1:
        return 1 / math.tan(two_tails * math.pi / 2)
    if n <= 2:
        return math.sqrt(2 / (two_tails * (2 - two_tails)) - 2) if n == 2 else t_quantile(tail, 1)
    a = 1 / (n - 0.5)
    b = 48 / (a * a)
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * n
    y = (d * two_tails) ** (2 / n)
    if y > 0.05 + a:
        x = _NORMAL.inv_cdf(tail)
        y = x * x
        if n < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = ((1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3) + 0.5 / (n + 4)) * y - 1) * (n + 1) / (
            n + 2
        ) + 1 / y
    return math.sqrt(n * y)


# Noise between runs of one configuration: the prior that counts until enough baseline runs show it. One run shows how
# its steps differ, but not how the next run would. The assumption depends on the machine. An accelerator runs only this
# job, so runs differ by a fraction of what steps do. CPUs are shared with other load, which moves whole runs as much as
# steps. The steps of the two compared runs set the scale. Several baseline runs replace the assumption.


class Machine(StrEnum):
    """Whether other work may run on the machine of a step."""

    DEDICATED = "dedicated"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Prior:
    """Assumed spread between runs (standard deviation) as a share of the spread of the steps.

    The prior weighs as much as `worth` runs. A smaller `worth` widens the interval of a single pair and lets measured
    runs take over sooner. From `enough` baseline runs on, only those count.
    """

    share: float
    worth: float
    enough: float = math.inf


PRIORS: Mapping[Machine, Prior] = {Machine.DEDICATED: Prior(0.2, 8.0), Machine.SHARED: Prior(2.0, 4.0, 4)}
"""The default priors; `benchmarks/README.md` lists the false-alarm rate and the power of both."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The prior of a check, and the spread of the step times of its runs as a fraction of the step.

    A figure with one value per run (a rate over all steps) has no spread of its own. It is assumed to vary like the
    step.
    """

    machine: Machine
    prior: Prior
    step_spread: float


def machine_of(facts: Iterable[Fact]) -> Machine:
    """Return the kind of machine of a run; shared unless the facts show a dedicated device."""
    hardware = {fact.name: fact.value for fact in facts if fact.kind is FactKind.HARDWARE}
    alone = hardware.get("processes per device", "1") == "1"
    return Machine.DEDICATED if hardware.get("device", "cpu") != "cpu" and alone else Machine.SHARED


def noise_of(runs: Sequence[Measured], priors: Mapping[Machine, Prior]) -> Noise:
    """Choose the prior for runs that are compared with each other: dedicated only if all of them are."""
    machines = {machine_of(run.facts) for run in runs}
    machine = Machine.DEDICATED if machines == {Machine.DEDICATED} else Machine.SHARED
    return Noise(machine, priors[machine], max((_spread(run) for run in runs), default=0.0))


def _spread(run: Measured) -> float:
    steps = run.by_key().get(STEP_TIME)
    if steps is None or len(steps.samples) < 2:
        return 0.0
    sample = boil_down(steps.samples, steps.steps)
    return sample.spread / sample.center if sample.center > 0 else 0.0


# The ratio of medians (`judge = "medians"` in a policy): uses only the given steps, with no assumption on other runs.
# The default judgment doubts a single baseline run: on a shared host, runs of one configuration differ by twice what
# their steps do, so +20% over one baseline run stays inconclusive. Here the error of a median comes from a bootstrap:
# remove warm-up and outlier steps, then draw blocks of consecutive steps with replacement until they are as long as the
# run, and take the median. The spread of many such medians is the error. Blocks preserve the correlation of consecutive
# steps: ten slow steps in a row carry less information than ten scattered ones.

_DRAWS = 1000
_MEDIAN_VARIANCE = math.pi / 2
"""Variance of the median of normal samples, relative to that of their mean."""


def steps_alone(noise: Noise) -> Noise:
    """Return noise without assumptions on unrecorded runs; the spread of several baseline runs still counts."""
    return replace(noise, prior=Prior(share=0.0, worth=noise.prior.worth, enough=2))


def boil_down_to_median(samples: Sequence[float] | NDArray[np.float64], steps: Sequence[int]) -> Sample:
    """Remove warm-up and outlier steps; the center is the median, with an error from a bootstrap over blocks."""
    sample = boil_down(samples, steps)
    removed = np.isin(np.asarray(steps), (*sample.warm_up, *sample.odd))
    values = np.asarray(samples, dtype=np.float64)[~removed]
    return replace(sample, center=sample.median, error=median_error(values) if sample.freedom else sample.error)


def median_error(values: NDArray[np.float64]) -> float:
    """Return the standard error of the median of consecutive steps."""
    n = len(values)
    effective = effective_number(values)
    length = max(math.ceil(n ** (1 / 3)), math.ceil(n / effective))
    chance = np.random.default_rng(n)  # seeded: the same figures lead to the same verdict
    firsts = chance.integers(0, n, (_DRAWS, -(-n // length)))
    places = (firsts[:, :, None] + np.arange(length)) % n  # blocks wrap around the end, so all steps count equally
    drawn = values[places.reshape(_DRAWS, -1)[:, :n]]
    error = float(np.median(drawn, axis=1).std(ddof=1))
    if effective < n:  # few blocks understate the error of correlated steps
        error = max(error, float(values.std(ddof=1)) * math.sqrt(_MEDIAN_VARIANCE / effective))
    return error
