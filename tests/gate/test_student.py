from __future__ import annotations

import pytest

from usp_prof.gate.sample import t_quantile


@pytest.mark.parametrize(
    ("tail", "freedom", "expected"),
    [
        (0.05, 1, 6.313752),
        (0.05, 1.5, 6.313752),  # between 1 and 2, the safer value
        (0.025, 2, 4.302653),
        (0.005, 3, 5.840909),
        (0.025, 4, 2.776445),
        (0.01, 10, 2.763769),
        (0.005, 38, 2.711558),
        (0.0005, 5, 6.868827),
        (0.01, 1e9, 2.326348),
    ],
)
def test_quantiles_agree_with_the_printed_table(tail: float, freedom: float, expected: float) -> None:
    assert t_quantile(tail, freedom) == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("tail", [0.0, 0.5, 0.9])
def test_invalid_tails_are_refused(tail: float) -> None:
    with pytest.raises(ValueError, match="tail"):
        t_quantile(tail, 5)
