"""Change points and drift in a series of runs.

Consecutive runs on one machine are correlated (cluster load, neighboring jobs), so a level that wanders is not a
change. Three models explain a series:

  unchanged  one level; noise depends on the previous run (AR(1), with an unknown coefficient)
  steps      up to `MOST_CHANGES` change points between constant levels; dynamic programming finds the exact optimum
  drift      a straight line

Steps or drift are reported if the evidence against "unchanged" exceeds what unchanged series reach. Evidence is twice
the logarithm of the likelihood ratio at the best fit. For a single change, it is also enough that the odds (Bayes
factor), averaged over positions and sizes of the change and over coefficients of the noise, are high: near the limit,
averages decide better than best fits. Outlier runs are first clipped to their neighborhood. In skewed noise, a level
of few runs must also show on a scale on which the noise is symmetric: a few slow runs in a row are not a step.

Example: 10 10 11 10 14 14 13 14 has one change point, before the fifth run; 10 11 12 13 14 15 16 17 drifts by 1 per
run.

The price of few false changes: a series of 30 runs can wander (AR(0.8)) so that it looks like a step. Consider a
change by 2.5 deviations (+5% at 2% noise) at an unknown place. Even a likelihood ratio test that knows this size and
the coefficient 0.8 misses 11% of these changes, if it takes 2% of the unchanged series for changes. This test misses
12% in the middle, 16% after ten runs and 28% after five; it finds 95% in the middle of 40 runs. Its rate of false
changes is at most 2%.
In strongly skewed noise (lognormal, sigma 1), that rate is 2.8% for 30 runs and 1.2% for 100.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

import numpy as np

from usp_prof.columns.arrays import Floats
from usp_prof.gate.sample import t_quantile

SHORTEST = 3
"""Minimum number of runs per level: a single outlier run is not a change point."""
FEWEST = 2 * SHORTEST
"""Minimum number of runs in a series: one level before a change and one after it."""
MOST_CHANGES = 4

# Calibrated on 3,000 simulated AR(0.8) series of 30 unchanged runs, the hardest case. Checked on 2,000 others each of
# 30 and 100 runs of white noise, Student's t with three degrees of freedom, and AR(0.8).
_LOG_ODDS = 2.0
"""Minimum logarithm of the odds for one change point."""
_EVIDENCE = 18.0
"""Minimum evidence for one change point at the best fit."""
_EVIDENCE_PER_CHANGE = 22.0
"""Additional evidence required per further change point: more candidate positions fit more noise."""
_EVIDENCE_OF_DRIFT = 18.0
"""Minimum evidence for a drift: a level that wanders looks more like a line than like a step."""
_DEPENDENCE = 16.0
"""Penalty for residuals that still depend on the previous run, multiplied by their lag-one correlation."""
_CHANGE_CHANCE = 0.00005
"""Probability that noise alone makes two adjacent levels differ by this much.

It is this small because the best of many positions was picked.
"""
_DRIFT_CHANCE = 0.001
"""Significance level of a drift: probability that a series without drift looks like one."""
_COEFFICIENTS = np.linspace(0.0, 0.98, 50)
"""AR(1) coefficients to try. A coefficient of 1 would be a random walk, which has no level."""
_SIZES = np.array([1.5, 2.0, 2.5, 3.0, 4.0])
"""Sizes of one change that the odds average over, in standard deviations of the noise."""
_PRECISIONS = np.linspace(0.05, 4.0, 120)
"""Inverse standard deviations of the noise that the odds integrate over, in units of those of the series."""
_SKEWED = 1.0
"""Minimum skewness of skewed noise; that of an exponential distribution is 2."""
_FEW = 10
"""Levels of fewer runs may be slow runs of skewed noise."""
_ODD = 3.0
"""Runs farther than this many deviations from the median of their neighborhood are clipped."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A change of level from `before` to `after` at position `index` of the series."""

    index: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Trend:
    """The change points of a series of runs and its drift per run (0 if no drift was detected)."""

    changes: tuple[ChangePoint, ...]
    drift_per_run: float
    drift_chance: float
    noise: float


def find_trend(values: Sequence[float]) -> Trend:
    """Return the steps or the drift of a series of runs, oldest first.

    In skewed noise, a level of few runs must also differ on a scale on which the noise is symmetric.
    """
    series = np.asarray(values, dtype=np.float64)
    trend = _trend(series)
    edges = [change.index for change in trend.changes]
    shortest = min(np.diff([0, *edges, len(series)])) if edges else _FEW
    symmetric = _symmetric(series, edges) if shortest < _FEW else None
    if symmetric is None or _trend(symmetric).changes:
        return trend
    return Trend((), 0.0, trend.drift_chance, float(np.std(series)))


def _symmetric(series: Floats, edges: list[int]) -> Floats | None:
    """Return the series on a logarithmic scale that makes its noise around the levels symmetric.

    Values are measured from a bound beyond the short tail of the noise. `None` if the noise is hardly skewed.
    """
    noise = _residuals(series, edges)
    deviation, skewness = float(noise.std()), _skewness(noise)
    if deviation <= 1e-9 * float(np.abs(series).max()) or abs(skewness) < _SKEWED:
        return None
    side = math.copysign(1.0, skewness)
    place = side * series / deviation
    place -= place.min()
    # The closer the bound, the more the long tail is compressed: bisect for the distance without skewness.
    near, far = 1e-3, 1e3
    for _ in range(40):
        distance = math.sqrt(near * far)
        if _skewness(_residuals(np.log(place + distance), edges)) < 0:
            near = distance
        else:
            far = distance
    return np.asarray(side * np.log(place + far))


def _skewness(noise: Floats) -> float:
    """Return the skewness of numbers with a mean of 0."""
    variance = float((noise**2).mean())
    return float((noise**3).mean()) / variance**1.5 if variance else 0.0


def _trend(series: Floats) -> Trend:
    """Return the steps or the drift of a series in noise that is not skewed."""
    n = len(series)
    if n < FEWEST:
        return Trend((), 0.0, 1.0, math.nan)
    if np.ptp(series) == 0:
        return Trend((), 0.0, 1.0, 0.0)
    clipped = _without_odd_runs(series)
    # Variance below rounding error does not count as noise: an exact step would have infinite evidence.
    least = (1e-9 * float(np.abs(series).max())) ** 2
    unchanged = _Unchanged.fitted(clipped)
    likelihood = unchanged.likelihood(least)
    slope, chance = mann_kendall(series)
    line = clipped - slope * np.arange(n)
    # Evidence above the required amount, and the change positions; `None` for a drift.
    candidates: list[tuple[float, list[int] | None]] = [(0.0, [])]
    if chance < _DRIFT_CHANCE:
        candidates.append((_evidence(line - line.mean(), likelihood, least) - _EVIDENCE_OF_DRIFT, None))
    for edges in _partitions(clipped, min(MOST_CHANGES, n // SHORTEST - 1)):
        residuals = _residuals(clipped, edges)
        if _are_apart(clipped, edges, residuals, least):
            needed = _EVIDENCE + _EVIDENCE_PER_CHANGE * (len(edges) - 1)
            candidates.append((_evidence(residuals, likelihood, least) - needed, edges))
        if len(edges) == 1:
            candidates.append((2 * (_log_odds_of_change(clipped, unchanged) - _LOG_ODDS), edges))
    _, chosen = max(candidates, key=lambda candidate: candidate[0])
    if chosen is None:
        return Trend((), slope, chance, float(np.std(line)))
    means = [float(series[first:last].mean()) for first, last in pairwise([0, *chosen, n])]
    changes = tuple(ChangePoint(edge, means[i], means[i + 1]) for i, edge in enumerate(chosen))
    return Trend(changes, 0.0, chance, float(np.std(_residuals(clipped, chosen))))


def mann_kendall(series: Floats) -> tuple[float, float]:
    """Return the Theil-Sen slope per run and the probability of at least this much order without a drift."""
    n = len(series)
    left, right = np.triu_indices(n, 1)
    differences = series[right] - series[left]
    slope = float(np.median(differences / (right - left)))
    score = float(np.sign(differences).sum())
    variance = n * (n - 1) * (2 * n + 5) / 18
    z = (abs(score) - 1) / math.sqrt(variance) if score else 0.0
    return slope, 2 * NormalDist().cdf(-max(z, 0.0))


def _without_odd_runs(series: Floats) -> Floats:
    """Clip runs that differ from the median of five neighbors by more than usual (a Hampel filter)."""
    neighbors = np.lib.stride_tricks.sliding_window_view(np.pad(series, 2, mode="reflect"), 5)
    middle = np.median(neighbors, axis=1)
    deviation = series - middle
    typical = 1.4826 * float(np.median(np.abs(deviation[deviation != 0]))) if (deviation != 0).any() else 0.0
    return np.asarray(middle + np.clip(deviation, -_ODD * typical, _ODD * typical))


@dataclass(frozen=True, slots=True, eq=False)
class _Unchanged:
    """One level with AR(1) noise, fitted to a series with each of `_COEFFICIENTS`."""

    runs: int
    error: Floats
    """Squared error of the innovations."""
    weight: Floats
    """Weight of the first run: it carries the noise of all runs before it."""
    information: Floats
    """Weight of all runs in the estimate of the level."""

    @classmethod
    def fitted(cls, series: Floats) -> _Unchanged:
        """Fit the level for each coefficient."""
        n, first = len(series), series[0]
        weight, share = 1 - _COEFFICIENTS**2, 1 - _COEFFICIENTS
        innovations = series[1:] - _COEFFICIENTS[:, None] * series[:-1]
        information = weight + share**2 * (n - 1)
        level = (weight * first + share * innovations.sum(axis=1)) / information
        error = weight * (first - level) ** 2 + ((innovations - (share * level)[:, None]) ** 2).sum(axis=1)
        return cls(n, error, weight, information)

    def likelihood(self, least: float) -> float:
        """Return the log likelihood at the best coefficient."""
        n = self.runs
        return float((-n / 2 * np.log(np.maximum(self.error / n, least)) + np.log(self.weight) / 2).max())

    def log_average(self, variance: float) -> float:
        """Return the log likelihood, averaged over coefficients, levels and deviations; `variance` is the unit."""
        freedom = self.runs - 1
        scale = -freedom / 2 * np.log(self.error / variance / 2) + np.log(self.weight / self.information) / 2
        return math.lgamma(freedom / 2) - math.log(2) + _log_mean(scale)


def _log_odds_of_change(series: Floats, unchanged: _Unchanged) -> float:
    """Return the log odds of one change in independent noise against no change in AR(1) noise.

    Both are averaged: over positions, `_SIZES` and `_PRECISIONS` of the change, and over `_COEFFICIENTS`.
    """
    n, variance = len(series), float(series.var())
    if not variance or unchanged.error.min() <= 0:
        return -math.inf
    deviations = (series - series.mean()) / math.sqrt(variance)
    first_changed = np.arange(SHORTEST, n - SHORTEST + 1)
    # A change before run k adds its size to the runs from k on; sums over those, and their squared deviation from 0/1.
    rise = np.abs(np.cumsum(deviations)[first_changed - 1])
    spread = first_changed * (n - first_changed) / n
    size = _SIZES[:, None, None]
    exponents = (
        (n - 2) * np.log(_PRECISIONS)
        - n * _PRECISIONS**2 / 2
        + size * rise[:, None] * _PRECISIONS
        - size**2 * spread[:, None] / 2
    )
    width = float(_PRECISIONS[-1] - _PRECISIONS[0])
    # A change is up or down; the other direction adds nothing for a change that matters.
    changed = _log_mean(exponents) - math.log(2) + math.log(width) - math.log(n) / 2
    return changed - unchanged.log_average(variance)


def _log_mean(logarithms: Floats) -> float:
    """Return the logarithm of the mean of numbers that are given by their logarithms."""
    largest = float(logarithms.max())
    return largest + math.log(float(np.exp(logarithms - largest).mean()))


def _evidence(residuals: Floats, unchanged: float, least: float) -> float:
    """Return twice the log likelihood ratio to the unchanged model, minus the penalty for dependent residuals."""
    n, error = len(residuals), float((residuals**2).sum())
    correlation = float((residuals[1:] * residuals[:-1]).sum()) / error if error else 0.0
    likelihood = -n / 2 * math.log(max(error / n, least))
    return 2 * (likelihood - unchanged) - _DEPENDENCE * max(correlation, 0.0)


def _partitions(series: Floats, most: int) -> list[list[int]]:
    """Return, for each number of change points from 1 to `most`, the partition with the least squared error."""
    n = len(series)
    place = np.arange(n + 1)
    sums, squares = (
        np.append(0.0, np.cumsum(column)) for column in (series - series.mean(), (series - series.mean()) ** 2)
    )
    length = place[None, :] - place[:, None]
    # Squared error of one level by first and last run; infinite for levels that are too short.
    error = squares[None, :] - squares[:, None] - (sums[None, :] - sums[:, None]) ** 2 / np.maximum(length, 1)
    error[length < SHORTEST] = np.inf
    best, last_edges, partitions = error[0], [], []
    for count in range(1, most + 1):
        total = best[:, None] + error
        last_edges.append(np.argmin(total, axis=0))
        best = total.min(axis=0)
        edges, end = [], n
        for last_edge in reversed(last_edges[:count]):
            end = int(last_edge[end])
            edges.append(end)
        partitions.append(sorted(edges))
    return partitions


def _are_apart(series: Floats, edges: list[int], residuals: Floats, least: float) -> bool:
    """Return whether every two adjacent levels differ by more than the noise around them allows."""
    freedom = len(series) - len(edges) - 1
    variance = max(float((residuals**2).sum()) / freedom, least)
    levels = [series[first:last] for first, last in pairwise([0, *edges, len(series)])]
    scores = [
        abs(float(after.mean() - before.mean())) / math.sqrt(variance * (1 / len(before) + 1 / len(after)))
        for before, after in pairwise(levels)
    ]
    return min(scores) >= t_quantile(_CHANGE_CHANCE * min(1.0, 30 / len(series)), freedom)


def _residuals(series: Floats, edges: Sequence[int]) -> Floats:
    residuals = series.copy()
    for first, last in pairwise([0, *edges, len(series)]):
        residuals[first:last] -= series[first:last].mean()
    return residuals
