from __future__ import annotations

import numpy as np
import pytest

from usp_prof.gate.change_points import find_trend


def test_slow_drift_is_found() -> None:
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(40):
        trend = find_trend(1.003 ** np.arange(30) * (1 + rng.normal(0, 0.005, 30)))
        found += trend.drift_per_run == pytest.approx(0.003, rel=0.5)
    assert found >= 38


def test_a_step_is_found_where_it_is() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        values = np.concatenate((rng.normal(1, 0.005, 15), rng.normal(1.04, 0.005, 15)))
        (change,) = find_trend(values).changes
        assert abs(change.index - 15) <= 1
        assert change.after - change.before == pytest.approx(0.04, abs=0.01)


def test_noise_has_no_trend() -> None:
    rng = np.random.default_rng(3)
    trends = [find_trend(rng.normal(1, 0.01, 30)) for _ in range(200)]
    assert sum(bool(each.changes) or each.drift_per_run != 0 for each in trends) <= 3


def test_an_exact_step_and_constants() -> None:
    (change,) = find_trend([5.0] * 6 + [7.0] * 6).changes
    assert (change.index, change.before, change.after) == (6, 5.0, 7.0)
    assert find_trend([5.0] * 12).changes == ()


def test_a_strange_run_is_no_change() -> None:
    values = list(np.random.default_rng(4).normal(1, 0.005, 20))
    values[9] = 1.3
    assert find_trend(values).changes == ()


def test_too_few_runs_say_nothing() -> None:
    assert find_trend([1.0, 2.0, 3.0]).changes == ()
