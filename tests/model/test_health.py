"""Health rows: shown once, sorted, and grouped if alike."""

from __future__ import annotations

from usp_prof.model.health import HealthRow, Severity, gathered
from usp_prof.model.printable import spans


def row(code: str, rank: int = -1, detail: str = "d", count: int = 1) -> HealthRow:
    return HealthRow(code, Severity.INFO, rank=rank, count=count, detail=detail, file=f"rank{rank}.json")


def test_equal_rows_of_several_ranks_become_one() -> None:
    rows = [row("b", 3), row("a", 0, count=2), row("a", 1), row("a", 2), row("a", 7), row("a", 7)]
    merged = gathered(rows)
    assert [(merged_row.code, merged_row.rank, merged_row.count, merged_row.detail) for merged_row in merged] == [
        ("a", -1, 5, "ranks 0-2, 7: d"),
        ("b", 3, 1, "d"),
    ]
    assert merged[0].file == ""
    assert merged[1].file == "rank3.json"


def test_different_rows_stay_separate() -> None:
    assert len(gathered([row("a", 0, "x"), row("a", 1, "y")])) == 2
    assert gathered([]) == ()


def test_numbers_are_written_as_spans() -> None:
    assert spans([]) == ""
    assert spans([5]) == "5"
    assert spans([3, 1, 2, 9, 10]) == "1-3, 9-10"
