"""Change points and drift in a series of runs.

Change points: the partition with the least squared error and a penalty for each point (Bayesian information). The noise
is estimated from the differences of neighbours, which a few steps cannot inflate. Dynamic programming finds the best
partition exactly.
Drift: the Theil-Sen slope with the Mann-Kendall test. A series drifts when a straight line explains it better than the
change points do.

Example: 10 10 11 10 14 14 13 14 has one change point, before the fifth run; 10 11 12 13 14 15 16 17 drifts by 1 a run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.gate.sample import t_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SHORTEST = 3
"""A level lasts at least so many runs: a single strange run is no change point."""
FEWEST = 2 * SHORTEST
"""Fewer runs have no room for a change: a level before it, and one after."""

PENALTY = 3.0
"""In units of noise variance times log(runs), for each change point that is tried."""

CHANGE_CHANCE = 0.00005
"""A change point that was tried stays when its two levels differ by more than noise does in this share of the cases;
it is this small because the best of many places was picked."""

DRIFT_CHANCE = 0.001
"""A drift is told when a series without one would look so in less than this share of the cases."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """The level changed at run `index` (its position), from `before` to `after`."""

    index: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Trend:
    """What a series of runs does: its change points, and its drift per run (0 when none is told)."""

    changes: tuple[ChangePoint, ...]
    drift_per_run: float
    drift_chance: float
    noise: float


def find_trend(values: Sequence[float]) -> Trend:
    """Look for steps and drift in a series of runs, oldest first."""
    series = np.asarray(values, dtype=np.float64)
    n = len(series)
    if n < FEWEST:
        return Trend((), 0.0, 1.0, math.nan)
    noise = _noise(series)
    if noise == 0 and np.ptp(series) == 0:
        return Trend((), 0.0, 1.0, 0.0)
    scale = max(noise, 1e-9 * float(np.abs(series).max()))
    edges = _pruned(series, _partition(series, PENALTY * scale**2 * math.log(n)), 1e-9 * float(np.abs(series).max()))
    slope, chance = mann_kendall(series)
    stepped = _stepped_error(series, edges) + (len(edges) * PENALTY) * scale**2 * math.log(n)
    sloped = _line_error(series, slope) + PENALTY * scale**2 * math.log(n)
    if chance < DRIFT_CHANCE and sloped <= stepped:
        return Trend((), slope, chance, noise)
    bounds = [0, *edges, n]
    means = [float(series[a:b].mean()) for a, b in pairwise(bounds)]
    changes = tuple(ChangePoint(edge, means[i], means[i + 1]) for i, edge in enumerate(edges))
    return Trend(changes, 0.0, chance, noise)


def mann_kendall(series: NDArray[np.float64]) -> tuple[float, float]:
    """Give the Theil-Sen slope per run, and how likely so much order is without any drift."""
    n = len(series)
    left, right = np.triu_indices(n, 1)
    differences = series[right] - series[left]
    slope = float(np.median(differences / (right - left)))
    score = float(np.sign(differences).sum())
    variance = n * (n - 1) * (2 * n + 5) / 18
    z = (abs(score) - 1) / math.sqrt(variance) if score else 0.0
    return slope, 2 * NormalDist().cdf(-max(z, 0.0))


def _noise(series: NDArray[np.float64]) -> float:
    """Give the noise from second differences, which neither steps nor drift move."""
    bends = series[2:] - 2 * series[1:-1] + series[:-2]
    middle = float(np.median(np.abs(bends))) * 1.4826 / math.sqrt(6)
    return middle if middle > 0 else float(np.abs(bends).mean()) * 1.2533 / math.sqrt(6)


def _partition(series: NDArray[np.float64], penalty: float) -> list[int]:
    n = len(series)
    sums = np.concatenate(([0.0], np.cumsum(series)))
    squares = np.concatenate(([0.0], np.cumsum(series**2)))
    best = np.full(n + 1, np.inf)
    best[0] = -penalty
    last = np.zeros(n + 1, dtype=np.int64)
    for end in range(SHORTEST, n + 1):
        starts = np.arange(end - SHORTEST + 1)
        length = end - starts
        error = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / length
        total = best[starts] + np.maximum(error, 0.0) + penalty
        last[end] = int(np.argmin(total))
        best[end] = total[last[end]]
    edges = []
    end = n
    while end > 0:
        end = int(last[end])
        edges.append(end)
    return sorted(edge for edge in edges if edge > 0)


def _pruned(series: NDArray[np.float64], edges: list[int], least: float) -> list[int]:
    """Drop change points whose levels the spread around them does not tell apart, the weakest first."""
    kept = list(edges)
    while kept:
        freedom = len(series) - len(kept) - 1
        spread = max(math.sqrt(_stepped_error(series, kept) / freedom), least)
        bounds = [0, *kept, len(series)]
        levels = [series[a:b] for a, b in pairwise(bounds)]
        scores = []
        for before, after in pairwise(levels):
            error = spread * math.sqrt(1 / len(before) + 1 / len(after))
            scores.append(abs(float(after.mean() - before.mean())) / error)
        weakest = int(np.argmin(scores))
        if scores[weakest] >= t_quantile(CHANGE_CHANCE * min(1.0, 30 / len(series)), freedom):
            break
        kept.pop(weakest)
    return kept


def _stepped_error(series: NDArray[np.float64], edges: Sequence[int]) -> float:
    bounds = [0, *edges, len(series)]
    levels = [series[first:last] for first, last in pairwise(bounds)]
    return sum(float(((level - level.mean()) ** 2).sum()) for level in levels)


def _line_error(series: NDArray[np.float64], slope: float) -> float:
    rest = series - slope * np.arange(len(series))
    return float(((rest - np.median(rest)) ** 2).sum())
