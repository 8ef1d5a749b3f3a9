"""Conversion of an analysis' table to a table of the report."""

from __future__ import annotations

import numpy as np
import pytest

from usp_prof.model.metric import Unit
from usp_prof.report.sections.plain import listing_table, unit_of


@pytest.mark.parametrize(
    ("column", "head", "unit"),
    [
        ("wait_ns", "wait", Unit.NS),
        ("peak_bytes", "peak", Unit.BYTES),
        ("overlap_fraction", "overlap", Unit.FRACTION),
        ("busbw", "busbw", Unit.BYTES_PER_SECOND),
        ("rank", "rank", None),
    ],
)
def test_a_column_name_determines_its_unit(column: str, head: str, unit: Unit | None) -> None:
    assert unit_of(column) == (head, unit)


def test_absent_values_are_unknown() -> None:
    listing = {"name": ["a", ""], "wait_ns": np.array([5, -1]), "share": [0.5, np.nan], "ok": [True, False]}
    table = listing_table(listing, "T")
    assert table.rows == (("a", 5, 0.5, "yes"), (None, None, None, "no"))


def test_columns_are_picked_ordered_and_named() -> None:
    listing = {"a_ns": range(30), "b": ["x"] * 30, "c": [1] * 30}
    table = listing_table(listing, "T", ("b", "a_ns", "gone"), {"b": "letter"}, rows=10)
    assert [(column.head, column.unit) for column in table.columns] == [("letter", None), ("a", Unit.NS)]
    assert len(table.rows) == 10
    assert table.more == 20
