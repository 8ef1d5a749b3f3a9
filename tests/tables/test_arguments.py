"""Fields of event arguments, in any notation and in the order of the requested rows."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.model.schema import Kind
from usp_prof.tables.events import arguments
from usp_prof.tables.events.arguments import Field, read_arguments

FIELDS = (Field("number", "n"), Field("text", "t", Kind.TEXT))


def read(texts: list[str], *fields: Field) -> dict[str, list[Any]]:
    columns = read_arguments(pa.chunked_array([texts], pa.string()), np.arange(len(texts)), fields)
    return {
        name: column.to_pylist() if isinstance(column, pa.Array) else column.tolist()
        for name, column in columns.items()
    }


@pytest.mark.parametrize("batch", [1, 3, 1 << 15])
@given(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=4), st.data())
def test_arguments_are_read_from_any_chunks(batch: int, chunks: list[list[int]], data: st.DataObject) -> None:
    texts = [pa.array([f'{{"n": {n}, "t": "x{n}"}}' for n in chunk], pa.string()) for chunk in chunks]
    numbers = [n for chunk in chunks for n in chunk]
    rows = data.draw(st.lists(st.integers(0, len(numbers) - 1))) if numbers else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arguments, "_ROWS", batch)
        patch.setattr(arguments, "_SPAN", 40 * batch)
        columns = read_arguments(pa.chunked_array(texts, pa.string()), np.array(rows, np.int64), FIELDS)
    assert columns["number"].tolist() == [numbers[row] for row in rows]
    assert columns["text"].to_pylist() == [f"x{numbers[row]}" for row in rows]


def test_numbers_are_read_in_any_notation() -> None:
    texts = ['{"n": 7}', '{"n": "7"}', '{"n": 7.5}', '{"n": "--7"}', '{"n": true}', '{"n": null}', '{"n": [7]}', "{}"]
    assert read(texts, Field("n", "n"))["n"] == [7, 7, 7, -1, -1, -1, -1, -1]
    real = read(
        ['{"r": 1.5}', '{"r": 2}', '{"r": "2.5"}', '{"r": "x"}', '{"r": true}', "{}"], Field("r", "r", Kind.FLOAT)
    )
    assert real["r"][:3] == [1.5, 2.0, 2.5]
    assert all(map(math.isnan, real["r"][3:]))


def test_texts_are_as_written_and_lists_without_spaces() -> None:
    texts = [
        '{"t": "a\\u00e4"}',
        '{"t": [1, "b" ]}',
        '{"t":[1,"b"]}',
        '{"t": 5}',
        '{"t": null}',
        '{"t": "\\ud800"}',
        "",
    ]
    assert read(texts, Field("t", "t", Kind.TEXT))["t"] == ["aä", '[1,"b"]', '[1,"b"]', "5", "", "", ""]


def test_items_of_a_list_are_separate_fields() -> None:
    texts = ['{"grid": [4, "2", 1]}', '{"grid": [8]}', '{"grid": "4,2,1"}', "{}"]
    fields = (Field("x", "grid", item=0), Field("y", "grid", item=1), Field("all", "grid", Kind.TEXT))
    assert read(texts, *fields) == {"x": [4, 8, -1, -1], "y": [2, -1, -1, -1], "all": ['[4,"2",1]', "[8]", "4,2,1", ""]}


def test_text_that_is_not_a_json_object_has_no_arguments() -> None:
    texts = ['{"n": 1, "t": "a"}', "[1]", "7", "{", "", '{"n": 2}']
    assert read(texts, *FIELDS) == {"number": [1, -1, -1, -1, -1, 2], "text": ["a", "", "", "", "", ""]}


def test_no_rows_give_empty_columns_of_the_right_types() -> None:
    columns = read_arguments(pa.chunked_array([], pa.string()), np.zeros(0, np.int64), FIELDS)
    assert (columns["number"].dtype, columns["number"].tolist()) == (np.int64, [])
    assert (columns["text"].type.value_type, columns["text"].to_pylist()) == (pa.string(), [])


VALUES = st.one_of(
    st.integers(-3, 3), st.text(max_size=3), st.none(), st.booleans(), st.floats(-9, 9), st.just(1 << 70)
)
OBJECTS = st.fixed_dictionaries({}, optional={"n": VALUES, "t": VALUES, "l": st.lists(VALUES, max_size=3), "r": VALUES})
ALL = (*FIELDS, Field("first", "l", item=0), Field("second", "l", Kind.TEXT, item=1), Field("real", "r", Kind.FLOAT))


@given(st.lists(OBJECTS.map(json.dumps) | st.sampled_from(["", "{}", "[]", "7"]), min_size=1))
def test_many_events_are_read_like_single_ones(texts: list[str]) -> None:
    together, alone = read(texts, *ALL), [read([text], *ALL) for text in texts]
    for name, column in together.items():
        np.testing.assert_array_equal(column, [event[name][0] for event in alone])
