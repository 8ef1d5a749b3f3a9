from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.gate.sample import boil_down, effective_number, pseudo_median

VALUES = st.lists(st.floats(1, 1e6), min_size=1, max_size=40)


def test_warm_up_steps_are_excluded() -> None:
    noise = np.random.default_rng(3).normal(0, 1, 20)
    sample = boil_down(np.concatenate(([400, 180, 130], 100 + noise)), range(10, 33))
    assert sample.warm_up == (10, 11, 12)
    assert sample.steps == 20
    assert sample.center == pytest.approx(100, abs=1)


def test_one_outlier_step_does_not_move_the_center() -> None:
    calm = 100 + np.random.default_rng(4).normal(0, 1, 20)
    odd = calm.copy()
    odd[11] *= 1.3
    sample = boil_down(odd, range(20))
    assert sample.odd == (11,)
    assert sample.center == pytest.approx(boil_down(calm, range(20)).center, abs=0.3)


def test_a_recurring_pattern_is_not_an_outlier() -> None:
    every_third = [100.0, 101.0, 140.0] * 7
    assert boil_down(every_third, range(21)).odd == ()


def test_one_different_step_among_equal_ones_is_an_outlier() -> None:
    sample = boil_down([5.0] * 9 + [6.0], range(10))
    assert (sample.center, sample.spread, sample.odd) == (5.0, 0.0, (9,))


def test_one_step_has_no_error() -> None:
    sample = boil_down([5.0], [3])
    assert math.isinf(sample.error)
    assert sample.freedom == 0


def test_an_empty_series_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        boil_down([], [])


@given(VALUES)
def test_the_center_is_between_the_extremes(values: list[float]) -> None:
    sample = boil_down(values, range(len(values)))
    assert min(values) - 1e-9 * max(values) <= sample.center <= max(values) * (1 + 1e-9)
    assert sample.steps + len(sample.warm_up) + len(sample.odd) == len(values)


@given(VALUES, st.floats(0.5, 100))
def test_the_center_scales_with_the_unit(values: list[float], factor: float) -> None:
    array = np.array(values)
    assert pseudo_median(array * factor) == pytest.approx(pseudo_median(array) * factor)


def test_long_series_fall_back_to_the_median() -> None:
    assert pseudo_median(np.arange(3001.0)) == 1500


def test_correlated_steps_count_less() -> None:
    rng = np.random.default_rng(5)
    shocks = rng.normal(0, 1, 400)
    series = np.zeros(400)
    for i in range(1, 400):
        series[i] = 0.8 * series[i - 1] + shocks[i]
    assert effective_number(series) == pytest.approx(400 * 0.2 / 1.8, rel=0.5)
    assert effective_number(shocks) == 400
    assert effective_number(np.ones(50)) == 50


def test_the_error_is_the_spread_of_centers() -> None:
    rng = np.random.default_rng(6)
    samples = [boil_down(rng.normal(100, 1, 20), range(20)) for _ in range(400)]
    seen = np.std([sample.center for sample in samples])
    assert np.mean([sample.error for sample in samples]) == pytest.approx(seen, rel=0.15)
