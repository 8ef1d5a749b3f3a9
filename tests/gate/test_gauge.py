from __future__ import annotations

import math

import pytest
from gate_runs import series
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.gate.judgment import Gauge, Limit, Scale, gauge_for
from usp_prof.model.metric import Better, Unit

POSITIVE = st.floats(1e-6, 1e12)


@given(POSITIVE, POSITIVE)
def test_changes_match_hand_computed_values(before: float, after: float) -> None:
    for gauge in (Gauge(log=True), Gauge(log=False, unit=before)):
        old, new = gauge.into([before]), gauge.into([after])
        assert gauge.change(float(new[0] - old[0])) == pytest.approx(after / before - 1, rel=1e-6, abs=1e-6)
        assert gauge.value(float(new[0])) == pytest.approx(after)


@given(st.floats(0.001, 0.9))
def test_a_limit_corresponds_to_its_change(amount: float) -> None:
    log = Gauge(log=True)
    limit = Limit(amount, Scale.RELATIVE)
    assert log.change(log.limit(limit, Better.LOWER)) == pytest.approx(amount)
    assert log.change(-log.limit(limit, Better.HIGHER)) == pytest.approx(-amount)
    assert Gauge(log=False).limit(limit, Better.LOWER) == amount


def test_a_loss_above_100_percent_has_no_limit() -> None:
    log = Gauge(log=True)
    assert log.limit(Limit(1.5, Scale.RELATIVE), Better.HIGHER) == math.inf
    assert log.limit(Limit(math.inf, Scale.RELATIVE), Better.LOWER) == math.inf
    assert log.change(1e6) == math.inf


def test_logarithms_are_used_for_relative_changes_of_positive_values() -> None:
    some, zero, count = series("a", [1, 2]), series("a", [0, 2]), series("a", [3], unit=Unit.COUNT)
    assert gauge_for([some], some, Scale.RELATIVE) == Gauge(log=True)
    assert gauge_for([some], some, Scale.ABSOLUTE) == Gauge(log=False)
    assert gauge_for([some], zero, Scale.RELATIVE) == Gauge(log=False, unit=1.5)
    assert gauge_for([count], count, Scale.RELATIVE) == Gauge(log=False, unit=3.0)
    assert gauge_for([series("a", [0, 0])], some, Scale.RELATIVE) is None
