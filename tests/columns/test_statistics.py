"""Robust statistics against their definitions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.columns import statistics

floats = st.floats(-1e6, 1e6)


def test_mad_and_sigma_of_a_known_sample() -> None:
    assert statistics.mad([1, 1, 2, 2, 4, 6, 9]) == 1
    assert statistics.robust_sigma([1, 1, 2, 2, 4, 6, 9]) == pytest.approx(1.4826)
    assert math.isnan(statistics.mad([]))


def test_sigma_recovers_a_normal_spread_in_spite_of_outliers() -> None:
    sample = np.random.default_rng(1).normal(100, 3, 4000)
    sample[:800] = 1e6
    assert statistics.robust_sigma(sample) == pytest.approx(3, rel=0.4)


def test_outliers_need_to_be_far_in_both_senses() -> None:
    steps = [100.0, 101, 99, 100, 250, 100]
    assert statistics.outliers(steps).tolist() == [False, False, False, False, True, False]
    assert not statistics.outliers([100.0, 100, 100, 101]).any()  # 1 % is a ripple, however still the rest
    assert not statistics.outliers([1.0, 900]).any()


@given(st.lists(st.tuples(floats, st.integers(0, 5)), min_size=1, max_size=20), st.floats(0, 1))
def test_weighted_quantile_is_that_of_the_repeated_sample(rows: list[tuple[float, int]], fraction: float) -> None:
    repeated = sorted(v for v, w in rows for _ in range(w))
    found = statistics.weighted_quantile([v for v, _ in rows], [w for _, w in rows], fraction)
    if not repeated:
        assert math.isnan(found)
        return
    below = sum(v <= found for v in repeated) / len(repeated)
    smaller = sum(v < found for v in repeated) / len(repeated)
    assert below >= fraction - 1e-9
    assert smaller <= fraction + 1e-9
