"""Columns of a table, of some of its rows, and of a stored table: all are equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.columns.table import Columns, Replaced, stacked
from usp_prof.model.errors import UspProfError
from usp_prof.store import entry as stored_tables
from usp_prof.store.cache import write_parquet
from usp_prof.store.entry import StoredTable

if TYPE_CHECKING:
    from pathlib import Path


def table(*texts: str) -> pa.Table:
    """Numbers, flags and texts, coded and not."""
    count = len(texts)
    return pa.table(
        {
            "number": pa.array(range(count), pa.int64()),
            "flag": pa.array([number % 2 == 0 for number in range(count)], pa.bool_()),
            "coded": pa.array(texts, pa.string()).dictionary_encode(),
            "plain": pa.array(texts, pa.string()),
        }
    )


def rows_of(columns: Columns) -> list[tuple[object, ...]]:
    """Return every row as plain values, with the codes of texts."""
    codes, values = columns.codes("coded")
    assert [values[code] for code in codes.tolist()] == columns["coded"].tolist()
    return list(zip(*(columns[name].tolist() for name in ("number", "flag", "coded", "plain")), strict=True))


@given(st.lists(st.sampled_from(["a", "b", "", "ü"]), max_size=8), st.data())
def test_selections_can_be_chained(texts: list[str], data: st.DataObject) -> None:
    columns = Columns(table(*texts))
    wanted = np.array([data.draw(st.booleans()) for _ in texts], bool)
    again = np.array([data.draw(st.integers(0, int(wanted.sum()) - 1)) for _ in range(3)] if wanted.any() else [], int)
    rows = columns.take(wanted).take(again)
    expected = [rows_of(columns)[row] for row in np.flatnonzero(wanted)[again].tolist()]
    assert rows_of(rows) == expected
    assert rows.arrow.to_pylist() == [dict(zip(columns.arrow.column_names, row, strict=True)) for row in expected]


def test_an_empty_selection_reads_nothing() -> None:
    def read() -> pa.Array:
        raise AssertionError

    source = table("x", "y")
    columns = Columns(Replaced(source, dict.fromkeys(source.column_names, read))).take(np.zeros(2, bool))
    assert [columns[name].tolist() for name in source.column_names] == [[]] * 4
    assert [columns[name].dtype.kind for name in ("number", "flag")] == ["i", "b"]
    assert rows_of(columns) == []


@pytest.mark.parametrize("small", [-1, 1 << 16], ids=["column by column", "all columns at once"])
def test_a_stored_table_is_read_back_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    monkeypatch.setattr(stored_tables, "_SMALL", small)
    made = table("x", "y", "x")
    write_parquet(made, tmp_path / "t.parquet")
    stored = StoredTable(tmp_path / "t.parquet")
    assert stored.schema.equals(made.schema)
    assert stored.num_rows == len(Columns(stored)) == 3
    assert rows_of(Columns(stored)) == rows_of(Columns(made))
    assert rows_of(Columns(stored).take(np.array([2, 0]))) == [rows_of(Columns(made))[row] for row in (2, 0)]
    assert Columns(stored).arrow.equals(made)
    (tmp_path / "t.parquet").unlink()
    assert rows_of(Columns(stored)) == rows_of(Columns(made))  # nothing is read twice


def test_a_replaced_column_has_its_new_values() -> None:
    view = Replaced(table("x", "y"), {"number": lambda: pa.array([7, 8], pa.int64())})
    assert Columns(view)["number"].tolist() == [7, 8]
    assert Columns(view)["coded"].tolist() == ["x", "y"]
    assert view.to_table().column("number").to_pylist() == [7, 8]


@given(st.lists(st.lists(st.sampled_from(["a", "b", "", "ü"]), max_size=4), min_size=1, max_size=3))
def test_stacked_tables_have_the_rows_of_all(parts: list[list[str]]) -> None:
    tables = [table(*texts) for texts in parts]
    expected = [row for part in tables for row in rows_of(Columns(part))]
    combined = stacked((Columns(part) for part in tables), tables[0].column_names)
    assert rows_of(Columns(combined)) == expected


def test_missing_texts_are_empty() -> None:
    column = pa.array(["a", None, "b"], pa.string()).dictionary_encode()
    columns = Columns(pa.table({"coded": column}))
    assert columns["coded"].tolist() == ["a", "", "b"]
    assert columns.matches("coded", "").tolist() == [False, True, False]


def test_a_table_without_chunks_has_no_rows() -> None:
    empty = table("x").schema.empty_table()
    columns = Columns(pa.Table.from_batches([], schema=empty.schema))
    assert len(columns) == 0
    assert rows_of(columns) == []
    assert columns.matches("plain", "x").tolist() == []


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(UspProfError, match="nmber"):
        _ = Columns(table("x"))["nmber"]
    with pytest.raises(UspProfError, match="nmber"):
        Columns(table("x")).codes("nmber")
