"""Robust statistics: centre, spread, outliers and confidence of samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

_SIGMA_OF_MAD = 1.4826  # a normal distribution's standard deviation over its median absolute deviation
_PAIRS_AT_MOST = 2_000_000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the bounds of its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Line:
    """A fitted straight line."""

    slope: float
    intercept: float


def mad(values: ArrayLike) -> float:
    """Give the median absolute deviation from the median, as written (not scaled to a standard deviation)."""
    sample = np.asarray(values, float)
    return float(np.median(np.abs(sample - np.median(sample)))) if len(sample) else float("nan")


def robust_sigma(values: ArrayLike) -> float:
    """Estimate the standard deviation so that up to half of the sample may be outliers."""
    return _SIGMA_OF_MAD * mad(values)


def outliers(values: ArrayLike, *, sigmas: float = 5.0, floor_fraction: float = 0.05) -> NDArray[np.bool_]:
    """Say which values stand out: more than `sigmas` and more than a fraction of the median away from it.

    The floor keeps a sample that hardly varies from calling every small ripple odd. Fewer than three values have no
    typical one, so none stands out.
    """
    sample = np.asarray(values, float)
    if len(sample) < 3:
        return np.zeros(len(sample), bool)
    middle = float(np.median(sample))
    bound = max(sigmas * robust_sigma(sample), floor_fraction * abs(middle))
    return np.asarray(np.abs(sample - middle) > bound)


def weighted_quantile(values: ArrayLike, weights: ArrayLike, fraction: float) -> float:
    """Give the smallest value at or below which at least `fraction` of the weight lies."""
    sample, weight = np.asarray(values, float), np.asarray(weights, float)
    if not len(sample) or weight.sum() <= 0:
        return float("nan")
    order = np.argsort(sample, kind="stable")
    reached = np.cumsum(weight[order])
    index = int(np.searchsorted(reached, fraction * reached[-1] * (1 - 1e-12), side="left"))
    return float(sample[order][min(index, len(sample) - 1)])


def weighted_median(values: ArrayLike, weights: ArrayLike) -> float:
    """Give the median of weighted values."""
    return weighted_quantile(values, weights, 0.5)


def theil_sen(x: ArrayLike, y: ArrayLike) -> Line:
    """Fit a line by the median of all pairs' slopes: up to 29 % of the points may be anywhere.

    A large sample is thinned evenly first, so that the number of pairs stays bounded.
    """
    across, up = np.asarray(x, float), np.asarray(y, float)
    most = int(np.sqrt(2 * _PAIRS_AT_MOST))
    if len(across) > most:
        kept = np.linspace(0, len(across) - 1, most).astype(np.int64)
        across, up = across[kept], up[kept]
    left, right = np.triu_indices(len(across), 1)
    run = across[right] - across[left]
    sloped = run != 0
    slope = float(np.median((up[right] - up[left])[sloped] / run[sloped])) if sloped.any() else 0.0
    return Line(slope, float(np.median(up - slope * across)) if len(up) else float("nan"))


def bootstrap(
    values: ArrayLike,
    statistic: Callable[[NDArray[np.float64]], NDArray[Any]] | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Bound a statistic (the median unless told) by resampling; the same seed gives the same bounds.

    `statistic` maps samples in rows to one figure a row.
    """
    sample = np.asarray(values, float)
    measure = statistic or _row_medians
    if not len(sample):
        return Interval(float("nan"), float("nan"), float("nan"))
    drawn = np.random.default_rng(seed).integers(0, len(sample), (resamples, len(sample)))
    spread = measure(sample[drawn])
    tail = (1 - confidence) / 2
    low, high = np.quantile(spread, [tail, 1 - tail])
    return Interval(float(measure(sample[None, :])[0]), float(low), float(high))


def _row_medians(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.median(rows, axis=1))
