from __future__ import annotations

from math import inf, nan

import pytest
from declared import declared_metrics

from usp_prof.analyses.result import impossible
from usp_prof.model.health import Severity
from usp_prof.model.metric import FROM_ONE, SIGNED, Better, Metric, Range, Unit, Value, sound

SHARE = Metric("a_fraction", Unit.FRACTION, Better.LOWER, "A", "A.", ("rank",), inputs="two totals")
TIME = Metric("a_time", Unit.NS, Better.LOWER, "A", "A.", ("rank",))
OFFSET = Metric("an_offset", Unit.NS, Better.NEITHER, "A", "A.", within=SIGNED)
IMBALANCE = Metric("an_imbalance", Unit.RATIO, Better.LOWER, "A", "A.", within=FROM_ONE)


@pytest.mark.parametrize(
    ("metric", "value", "can_be"),
    [
        (SHARE, 0.0, True), (SHARE, 1.0, True), (SHARE, 1 + 1e-12, True), (SHARE, 1.039, False),
        (SHARE, -4.5e15, False),
        (SHARE, 424.0, False), (SHARE, inf, False), (TIME, 5, True), (TIME, -1, False), (TIME, inf, False),
        (OFFSET, -5, True), (OFFSET, -inf, False), (IMBALANCE, 1.0, True), (IMBALANCE, 0.9, False),
    ],
)  # fmt: skip
def test_a_value_outside_its_metrics_range_is_refused(metric: Metric, value: float, can_be: bool) -> None:
    values = sound([Value(metric, value)])
    assert (len(values), len(values.refused)) == (can_be, 1 - can_be)
    assert (metric.if_possible(value) == value) == can_be


def test_unknown_values_are_neither_shown_nor_impossible() -> None:
    values = sound([Value(SHARE, nan)])
    assert (len(values), values.refused) == (0, ())


def test_health_states_which_input_is_impossible() -> None:
    values = sound([Value(SHARE, 0.5), Value(SHARE, -4.5e15, {"rank": 3}), Value(TIME, -1), Value(TIME, -9)])
    share, time = impossible(values)
    assert (share.code, share.severity, share.rank, share.count) == ("impossible_figure", Severity.ERROR, 3, 1)
    assert share.detail == (
        "a_fraction of -4.5e+15 (rank 3) is outside 0 to 1 and not shown; impossible input: two totals"
    )
    assert (time.rank, time.count) == (-1, 2)


def test_every_declared_metric_has_a_range() -> None:
    for metric in declared_metrics().values():
        assert isinstance(metric.range, Range)
        assert metric.unit is not Unit.FRACTION or (metric.range.low, metric.range.high) == (0.0, 1.0), metric.id
