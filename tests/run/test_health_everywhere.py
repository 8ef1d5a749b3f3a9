"""Health of a rank's events: the same in the report, `info` and SQL."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tiny import Trace, write

from usp_prof.cli.app import main
from usp_prof.findings.draft import Input, damage
from usp_prof.report.build import analyze, build
from usp_prof.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.run import Run

UNLINKED = "steps_by_host"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a run whose device work has no launches: its steps are the host's marks."""
    trace = Trace()
    for step in range(3):
        at = step * 1_000_000
        trace.step(step, at, 1_000_000).launch(1_000 + step, at + 1_000)
        trace.kernel("gemm", at + 10_000, 500_000, correlation=step + 1)
    write({0: trace}, tmp_path / "run")
    return open_run(tmp_path / "run", cache_dir=tmp_path / "cache")


def test_the_report_shows_health(run: Run) -> None:
    document = build(run.tables, analyze(run.tables, only=["step_time"]), name="x")
    assert UNLINKED in {row.code for row in document.health}


def test_info_shows_health(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["info", str(run.path), "--format", "json", "--cache-dir", str(tmp_path / "cache")]
    assert main(words) == 0
    assert UNLINKED in {row["code"] for row in json.loads(capsys.readouterr().out)["health"]}


def test_sql_has_each_health_row_once_including_rows_of_the_run(run: Run) -> None:
    rows = [(row["rank"], row["code"]) for row in run.query("SELECT * FROM health").to_arrow_table().to_pylist()]
    assert sorted(rows) == sorted((row.rank, row.code) for row in run.health)
    assert len(rows) == len(set(rows))


def test_rules_that_need_launches_report_lost_work(run: Run) -> None:
    assert "lost_device_work" in damage(run.tables, [Input.LAUNCHES])
