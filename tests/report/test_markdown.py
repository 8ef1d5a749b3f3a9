"""Markdown report for pull requests."""

from __future__ import annotations

import pytest
from papers import document, empty_document

from usp_prof.report.document import Section
from usp_prof.report.writers import markdown


def test_the_summary_is_expanded_and_details_are_collapsed() -> None:
    text = markdown.write(document())
    head, _, folded = text.partition("<details>")
    for phrase in ("## usp-prof: a run", "| step | **431 ms** |", "ST001", "2 more", "exposed tp | 23.2%"):
        assert phrase in head
    assert "<summary>Where the step goes</summary>" in folded
    assert "Wheel zooms" not in text


def test_names_cannot_break_markdown_tables() -> None:
    text = markdown.write(document())
    rows = [line for line in text.splitlines() if line.startswith("| ") and "axis" in line]
    assert rows[0].count(" | ") == 3
    hostile = next(line for line in text.splitlines() if "script" in line)
    assert "\\</script\\>\\<b\\>" in hostile
    assert "\\|x" in hostile


def test_an_empty_report_states_that_nothing_was_found() -> None:
    text = markdown.write(empty_document())
    assert "**Findings**: none" in text
    assert "no problems in the traces" in text
    assert "4 notes" in text


def test_an_unknown_block_is_a_programming_error() -> None:
    with pytest.raises(TypeError, match="no way to write"):
        markdown.write(document(sections=(Section("s", "S", ("no block",)),)))  # type: ignore[arg-type]
