"""Do arguments come from the rows that were asked for, in their order, however many chunks the text lies in?"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.model.schema import Kind
from usp_prof.tables.events import _sound_arguments, arguments
from usp_prof.tables.events.arguments import read_arguments
from usp_prof.tables.events.field import Field

FIELDS = (Field("number", "n"), Field("text", "t", Kind.TEXT), Field("coded", "t", Kind.TEXT, coded=True))


@pytest.mark.parametrize("batch", [1, 3, 1 << 15])
@given(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=4), st.data())
def test_any_rows_of_any_chunks(batch: int, chunks: list[list[int]], data: st.DataObject) -> None:
    texts = [pa.array([f'{{"n": {n}, "t": "x{n}"}}' for n in chunk], pa.string()) for chunk in chunks]
    numbers = [n for chunk in chunks for n in chunk]
    rows = data.draw(st.lists(st.integers(0, len(numbers) - 1))) if numbers else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arguments, "_BATCH", batch)
        patch.setattr(arguments, "_SPAN", 40 * batch)
        found = read_arguments(pa.chunked_array(texts, pa.string()), np.array(rows, np.int64), FIELDS)
    assert found["number"].tolist() == [numbers[row] for row in rows]
    assert found["text"].to_pylist() == [f"x{numbers[row]}" for row in rows]
    assert found["coded"].to_pylist() == [f"x{numbers[row]}" for row in rows]
    assert pa.types.is_dictionary(found["coded"].type)


PATHS = (
    *FIELDS,
    Field("first", "$.l[0]"),
    Field("second", '$."l"[1]', Kind.TEXT),
    Field("real", "r", Kind.FLOAT),
    Field("flag", "f", Kind.FLAG),
)
VALUES = st.one_of(
    st.integers(-3, 3), st.text(max_size=3), st.none(), st.booleans(), st.floats(-9, 9), st.just(1 << 70)
)
OBJECTS = st.fixed_dictionaries(
    {},
    optional={"n": st.integers(), "t": st.text(max_size=3), "l": st.lists(VALUES, max_size=3), "r": st.floats(-9, 9)},
)
ODD = st.fixed_dictionaries({}, optional=dict.fromkeys("ntlrf", VALUES))


@given(st.lists(st.one_of(OBJECTS.map(json.dumps), ODD.map(json.dumps), st.sampled_from(["", "{}", "[]", "7"]))))
def test_sound_arguments_say_what_a_careful_reader_finds(texts: list[str]) -> None:
    args, rows = pa.chunked_array([texts], pa.string()), np.arange(len(texts))
    found = read_arguments(args, rows, PATHS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_sound_arguments.SoundArguments, "read", lambda *_: False)
        careful = read_arguments(args, rows, PATHS)
    for field in PATHS:
        ours, theirs = (np.asarray(each[field.name]) for each in (found, careful))
        np.testing.assert_array_equal(ours, theirs, field.name)


def test_too_many_combinations_are_not_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sound_arguments, "_MANY", 3)
    texts = [f'{{"n": {n}, "t": "x{n}"}}' for n in range(9)]
    found = read_arguments(pa.chunked_array([texts], pa.string()), np.arange(9), FIELDS)
    assert found["number"].tolist() == [*range(9)]
    assert found["text"].to_pylist() == [f"x{n}" for n in range(9)]
