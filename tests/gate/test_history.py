from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gate_runs import FACTS, measured, series, steps

from usp_prof.cli.app import main
from usp_prof.gate.change_points import find_trend
from usp_prof.gate.history import MetricTrend, append, read, trends
from usp_prof.model.errors import InputError
from usp_prof.model.metric import Better, Unit
from usp_prof.report.answers.trend import sparkline, text

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.gate.measured import Measured


def _run(rng: np.random.Generator, mean: float, calls: int = 3) -> Measured:
    return measured(
        series("step_time", steps(rng, mean=mean, noise=0.005)),
        series("calls", [calls], unit=Unit.COUNT, better=Better.NEITHER, steps=[-1]),
    )


def test_two_jobs_that_append_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.parquet"
    run = _run(np.random.default_rng(1), 1e9)
    with ThreadPoolExecutor(4) as jobs:
        numbers = list(jobs.map(lambda commit: append(path, run, commit=f"c{commit}"), range(12)))
    assert sorted(numbers) == list(range(12))
    assert set(read(path).column("commit").to_pylist()) == {f"c{commit}" for commit in range(12)}


@pytest.fixture
def drifting(tmp_path: Path) -> Path:
    path = tmp_path / "runs.parquet"
    rng = np.random.default_rng(7)
    for i in range(30):
        assert append(path, _run(rng, 1e9 * 1.003**i, 3 if i < 20 else 4), commit=f"c{i}") == i
    return path


def test_slow_drift_over_thirty_runs_is_found(drifting: Path) -> None:
    calls, step = trends(read(drifting))
    assert step.drift_fraction == pytest.approx(0.003, rel=0.3)
    assert [(change.index, change.after) for change in calls.trend.changes] == [(20, 4.0)]


def test_the_trend_command_reports_drift(drifting: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trend", str(drifting), "--changed", "--fail"]) == 1
    out = capsys.readouterr().out
    assert "drifts by +0.3" in out
    assert "worse" in out
    assert "changed at c20 (run 20): 3 -> 4" in out
    assert main(["trend", str(drifting), "--metric", "calls", "--changed"]) == 0
    assert capsys.readouterr().out.startswith("1 metric over 30 runs: 1 changed or drifting\n")
    assert main(["trend", str(drifting), "--metric", "calls", "--fail", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [metric["key"] for metric in data["metrics"]] == ["calls"]
    assert main(["trend", str(drifting), "--metric", "stepp_time"]) == 2
    assert "did you mean step_time" in capsys.readouterr().err


def test_a_trend_covers_runs_comparable_with_the_newest(tmp_path: Path) -> None:
    path, rng = tmp_path / "runs.parquet", np.random.default_rng(3)
    slower = tuple(replace(fact, value="A100") if fact.name == "device" else fact for fact in FACTS)
    for i in range(20):
        on_other = i % 4 == 1
        run = _run(rng, 2e9 if on_other else 1e9)
        append(path, replace(run, facts=slower) if on_other else run)
    calls, step = trends(read(path))
    assert (len(step.values), step.left_out, step.trend.changes) == (15, 5, ())
    assert (len(calls.values), calls.left_out) == (20, 0), "counts do not depend on the machine"
    assert "15 runs (5 runs under other conditions left out)" in text([step])


def test_a_history_without_conditions_is_read(drifting: Path) -> None:
    table = pq.read_table(drifting)
    pq.write_table(table.drop_columns(["facts"]), drifting)
    assert trends(read(drifting)) == trends(table)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read(tmp_path / "none.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="not a history"):
        read(tmp_path / "x.parquet")
    with pytest.raises(InputError, match="cannot write"):
        append(tmp_path / "no" / "runs.parquet", _run(np.random.default_rng(1), 1e9))


@pytest.mark.parametrize("number", [-1, 2**62, 2**63 - 1])
def test_a_run_without_numbers_is_refused(drifting: Path, number: int) -> None:
    table = pq.read_table(drifting)
    pq.write_table(table.set_column(0, "run", pa.array([number] * len(table))), drifting)
    with pytest.raises(InputError, match="not a history of runs: run is"):
        append(drifting, _run(np.random.default_rng(1), 1e9))


def test_changed_metrics_come_first_and_steady_ones_are_separate() -> None:
    steady = MetricTrend("a", "A", Unit.NS, Better.LOWER, ("x",) * 8, (5.0,) * 8, find_trend((5.0,) * 8))
    values = (1.0,) * 4 + (2.0,) * 4
    jump = MetricTrend("b", "B", Unit.COUNT, Better.LOWER, tuple("12345678"), values, find_trend(values))
    assert text([steady, jump]) == (
        "2 metrics over 8 runs: 1 changed or drifting\n\n"
        "▁▁▁▁████  b  1 -> 2\n  changed at 5 (run 4): 1 -> 2, +100.00%, worse\n\n"
        "no change:\n▁▁▁▁▁▁▁▁  a  5.00 ns -> 5.00 ns\n"
    )
    assert text([steady], only_changed=True) == "1 metric over 8 runs: none changed or drifting\n"


def test_too_few_runs_have_no_trend() -> None:
    few = MetricTrend("a", "A", Unit.NS, Better.LOWER, ("x", "y"), (5.0, 9.0), find_trend((5.0, 9.0)))
    headline = "1 metric over 2 runs: too few runs to find a change (needs 6)\n"
    assert text([few]) == f"{headline}\n▁█  a  5.00 ns -> 9.00 ns\n"
    assert text([few], only_changed=True) == headline


def test_sparklines_show_the_series() -> None:
    assert sparkline([1, 1, 1]) == "▁▁▁"
    assert sparkline([0, 7]) == "▁█"
    assert text([]) == "no metric\n"
