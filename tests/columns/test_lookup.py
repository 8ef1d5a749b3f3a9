"""Look-ups: values by code, rows by key, and what stands for none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.columns.rows import lookup, rows_of

KEYS = st.lists(st.one_of(st.integers(-3, 6), st.integers(-(2**60), 2**60)))


def test_values_by_code() -> None:
    # -1, and the code behind the last value, are those of rows without a value.
    codes = np.array([1, 0, -1, 2])
    assert lookup(["a", "bc"], codes, missing="").tolist() == ["bc", "a", "", ""]
    assert lookup([True, False], codes, missing=False).dtype == np.bool_
    assert lookup([5, 7], codes, missing=-1).tolist() == [7, 5, -1, -1]
    assert lookup(np.array([0.5, 2.0]), codes, missing=0).tolist() == [2.0, 0.5, 0.0, 0.0]


@pytest.mark.parametrize(("missing", "dtype"), [(False, np.bool_), (-1, np.int64), (0.0, np.float64), ("", np.object_)])
def test_without_values_all_rows_are_missing(missing: str | float, dtype: type) -> None:
    found = lookup([], np.array([0, -1]), missing=missing)
    assert (found.dtype, found.tolist()) == (dtype, [missing, missing])


def test_a_key_of_none_has_no_row() -> None:
    assert rows_of(np.array([7, -1, 3, 7]), np.array([7, 5, -1, 3])).tolist() == [0, -1, -1, 2]


@given(KEYS, KEYS)
def test_rows_are_the_first_that_have_the_key(keys: list[int], wanted: list[int]) -> None:
    found = rows_of(np.array(keys, np.int64), np.array(wanted, np.int64)).tolist()
    assert found == [keys.index(key) if key >= 0 and key in keys else -1 for key in wanted]
