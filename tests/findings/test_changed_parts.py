"""Parts of the step that a finding's change affects: they start at the step breakdown and add up to the gain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tiny import Trace, table_set

from usp_prof.analyses import breakdown
from usp_prof.cli.app import main
from usp_prof.findings import find_all
from usp_prof.findings.changed_parts import LEAST_CHANGE, changed_parts
from usp_prof.model.edit import parse_edit
from usp_prof.model.selection import Selection
from usp_prof.report.words import finding_lines
from usp_prof.run import open_run

if TYPE_CHECKING:
    from usp_prof.run import Run

TRACES = Path(__file__).parents[2] / "traces"


@pytest.fixture
def late_rank(tmp_path: Path) -> Run:
    """Open a run whose rank 0 waits for the device more often than rank 1."""
    return open_run(TRACES / "gpu-nccl-zero3", cache_dir=tmp_path)


def test_the_parts_start_at_the_breakdown_and_add_up_to_the_gain(late_rank: Run) -> None:
    (finding,) = (finding for finding in find_all(late_rank.tables).findings if finding.code == "late-rank")
    shown = breakdown.compute(late_rank.tables).mean_ns()
    assert {part.role for part in finding.changed} == {"comm:dp", "idle:host"}
    assert all(part.before_ns == shown[part.role] for part in finding.changed)
    missing = finding.saved_ns - sum(part.saved_ns for part in finding.changed)
    assert abs(missing) < len(shown) * LEAST_CHANGE * finding.step_ns


def test_another_order_of_pipeline_actions_changes_no_recorded_part(tmp_path: Path) -> None:
    run = open_run(TRACES / "recorded-1f1b", cache_dir=tmp_path)
    assert changed_parts(run.tables, parse_edit("schedule=interleaved,v=2")) == ()


def test_parts_are_left_out_where_the_breakdown_is_that_of_some_steps(late_rank: Run) -> None:
    findings = find_all(late_rank.tables, Selection(first_step=5, last_step=5)).findings
    assert findings
    assert not any(finding.changed for finding in findings)


def test_the_screen_explains_a_gain_that_is_smaller_than_the_idle_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recording slows the host, so the device waits for input longer than without recording."""
    assert main(["analyze", str(TRACES / "gpu-late-input"), "--cache-dir", str(tmp_path)]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert "idle: input 35.1% 23.9 ms" in screen
    assert "of the 49.6 ms step without recording" in screen
    assert "idle: input 23.9 ms -> 376 μs, idle: host 2.53 ms -> 851 μs; recording causes a part of this" in screen
    assert "without step 29, cut by the end of the recording, mean without recording 49.6 ms" in screen


def test_steps_that_were_recorded_to_their_end_are_not_said_to_be_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--steps", "27:28", "--cache-dir", str(tmp_path)]
    assert main(["analyze", str(TRACES / "gpu-late-input"), *options]) == 0
    assert "cut by" not in " ".join(capsys.readouterr().out.split())


def test_gains_of_a_run_without_steps_are_shares_of_the_window() -> None:
    """The host launches ten kernels, pauses, and launches ten more."""
    trace = Trace()
    for place in range(20):
        at = place * 20_000 + (5_000_000 if place >= 10 else 0)
        trace.kernel("k", at + 6_000, 10_000, launch_at=at)
    (finding,) = (finding for finding in find_all(table_set(trace)).findings if finding.code == "host-pause")
    title, gain, *_ = finding_lines(finding)
    assert "step 0" not in title
    assert "of the window" in gain
