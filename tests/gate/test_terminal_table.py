"""Gate tables in a narrow terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from usp_prof.report.answers.wording import bare_table, metric_cell


@pytest.mark.parametrize(("width", "lines"), [(80, 2), (120, 1)])
def test_dimensions_are_on_their_own_line_in_narrow_terminals(width: int, lines: int) -> None:
    assert len(metric_cell("exposed_comm_fraction[axis=dp]", width).plain.splitlines()) == lines


@pytest.mark.parametrize(("width", "blanks"), [(80, 1), (120, 2)])
def test_columns_are_closer_in_narrow_terminals(width: int, blanks: int) -> None:
    table = bare_table(width)
    table.add_column("a")
    table.add_column("b")
    table.add_row("1", "2")
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    assert out.getvalue().split() == ["a", "b", "1", "2"]
    assert f"1{' ' * blanks}2" in out.getvalue()
