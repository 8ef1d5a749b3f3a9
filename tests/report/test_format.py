"""Number formatting."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.model.metric import Unit
from usp_prof.report.document import data_table, formatted_columns
from usp_prof.report.format import MICRO, UNKNOWN, column, column_texts, quantity, share, signed


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, Unit.NS, "0 ns"),
        (0.0, Unit.NS, "0 ns"),
        (0.0, Unit.FRACTION, "0.0%"),
        (999, Unit.NS, "999 ns"),
        (1_000, Unit.NS, f"1.00 {MICRO}s"),
        (999_600, Unit.NS, "1.00 ms"),
        (431_234_567, Unit.NS, "431 ms"),
        (61_500_000_000, Unit.NS, "61.5 s"),
        (-12_340, Unit.NS, f"-12.3 {MICRO}s"),
        (0.1234, Unit.FRACTION, "12.3%"),
        (-0.00001, Unit.FRACTION, "0.0%"),
        (1, Unit.FRACTION, "100.0%"),
        (1536, Unit.BYTES, "1.50 KiB"),
        (80 * 2**30, Unit.BYTES, "80.0 GiB"),
        (312e12, Unit.FLOP_PER_SECOND, "312 TFLOP/s"),
        (20.97e9, Unit.BYTES_PER_SECOND, "21.0 GB/s"),
        (12_345.6, Unit.PER_SECOND, "12.3 k/s"),
        (12_345, Unit.COUNT, "12,345"),
        (1.234, Unit.RATIO, "1.23x"),
        (3.5e15, Unit.FLOP, "3.50 PFLOP"),
        (None, Unit.NS, UNKNOWN),
        (math.nan, Unit.NS, UNKNOWN),
        (math.inf, Unit.RATIO, UNKNOWN),
    ],
)
def test_a_value_has_three_digits_and_its_unit(value: float | None, unit: Unit, text: str) -> None:
    assert quantity(value, unit) == text


def test_a_difference_has_its_sign() -> None:
    assert signed(1_500_000, Unit.NS) == "+1.50 ms"
    assert signed(-1_500_000, Unit.NS) == "-1.50 ms"
    assert signed(0, Unit.NS) == "0 ns"
    assert signed(None, Unit.NS) == UNKNOWN


def test_a_column_has_one_scale() -> None:
    assert column([431_234_567, 12_345, None], Unit.NS) == ("ms", ["431.2", "0.0", UNKNOWN])
    assert column([7_123_456, 12_345], Unit.NS) == ("ms", ["7.123", "0.012"])
    assert column([3, 12], Unit.COUNT) == ("", ["3", "12"])
    assert column([0.5, 0.25], Unit.FRACTION) == ("%", ["50.0", "25.0"])


def test_values_that_round_to_zero_have_no_minus() -> None:
    assert column([-0.00001, 0.5], Unit.FRACTION) == ("%", ["0.0", "50.0"])
    assert column([-12_345, 431_234_567], Unit.NS) == ("ms", ["0.0", "431.2"])
    assert column_texts([-0.0, 2.0], None) == ("", ["0", "2"])


def test_a_column_without_values_has_no_unit() -> None:
    assert column([None, math.nan], Unit.NS) == ("", [UNKNOWN, UNKNOWN])
    assert column([0, 0.0], Unit.NS) == ("", ["0", "0"])
    assert column([], Unit.NS) == ("", [])


def test_shared_columns_of_a_table_have_one_scale() -> None:
    columns = {"total": Unit.NS, "part": Unit.NS, "other": Unit.NS}
    table = data_table("", columns, [(5_053_000, 43_530, 43_530)], shared=("total", "part"))
    formatted = formatted_columns(table)
    assert [column.head for column in formatted] == ["total ms", "part ms", f"other {MICRO}s"]
    assert [column.texts for column in formatted] == [["5.053"], ["0.044"], ["43.53"]]


def test_a_share_of_zero_is_unknown() -> None:
    assert share(1, 4) == "25.0%"
    assert share(1, 0) == UNKNOWN
    assert share(None, 4) == UNKNOWN


@given(st.floats(allow_nan=False, allow_infinity=False, width=32), st.sampled_from(list(Unit)))
def test_formatted_values_are_close_to_the_exact_ones(value: float, unit: Unit) -> None:
    text = quantity(value, unit).replace(",", "")
    digits = re.match(r"[-+\d.]+", text)[0]
    number, suffix = float(digits), text.removeprefix(digits).strip()
    again = column([value], unit)
    assert (again[0] or suffix) == suffix
    # The written number times its scale is exact to half of the last digit shown, or the scale is the smallest.
    if unit is Unit.RATIO:
        assert abs(number - value) <= max(0.5, abs(value) * 0.005)


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=6))
def test_a_column_keeps_the_order_of_its_values(values: list[int]) -> None:
    _, texts = column(sorted(values), Unit.NS)
    numbers = [float(text.replace(",", "")) for text in texts]
    assert numbers == sorted(numbers)
