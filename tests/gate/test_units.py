from __future__ import annotations

import math

import pytest

from usp_prof.gate.judgement import Judgement, Scale, Verdict
from usp_prof.model.metric import Better, Unit
from usp_prof.report.answers.wording import figure, interval, signed, signed_duration


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (math.nan, Unit.NS, "-"),
        (12, Unit.NS, "12 ns"),
        (1234567, Unit.NS, "1.235 ms"),
        (0.1234, Unit.FRACTION, "12.34%"),
        (512, Unit.BYTES, "512 B"),
        (3 * 2**30, Unit.BYTES, "3.00 GiB"),
        (2.5e9, Unit.BYTES_PER_SECOND, "2.5 GB/s"),
        (4.2e14, Unit.FLOP_PER_SECOND, "420 TFLOP/s"),
        (12.0, Unit.COUNT, "12"),
        (12.5, Unit.COUNT, "12.5"),
        (1.25, Unit.RATIO, "1.25"),
        (800.0, Unit.PER_SECOND, "800 /s"),
    ],
)
def test_values_have_their_units(value: float, unit: Unit, text: str) -> None:
    assert figure(value, unit) == text


def test_changes_have_their_signs_and_units() -> None:
    bytes_ = Judgement("m", "m", Unit.BYTES, Better.LOWER, Verdict.PASS, scale=Scale.ABSOLUTE)
    assert signed(-2048, bytes_) == "-2.00 KiB"
    assert interval(bytes_) == "-"
    assert signed(math.nan, bytes_) == "-"
    assert signed_duration(-1500) == "-1.5 μs"


@pytest.mark.parametrize(
    ("scale", "unit", "low", "high", "text"),
    [
        (Scale.RELATIVE, Unit.NS, -0.02, 0.03, "-2.00 .. +3.00%"),
        (Scale.RELATIVE, Unit.NS, -0.999, 24e9, "too wide"),
        (Scale.ABSOLUTE, Unit.FRACTION, -1.7, 1.2, "-100 .. +100 pp"),
        (Scale.ABSOLUTE, Unit.FRACTION, -0.00001, 0.00001, "+0.00 .. +0.00 pp"),
        (Scale.ABSOLUTE, Unit.BYTES, -2048, 2048, "-2.00 KiB .. +2.00 KiB"),
    ],
)
def test_intervals_are_limited_to_a_readable_range(
    scale: Scale, unit: Unit, low: float, high: float, text: str
) -> None:
    judgement = Judgement("m", "m", unit, Better.LOWER, Verdict.INCONCLUSIVE, scale=scale, low=low, high=high)
    assert interval(judgement) == text
