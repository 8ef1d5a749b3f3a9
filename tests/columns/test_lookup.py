"""Look-ups: values by code or text, rows by key or time, and the value for missing keys."""

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.columns.rows import by_appearance, last_by, lookup, range_at, rows_of, stacked_codes
from usp_prof.columns.table import Columns

KEYS = st.lists(st.one_of(st.integers(-3, 6), st.integers(-(2**60), 2**60)))


def test_values_are_looked_up_by_code() -> None:
    # -1, and the code behind the last value, are those of rows without a value.
    codes = np.array([1, 0, -1, 2])
    assert lookup(["a", "bc"], codes, missing="").tolist() == ["bc", "a", "", ""]
    assert lookup([True, False], codes, missing=False).dtype == np.bool_
    assert lookup([5, 7], codes, missing=-1).tolist() == [7, 5, -1, -1]
    assert lookup(np.array([0.5, 2.0]), codes, missing=0).tolist() == [2.0, 0.5, 0.0, 0.0]


@pytest.mark.parametrize(("missing", "dtype"), [(False, np.bool_), (-1, np.int64), (0.0, np.float64), ("", np.object_)])
def test_without_values_all_rows_are_missing(missing: str | float, dtype: type) -> None:
    values = lookup([], np.array([0, -1]), missing=missing)
    assert (values.dtype, values.tolist()) == (dtype, [missing, missing])


def test_a_key_without_a_row_is_missing() -> None:
    assert rows_of(np.array([7, -1, 3, 7]), np.array([7, 5, -1, 3])).tolist() == [0, -1, -1, 2]


@given(KEYS, KEYS)
def test_lookup_returns_the_first_row_of_a_key(keys: list[int], wanted: list[int]) -> None:
    rows = rows_of(np.array(keys, np.int64), np.array(wanted, np.int64)).tolist()
    assert rows == [keys.index(key) if key >= 0 and key in keys else -1 for key in wanted]


def test_a_text_is_evaluated_once() -> None:
    texts: list[str] = []
    launches = Columns(pa.table({"name": ["cudaMalloc", "cudaFree", "cudaMalloc"]}))
    assert launches.satisfies("name", re.compile("Malloc").search).tolist() == [True, False, True]
    assert launches.by_text("name", lambda name: texts.append(name) or len(name), missing=-1).tolist() == [10, 8, 10]
    assert texts == ["cudaMalloc", "cudaFree"]


def test_without_rows_no_text_is_evaluated() -> None:
    nothing = Columns(pa.table({"name": pa.array([], pa.string())}))
    assert nothing.satisfies("name", bool).dtype == np.bool_
    assert nothing.by_text("name", len, missing=-1).tolist() == []


def test_last_by_returns_the_last_row_that_ended_by_a_time() -> None:
    end = np.array([30, 10, 20, 15])
    rows = np.array([0, 1, 2])  # row 3 is not asked for
    assert last_by(end, rows, by=np.array([9, 10, 19, 99])).tolist() == [-1, 1, 1, 0]
    assert last_by(end, rows[:0], by=np.array([99])).tolist() == [-1]


def test_the_later_of_rows_that_end_together_is_last() -> None:
    assert last_by(np.array([5, 5]), np.array([0, 1]), by=np.array([5])).tolist() == [1]


def test_ranges_include_their_start_and_exclude_their_end() -> None:
    begin, end = np.array([0, 10]), np.array([5, 20])
    assert range_at(begin, end, np.array([-1, 0, 5, 10, 19, 20])).tolist() == [-1, 0, -1, 1, 1, -1]
    assert range_at(begin[:0], end[:0], np.array([3])).tolist() == [-1]


def test_codes_of_several_columns_share_one_dictionary() -> None:
    columns = [(np.array([1, 0, -1]), ["a", "b"]), (np.array([0]), ["b"]), (np.zeros(0, np.int64), [])]
    codes, texts = stacked_codes(columns)
    assert (codes.tolist(), texts) == ([1, 0, -1, 1], ["a", "b"])


def test_texts_are_numbered_as_they_appear() -> None:
    codes, texts = by_appearance(np.array([2, 0, 2]), ["a", "b", "c"])
    assert (codes.tolist(), texts) == ([0, 1, 0], ["c", "a"])
