"""Robust statistics: spread, outliers and peers of samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from usp_prof.columns.arrays import Flags, Floats

_SIGMA_OF_MAD = 1.4826  # a normal distribution's standard deviation over its median absolute deviation


def mad(values: ArrayLike) -> float:
    """Return the median absolute deviation from the median, not scaled to a standard deviation."""
    sample = np.asarray(values, float)
    return float(np.median(np.abs(sample - np.median(sample)))) if len(sample) else float("nan")


def robust_sigma(values: ArrayLike) -> float:
    """Estimate the standard deviation of a sample, up to half of which may be outliers."""
    return _SIGMA_OF_MAD * mad(values)


_SIGMAS, _FLOOR_FRACTION = 5.0, 0.05


def outliers(values: ArrayLike) -> Flags:
    """Return which values are more than five sigmas and more than 5% away from the median.

    The floor of 5% ignores small ripples in steady samples. Samples of fewer than three values have no outliers.
    """
    sample = np.asarray(values, float)
    if len(sample) < 3:
        return np.zeros(len(sample), bool)
    middle = float(np.median(sample))
    bound = max(_SIGMAS * robust_sigma(sample), _FLOOR_FRACTION * abs(middle))
    return np.asarray(np.abs(sample - middle) > bound)


def medians_of_others(values: NDArray[Any]) -> Floats:
    """Return for each row and column the median of all other rows.

    Example: in 3 4 7 9, the values other than 4 have the median 7, since values after the left-out one move up by one.
    """
    # By column: the rows in ascending order, and the position of each row in it.
    order = np.argsort(values, axis=0, kind="stable")
    place = np.argsort(order, axis=0, kind="stable")
    ascending = np.take_along_axis(values, order, axis=0)
    low, high = (
        np.where(place <= middle, ascending[middle + 1], ascending[middle])
        for middle in ((len(values) - 2) // 2, (len(values) - 1) // 2)
    )
    return np.asarray((low + high) / 2)
