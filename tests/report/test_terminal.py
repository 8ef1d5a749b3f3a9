"""Terminal report."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from papers import HOSTILE, document, empty_document, facts
from rich.console import Console
from rich.style import Style

from usp_prof.model.metric import Unit
from usp_prof.report.document import DataTable, Section, TableColumn, Text
from usp_prof.report.writers import terminal


def printed(sections: tuple[str, ...] = (), doc: object = None, encoding: str = "utf-8", **options: object) -> str:
    # rich caches a style's codes for the first color system that it encounters
    for cached in (Style.parse, Style._add):
        cached.cache_clear()
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    settings: dict[str, object] = {"width": 80, "file": file} | options
    terminal.write(doc or document(), Console(**settings), sections)  # type: ignore[arg-type]
    file.flush()
    return raw.getvalue().decode(encoding)


def test_the_first_screen_is_complete_in_80_columns() -> None:
    text = printed()
    assert max(len(line) for line in text.splitlines()) <= 80
    for phrase in ("a run", "8 ranks, tp=8", "431 ms", "unknown: add --model", "58.0%", "ST001", "data_loss"):
        assert phrase in text
    assert "Details: --section NAME|all; sections: breakdown, health" in text


def test_without_color_no_escape_is_written_and_parts_differ_by_their_fill() -> None:
    text = printed()
    assert "\x1b" not in text
    bar = next(
        line for line in text.splitlines() if set(line.strip()) <= set("\u2588\u2593\u259a\u2591") and line.strip()
    )
    assert len(bar.strip()) == 76
    assert len(set(bar.strip())) == 4


def test_with_color_the_bar_is_solid() -> None:
    text = printed(force_terminal=True, color_system="truecolor")
    assert "\x1b[38;2;0;114;178m" in text
    assert "\u2593" not in text


def test_with_few_colors_parts_also_differ_by_their_fill() -> None:
    assert "\u2593" in printed(force_terminal=True, color_system="standard")


def test_no_color_takes_precedence_over_a_color_terminal() -> None:
    assert "\u2593" in printed(force_terminal=True, color_system="truecolor", no_color=True)


def test_a_plain_ascii_terminal_gets_ascii() -> None:
    text = printed(("all",), encoding="ascii")
    assert text.isascii()
    assert "#" in text
    assert "+/-" in printed(encoding="ascii")


def test_sections_are_printed_by_name_and_charts_are_skipped() -> None:
    text = printed(("health",))
    assert "Health of the traces" in text
    assert "info no_groups x2" in text
    assert "Where the step goes" not in text
    every = printed(("all",))
    assert "Where the step goes" in every
    assert "Wheel zooms" not in every


def test_names_from_traces_cannot_steer_the_terminal() -> None:
    hostile = replace(facts(), name=HOSTILE)
    text = printed(doc=document(run=hostile), force_terminal=True, color_system="truecolor")
    assert "\x1b[31m" not in text
    assert "?[31m" in text


def test_an_empty_comparison_says_that_nothing_changed() -> None:
    text = printed(doc=empty_document())
    assert "none" in text
    assert "no problems in the traces" in text
    assert "4 notes" in text
    assert "more:" not in text


def test_quiet_and_loud_texts_are_printed() -> None:
    section = Section("s", "S", (Text("loud"), Text("low", quiet=True)))
    text = printed(("s",), document(sections=(section,)))
    assert "loud" in text
    assert "low" in text


LONG = "cutlass_" * 30


def wide_table() -> DataTable:
    columns = (TableColumn("name"), TableColumn("why", prose=True), *(TableColumn(f"n{n}", Unit.NS) for n in range(9)))
    row = (LONG, "because " * 12, *(1_234_567 for _ in range(9)))
    return DataTable("Wide", columns, (row,), more=2)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_wide_table_cuts_names_wraps_sentences_and_states_which_columns_are_left_out(encoding: str) -> None:
    text = printed(("s",), document(sections=(Section("s", "S", (wide_table(),)),)), encoding=encoding)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert ("..." in text) is (encoding == "ascii")
    assert text.count("because") >= 12
    assert "2 more rows; columns not shown:" in text
    assert "n8" in text


def test_on_a_wide_screen_nothing_is_left_out() -> None:
    text = printed(("s",), document(sections=(Section("s", "S", (wide_table(),)),)), width=700)
    assert LONG in text
    assert "2 more rows\n" in text


def test_an_unknown_block_is_a_programming_error() -> None:
    with pytest.raises(TypeError, match="no way to print"):
        printed(("s",), document(sections=(Section("s", "S", ("no block",)),)))  # type: ignore[arg-type]


@pytest.mark.parametrize("color", [None, "truecolor"])
def test_no_line_ends_with_blanks(color: str | None) -> None:
    options: dict[str, object] = {"force_terminal": True, "color_system": color} if color else {}
    for sections in ((), ("all",)):
        plain = re.sub(r"\x1b\[[0-9;]*m", "", printed(sections, **options))
        assert [line for line in plain.splitlines() if line != line.rstrip()] == []


def test_a_wrapped_color_line_has_no_trailing_blanks() -> None:
    paragraph = Text("the first of two lines is shorter than the screen, and rich fills it up", quiet=True)
    text = terminal.sections_text("a title", [Section("one", "One", (paragraph,))], color=True, width=50)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    assert len(lines) == 5
    assert [line for line in lines if line.endswith(" ")] == []
