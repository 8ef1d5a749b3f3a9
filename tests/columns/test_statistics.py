"""Robust statistics, compared with their definitions."""

import math

import numpy as np
import pytest

from usp_prof.columns import statistics


def test_mad_and_sigma_match_a_known_sample() -> None:
    assert statistics.mad([1, 1, 2, 2, 4, 6, 9]) == 1
    assert statistics.robust_sigma([1, 1, 2, 2, 4, 6, 9]) == pytest.approx(1.4826)
    assert math.isnan(statistics.mad([]))


def test_sigma_recovers_a_normal_spread_in_spite_of_outliers() -> None:
    sample = np.random.default_rng(1).normal(100, 3, 4000)
    sample[:800] = 1e6
    assert statistics.robust_sigma(sample) == pytest.approx(3, rel=0.4)


def test_outliers_differ_by_much_in_noise_and_in_percent() -> None:
    steps = [100.0, 101, 99, 100, 250, 100]
    assert statistics.outliers(steps).tolist() == [False, False, False, False, True, False]
    assert not statistics.outliers([100.0, 100, 100, 101]).any()  # 1% is small, even if all other values are equal
    assert not statistics.outliers([1.0, 900]).any()
