"""Conversion of columns from NumPy to Arrow and back: values are unchanged, and pandas is not imported."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.columns.arrow import array_of, coded, index_of, numbers_of, texts_of


@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]))))
def test_texts_reach_arrow_unchanged(texts: list[str | None]) -> None:
    made = texts_of(texts)
    assert made.to_pylist() == texts
    assert made.null_count == texts.count(None)
    made.validate(full=True)


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.float64, np.bool_])
@pytest.mark.parametrize("rows", [0, 1, 9, 70])
def test_arrays_keep_their_type(kind: type[np.generic], rows: int) -> None:
    values = (np.arange(3 * rows) % 5).astype(kind)[::3]
    made = array_of(values)
    made.validate(full=True)
    assert made.type == pa.array(values).type
    assert made.to_pylist() == values.tolist()
    np.testing.assert_array_equal(numbers_of(made), values)
    assert numbers_of(made).dtype == values.dtype


def test_coded_texts_reach_arrow_unchanged() -> None:
    made = coded(np.array([1, 0, 1]), ["a", "b"])
    assert made.to_pylist() == ["b", "a", "b"]
    assert made.type == pa.dictionary(pa.int32(), pa.string())
    assert coded(np.zeros(0, np.int64), []).to_pylist() == []


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_numbers_reach_arrow_unchanged(numbers: list[int]) -> None:
    assert index_of(np.array(numbers, np.int64)[::-1]).to_pylist() == numbers[::-1]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.integers(0, 3), st.sampled_from([pa.int64(), pa.float64()]))
def test_numbers_reach_numpy_unchanged(numbers: list[int], skipped: int, kind: pa.DataType) -> None:
    unsliced = pa.chunked_array([pa.array(numbers, pa.int64()).cast(kind, safe=False)])
    for column in (unsliced.slice(skipped), pa.chunked_array([*unsliced.chunks, *unsliced.chunks])):
        array = numbers_of(column)
        np.testing.assert_array_equal(array, column.to_numpy())


def test_arrow_memory_is_read_only() -> None:
    assert not numbers_of(pa.array([1, 2], pa.int64())).flags.writeable


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 11), st.integers(0, 11))
def test_flags_reach_numpy_unchanged(flags: list[bool], skipped: int, parted: int) -> None:
    unsliced = pa.array(flags, pa.bool_())
    column = pa.chunked_array([unsliced.slice(0, parted), unsliced.slice(parted)], pa.bool_()).slice(skipped)
    assert numbers_of(column).tolist() == flags[skipped:]
    assert numbers_of(unsliced.slice(skipped)).tolist() == flags[skipped:]


def test_flags_and_missing_numbers_reach_numpy() -> None:
    assert numbers_of(pa.array([True, False, None])).tolist() == [True, False, None]
    assert np.isnan(numbers_of(pa.array([1.0, None]))[1])
