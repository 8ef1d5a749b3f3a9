"""The ratio of medians: how a policy decides that trusts the steps at hand and assumes nothing of other runs.

The default judgement doubts a single baseline run: on a shared host, runs of one configuration differ by twice what
their steps do, so that +20 % over one baseline run stays inconclusive. With `judge = "medians"` nothing is assumed of
runs that were not recorded. The error of a median comes from a bootstrap over blocks of neighbouring steps:

1. Take warm-up and odd steps out, as everywhere.
2. Draw as many blocks of neighbouring steps, with replacement, as the run is long; take the median; again and again.
   Blocks keep the correlation of neighbours: ten slow steps in a row tell less than ten slow steps here and there.
3. The spread of those medians is the error of the run's median.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.gate.sample import Prior, boil_down, effective_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from usp_prof.gate.sample import Noise, Sample

_DRAWS = 1000

_MEDIAN_VARIANCE = math.pi / 2
"""Variance of the median of normal samples, against that of their mean."""


def steps_alone(noise: Noise) -> Noise:
    """Assume nothing of runs that were not recorded; what several baseline runs show still counts."""
    return replace(noise, prior=Prior(share=0.0, worth=noise.prior.worth, enough=2))


def boil_down_to_median(samples: Sequence[float] | NDArray[np.float64], steps: Sequence[int]) -> Sample:
    """Clean a series of steps; its centre is the median, with the error of a bootstrap over blocks."""
    sample = boil_down(samples, steps)
    removed = np.isin(np.asarray(steps), (*sample.warm_up, *sample.odd))
    kept = np.asarray(samples, dtype=np.float64)[~removed]
    return replace(sample, centre=sample.median, error=median_error(kept) if sample.freedom else sample.error)


def median_error(values: NDArray[np.float64]) -> float:
    """Give the standard error of the median of steps that follow each other."""
    n = len(values)
    effective = effective_number(values)
    length = max(math.ceil(n ** (1 / 3)), math.ceil(n / effective))
    chance = np.random.default_rng(n)  # the same figures give the same verdict
    firsts = chance.integers(0, n, (_DRAWS, -(-n // length)))
    places = (firsts[:, :, None] + np.arange(length)) % n  # blocks go round the end, so that all steps count alike
    drawn = values[places.reshape(_DRAWS, -1)[:, :n]]
    error = float(np.median(drawn, axis=1).std(ddof=1))
    if effective < n:  # few blocks understate the error of correlated steps
        error = max(error, float(values.std(ddof=1)) * math.sqrt(_MEDIAN_VARIANCE / effective))
    return error
