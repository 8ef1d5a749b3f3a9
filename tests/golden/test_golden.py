"""Golden reports: each recorded run still gives the same report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from golden_reports import FOLDER, RUNS, condensed, path_of, report_of

if TYPE_CHECKING:
    from pathlib import Path

MEANT = "is not what it was; if the change is meant, run tools/make_golden and look at the difference"


@pytest.mark.parametrize("run", RUNS)
def test_the_report_of_a_recorded_run_equals_its_golden_report(run: str, tmp_path: Path) -> None:
    lines = condensed(report_of(run, tmp_path)).splitlines()
    assert lines == path_of(run).read_text(encoding="utf-8").splitlines(), f"the report of {run} {MEANT}"


def test_every_recorded_run_has_a_golden_report_and_none_is_left_over() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(RUNS)


def test_changed_figures_are_detected_but_not_the_tenth_digit() -> None:
    def report(overall: float, cell: float) -> dict[str, object]:
        unit = {"id": "step_time", "unit": "ns"}
        metrics = [
            unit | {"value": overall, "dims": {}},
            unit | {"value": cell, "dims": {"rank": 0, "step": 3}},
            unit | {"value": 5, "dims": {"rank": 1, "step": 3}},
        ]
        run = dict.fromkeys(("ranks", "world_size", "axes", "steps", "devices", "hosts"), 1)
        return {"run": run, "metrics": metrics, "findings": [], "health": []}

    before = condensed(report(1.23456789012, 7))
    assert condensed(report(1.23456789049, 7)) == before
    assert condensed(report(1.23456788, 7)) != before
    assert condensed(report(1.23456789012, 8)) != before
