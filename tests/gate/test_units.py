from __future__ import annotations

import math

import pytest

from usp_prof.gate.facts import Difference, FactKind
from usp_prof.gate.judgment import Judgment, Scale, Verdict
from usp_prof.model.metric import Better, Unit
from usp_prof.report.answers.wording import condition_changes, interval, signed, signed_time


def test_changes_have_their_signs_and_units() -> None:
    bytes_ = Judgment("m", "m", Unit.BYTES, Better.LOWER, Verdict.PASS, scale=Scale.ABSOLUTE)
    assert signed(-2048, bytes_) == "-2.00 KiB"
    assert interval(bytes_) == "-"
    assert signed(math.nan, bytes_) == "-"
    assert signed_time(-1500) == "-1.50 μs"


@pytest.mark.parametrize(
    ("scale", "unit", "low", "high", "text"),
    [
        (Scale.RELATIVE, Unit.NS, -0.02, 0.03, "-2.00 .. +3.00%"),
        (Scale.RELATIVE, Unit.NS, -0.999, 24e9, "too wide"),
        (Scale.RELATIVE, Unit.NS, 0.5, 24.0, "+50.0 .. > +1000%"),
        (Scale.RELATIVE, Unit.NS, 50.98, 120.0, "+5098 .. +12000%"),
        (Scale.ABSOLUTE, Unit.FRACTION, -1.7, 1.2, "-100 .. +100 pp"),
        (Scale.ABSOLUTE, Unit.FRACTION, -0.00001, 0.00001, "+0.00 .. +0.00 pp"),
        (Scale.ABSOLUTE, Unit.BYTES, -2048, 2048, "-2.00 KiB .. +2.00 KiB"),
    ],
)
def test_intervals_are_limited_to_a_readable_range(
    scale: Scale, unit: Unit, low: float, high: float, text: str
) -> None:
    judgment = Judgment("m", "m", unit, Better.LOWER, Verdict.INCONCLUSIVE, scale=scale, low=low, high=high)
    assert interval(judgment) == text


def test_an_interval_contains_its_change() -> None:
    """A change of +1255% had the interval +597 .. > +1000%."""
    judgment = Judgment(
        "m", "m", Unit.NS, Better.LOWER, Verdict.REGRESSED, scale=Scale.RELATIVE, change=12.55, low=5.97, high=25.0
    )
    assert interval(judgment) == "+597 .. +2500%"


def test_a_changed_model_is_split_into_the_parts_that_differ() -> None:
    before, after = '{"layers": 2, "heads": 4, "active_parameters": 10}', '{"layers": 2, "heads": 8, "experts": 4}'
    changes = condition_changes([Difference(FactKind.WORK, "model", before, after)])
    assert [change[1:] for change in changes] == [
        ("model heads", "4", "8"), ("model active parameters", "10", ""), ("model experts", "", "4"),
    ]  # fmt: skip


def test_other_conditions_are_one_change_each_and_peaks_are_rates() -> None:
    schedule = Difference(FactKind.LAYOUT, "schedule", "1f1b", "")
    peak = Difference(FactKind.HARDWARE, "measured peak", "1.96279e+11", "")
    assert [change[1:] for change in condition_changes([schedule, peak])] == [
        ("schedule", "1f1b", ""), ("measured peak", "196 GFLOP/s", ""),
    ]  # fmt: skip
