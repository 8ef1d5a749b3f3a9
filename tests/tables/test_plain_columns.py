"""Columns passed to Arrow unchanged: equal to the result of `pa.array`."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.model.schema import Schema, Scope, flag, integer, real, text
from usp_prof.tables.build import table

SCHEMA = Schema(
    "probe", "A table.", (integer("n", "N."), flag("f", "F."), real("x", "X."), text("t", "T.")), Scope.RANK
)
ROWS = st.lists(
    st.tuples(st.integers(-128, 127), st.booleans(), st.floats(), st.text(st.characters(codec="utf-8"), max_size=3)),
    max_size=20,
)


@given(ROWS, st.sampled_from([np.int8, np.int32, np.int64]), st.sampled_from([np.float32, np.float64]))
def test_arrays_equal_those_of_arrow(
    rows: list[tuple[int, bool, float, str]], int_type: type[np.integer], float_type: type[np.floating]
) -> None:
    with np.errstate(over="ignore"):
        columns = {
            name: np.array([row[place] for row in rows], kind)
            for place, (name, kind) in enumerate((("n", int_type), ("f", bool), ("x", float_type), ("t", object)))
        }
    made = table(SCHEMA, columns)
    made.validate(full=True)
    assert made["n"].to_pylist() == columns["n"].tolist()
    assert made["f"].to_pylist() == columns["f"].tolist()
    np.testing.assert_array_equal(made["x"].to_numpy(), columns["x"].astype(np.float64))
    expected = pa.array(columns["t"].tolist(), pa.string()).dictionary_encode()
    assert made["t"].combine_chunks().equals(expected)


@pytest.mark.parametrize("value", [7, -1])
def test_a_value_for_all_rows_fills_them(value: int) -> None:
    made = table(SCHEMA, {"n": value, "f": True, "x": value, "t": "word"}, 3)
    assert made.to_pydict() == {"n": [value] * 3, "f": [True] * 3, "x": [value] * 3, "t": ["word"] * 3}


@pytest.mark.parametrize("arrow", [False, True])
def test_missing_values_are_absent_and_never_null(*, arrow: bool) -> None:
    columns = {"n": [5, None], "f": [None, True], "x": [None, 0.5], "t": [None, "word"]}
    given_: dict[str, object] = {name: pa.array(values) for name, values in columns.items()} if arrow else dict(columns)
    if arrow:
        given_["t"] = pa.array(columns["t"], pa.string()).dictionary_encode()
    made = table(SCHEMA, given_)
    assert made["n"].to_pylist() == [5, -1]
    assert made["f"].to_pylist() == [False, True]
    assert [value != value or value for value in made["x"].to_pylist()] == [True, 0.5]  # noqa: PLR0124 - nan
    assert made["t"].to_pylist() == ["", "word"]
    assert not any(field.nullable for field in made.schema)
    made.validate(full=True)


def test_a_table_is_built_without_pandas() -> None:
    code = (
        "import sys, numpy as np; from usp_prof.tables.calls import SCHEMA; from usp_prof.tables.build import table; "
        "table(SCHEMA, {'call': np.arange(3), 'op': np.array(['a', 'b', 'a'], object), 'complete': np.ones(3, bool)}); "
        "sys.exit('pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
