"""Robust statistics: spread and outliers of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from usp_prof.columns.arrays import Flags

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
