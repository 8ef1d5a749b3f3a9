"""Are arguments that are read without DuckDB read as DuckDB reads them?"""

from __future__ import annotations

import json

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.tables.events._plain_json import read_plainly

PATHS = ('$."Input Dims"', "$.grid[1]", '$."Concrete Inputs"[0]', '$."a b"[12]', "$.x")
_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text("ab \x7fä,:[]{}0", max_size=6),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
_ANY = _PLAIN | st.floats(allow_nan=False) | st.text(max_size=4) | st.dictionaries(st.text(max_size=2), _PLAIN)
_KEYS = st.sampled_from(["Input Dims", "grid", "Concrete Inputs", "a b", "x", "y"])


def by_duckdb(objects: list[bytes]) -> list[list[str | None]]:
    rows = [
        duckdb.execute("SELECT json_extract_string(?, ?)", [text.decode() or "{}", list(PATHS)]).fetchall()[0][0]
        for text in objects
    ]
    return [list(column) for column in zip(*rows, strict=True)]


@given(st.lists(st.dictionaries(_KEYS, _PLAIN, max_size=4), min_size=1, max_size=4), st.sampled_from([None, 2]))
def test_plain_objects_are_read_as_duckdb_reads_them(objects: list[dict[str, object]], indent: int | None) -> None:
    texts = [json.dumps(each, indent=indent, ensure_ascii=False).encode() for each in objects]
    assert read_plainly(texts, PATHS) == by_duckdb(texts)


@given(st.dictionaries(_KEYS, _ANY, max_size=4))
def test_others_are_read_alike_or_left(found: dict[str, object]) -> None:
    texts = [json.dumps(found).encode()]
    assert read_plainly(texts, PATHS) in (None, by_duckdb(texts))


@pytest.mark.parametrize("value", ["-0", "[1,-0]", "1.0", "1e3", '"\\u00e4"', '["\\n"]', "{}", str(2**64), "[", "01"])
def test_what_can_be_written_in_several_ways_is_left(value: str) -> None:
    assert read_plainly([b'{"x":%s}' % value.encode()], PATHS) is None


def test_what_is_no_object_is_left_and_an_empty_text_says_nothing() -> None:
    assert read_plainly([b"[1]"], PATHS) is None
    assert read_plainly([b""], PATHS) == [[None]] * len(PATHS)
    assert read_plainly([b'{"x":1}'], ["$.x.y"]) is None


def test_small_numbers_inside_texts_are_plain() -> None:
    assert read_plainly([b'{"x":["9.9e-06", "-0.5"]}'], ["$.x"]) == [['["9.9e-06","-0.5"]']]
