from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from usp_prof.gate.change_points import find_trend

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Floats


def test_slow_drift_is_found() -> None:
    rng = np.random.default_rng(1)
    detected = 0
    for _ in range(40):
        trend = find_trend(1.003 ** np.arange(30) * (1 + rng.normal(0, 0.005, 30)))
        detected += trend.drift_per_run == pytest.approx(0.003, rel=0.5)
    assert detected >= 38


def test_a_jump_is_found_at_its_run() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        values = np.concatenate((rng.normal(1, 0.005, 15), rng.normal(1.04, 0.005, 15)))
        (change,) = find_trend(values).changes
        assert abs(change.index - 15) <= 1
        assert change.after - change.before == pytest.approx(0.04, abs=0.01)


def test_noise_has_no_trend() -> None:
    rng = np.random.default_rng(3)
    trends = [find_trend(rng.normal(1, 0.01, 30)) for _ in range(200)]
    assert sum(bool(trend.changes) or trend.drift_per_run != 0 for trend in trends) <= 3


def test_an_exact_jump_is_found_and_constants_have_none() -> None:
    (change,) = find_trend([5.0] * 6 + [7.0] * 6).changes
    assert (change.index, change.before, change.after) == (6, 5.0, 7.0)
    assert find_trend([5.0] * 12).changes == ()


def test_a_single_outlier_run_is_not_a_change() -> None:
    values = list(np.random.default_rng(4).normal(1, 0.005, 20))
    values[9] = 1.3
    assert find_trend(values).changes == ()


def test_too_few_runs_decide_nothing() -> None:
    assert find_trend([1.0, 2.0, 3.0]).changes == ()


def wandering(rng: np.random.Generator, number: int) -> Floats:
    """AR(0.8) noise: most of each run's deviation comes from the previous run."""
    values = rng.normal(size=number + 100)
    for place in range(1, len(values)):
        values[place] += 0.8 * values[place - 1]
    return values[100:]


UNCHANGED = {
    "white": lambda rng, number: rng.normal(size=number),
    "heavy-tailed": lambda rng, number: rng.standard_t(3, size=number),
    "wandering": wandering,
    "skewed": lambda rng, number: rng.lognormal(size=number) / 2.16,  # its standard deviation
}


@pytest.mark.parametrize("number", [30, 100])
@pytest.mark.parametrize("kind", UNCHANGED)
def test_unchanged_series_of_any_noise_have_no_change(kind: str, number: int) -> None:
    rng = np.random.default_rng(5)
    trends = [find_trend(1e9 * (1 + 0.02 * UNCHANGED[kind](rng, number))) for _ in range(150)]
    assert sum(bool(trend.changes) or trend.drift_per_run != 0 for trend in trends) <= 6  # 2%: more in one of 40 draws


def test_a_five_percent_change_is_found_at_two_percent_noise() -> None:
    rng = np.random.default_rng(6)
    level = 1 + 0.05 * (np.arange(30) >= 15)
    changes_by_series = [find_trend(level + rng.normal(0, 0.02, 30)).changes for _ in range(150)]
    assert sum(bool(changes) and abs(changes[0].index - 15) <= 4 for changes in changes_by_series) >= 0.8 * len(
        changes_by_series
    )  # 0.9 of 500


def test_a_rise_and_a_fall_are_two_changes() -> None:
    rng = np.random.default_rng(7)
    values = rng.normal(1, 0.005, 36) + 0.04 * ((np.arange(36) >= 12) & (np.arange(36) < 24))
    first, second = find_trend(values).changes
    assert (abs(first.index - 12) <= 1, abs(second.index - 24) <= 1) == (True, True)
