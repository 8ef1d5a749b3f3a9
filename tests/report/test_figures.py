"""Values of a metric by rank, step and axis."""

from __future__ import annotations

import math

from usp_prof.model.metric import Better, Metric, Unit, Value
from usp_prof.report.figures import Figures

TIME = Metric("time", Unit.NS, Better.LOWER, "Time", "Time.", ("rank", "step", "axis"))
VALUES = [
    Value(TIME, 10),
    Value(TIME, 11, {"rank": 10}),
    Value(TIME, 9, {"rank": 2}),
    Value(TIME, 7, {"rank": 2, "step": 0}),
    Value(TIME, 8, {"step": 1, "rank": 2}),
    Value(TIME, 3, {"rank": 2, "axis": "tp"}),
    Value(TIME, 4, {"rank": 2, "axis": "dp"}),
    Value(TIME, math.nan, {"axis": "dp"}),
]


def test_the_overall_value_has_no_dimensions() -> None:
    assert Figures(VALUES).overall("time") == 10
    assert Figures(VALUES).overall("other") is None


def test_a_value_is_found_by_its_dimensions_in_any_order() -> None:
    figures = Figures(VALUES)
    assert figures.at("time", step=0, rank=2) == figures.at("time", rank=2, step=0) == 7
    assert figures.at("time", rank=3) is None


def test_a_dimension_is_listed_in_numeric_order_with_others_fixed() -> None:
    figures = Figures(VALUES)
    assert list(figures.along("time", "rank").items()) == [(2, 9), (10, 11)]
    assert figures.along("time", "axis", rank=2) == {"dp": 4, "tp": 3}
    assert figures.along("time", "axis", rank=10) == {}


def test_two_dimensions_are_returned_in_the_requested_order() -> None:
    figures = Figures(VALUES)
    assert figures.grid("time", "rank", "step") == {(2, 0): 7, (2, 1): 8}
    assert figures.grid("time", "step", "rank") == {(0, 2): 7, (1, 2): 8}


def test_values_that_are_not_finite_are_unknown() -> None:
    figures = Figures(VALUES)
    assert figures.along("time", "axis") == {}
    assert figures.has("time")
    assert not figures.has("other")
