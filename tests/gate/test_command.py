"""The gate as users run it: runs with known ground truth, commands, exit codes, the pytest plugin."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from usp_prof.cli.app import main
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write
from usp_prof.gate.measured import Damage, load, save
from usp_prof.model.health import Severity

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = ["pytester"]


def _declared(seed: int, **other: object) -> Declaration:
    work = {"steps": 8, "micro_batches": 2, "schedule": "1F1B"}
    return Declaration.from_dict({"mesh": {"dp": 2, "pp": 2}, "seed": seed, "work": work, **other})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a run, its repeat, one with a slow rank and one that lost a rank; the baseline is of the first."""
    folder = tmp_path_factory.mktemp("runs")
    write(_declared(1), folder / "first")
    write(_declared(2), folder / "again")
    write(_declared(3, faults=[{"kind": "slow_rank", "rank": 1, "factor": 1.4}]), folder / "slow")
    lost = sorted(write(_declared(4), folder / "lost"))
    next(path for path in lost if "2" in path.name).unlink()
    assert main(["baseline", "save", str(folder / "first"), "-o", str(folder / "baseline.json"), *_cache(folder)]) == 0
    return folder


def _cache(folder: Path) -> list[str]:
    return ["--cache-dir", str(folder / "cache"), "-q"]


def _check(runs: Path, name: str, *more: str) -> int:
    return main(["check", str(runs / name), "--baseline", str(runs / "baseline.json"), *more, *_cache(runs)])


def test_a_repeat_passes(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _check(runs, "again") == 0
    assert capsys.readouterr().out.startswith("pass: ")


def test_a_slow_rank_regresses_and_the_reason_is_its_compute(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _check(runs, "slow", "--format", "json") == 1
    report = json.loads(capsys.readouterr().out)
    assert "step_time" in {judgment["key"] for judgment in report["judgements"] if judgment["verdict"] == "regressed"}
    assert report["why"]["parts"]
    grown = sum(part["after_ns"] - part["before_ns"] for part in report["why"]["parts"])
    assert grown == pytest.approx(report["why"]["step_after_ns"] - report["why"]["step_before_ns"], rel=0.1)


def test_a_lost_rank_is_inconclusive(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _check(runs, "lost") == 2
    assert "missing" in capsys.readouterr().out.splitlines()[0]
    assert _check(runs, "lost", "--inconclusive", "warn") == 0
    assert _check(runs, "lost", "--inconclusive", "fail") == 1


def test_copies_are_written_and_history_kept(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copies = f"markdown={tmp_path / 'summary.md'},junit={tmp_path / 'check.xml'}"
    history = str(tmp_path / "runs.parquet")
    for _ in range(2):
        assert _check(runs, "again", "--write", copies, "--history", history, "--commit", "abc") == 0
    assert (tmp_path / "summary.md").read_text().count("usp-prof: pass") == 2, "a step summary is added to"
    assert (tmp_path / "check.xml").read_text().count("<?xml") == 1
    (tmp_path / "summary.md").write_text("as PowerShell writes it", encoding="utf-16")
    assert _check(runs, "again", "--write", copies) == 2
    assert "summary.md is not UTF-8 text" in capsys.readouterr().err
    assert (tmp_path / "summary.md").read_text(encoding="utf-16") == "as PowerShell writes it"
    assert main(["trend", history, "--metric", "step_time"]) == 0
    assert "2 runs" in capsys.readouterr().out


def test_bounds_and_limits_of_the_command_line(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _check(runs, "slow", "--max-regression", "step_time=90%,tokens_per_second=90%", "--min", "step_time=1") in (
        0,
        1,
    )
    verdicts = capsys.readouterr().out
    assert "step_time >= 1" in verdicts
    assert _check(runs, "again", "--min", "tokens_per_second=1e12") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "RUN"], "nothing to check against"),
        (["check", "RUN", "--baseline", "none.json"], "cannot read baseline"),
        (["check", "RUN", "--min", "mfu=high"], "is not a number"),
        (["check", "RUN", "--min", "mfu=nan"], "not a finite number"),
        (["check", "RUN", "--write", "pdf=x"], "no format"),
        (["check", "RUN", "--min", "mfu=1%", "--write", "json=no/such/folder"], "cannot write"),
        (["compare", "RUN"], "cannot be compared"),
    ],
)
def test_wrong_usage_exits_with_2(
    runs: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(runs / "again") if word == "RUN" else word for word in words]
    assert main([*arguments, *_cache(runs)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "hint:" in error


def test_runs_of_different_shape_cannot_form_a_baseline(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declared = Declaration.from_dict({"mesh": {"dp": 2}, "work": {"steps": 3}})
    write(declared, tmp_path / "small")
    words = ["baseline", "save", str(runs / "first"), str(tmp_path / "small"), "-o", str(tmp_path / "b.json")]
    assert main([*words, *_cache(runs)]) == 2
    assert "has another configuration than" in capsys.readouterr().err
    words = ["baseline", "save", str(runs / "first"), str(runs / "lost"), "-o", str(tmp_path / "b.json")]
    assert main([*words, *_cache(runs)]) == 2
    assert "no baseline can be made" in capsys.readouterr().err


def test_compare_shows_runs_next_to_each_other(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(runs / "first"), str(runs / "slow"), "--format", "json", *_cache(runs)]) == 0
    (pair,) = json.loads(capsys.readouterr().out)["pairs"]
    step = next(judgment for judgment in pair["judgements"] if judgment["key"] == "step_time")
    assert step["low"] > 0


def test_a_damaged_baseline_is_never_a_pass(runs: Path, tmp_path: Path) -> None:
    good = load(runs / "baseline.json")
    object.__setattr__(good.runs[0], "damage", (Damage("truncated", Severity.DATA_LOSS, 0),))
    save(good, tmp_path / "b.json")
    words = ["check", str(runs / "again"), "--baseline", str(tmp_path / "b.json")]
    assert main([*words, *_cache(runs)]) == 2


def test_the_pytest_plugin_fails_tests_on_regressions(
    runs: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USP_PROF_CACHE", str(runs / "cache"))
    pytester.makepyfile(
        f"""
        def test_repeat(assert_no_regression, usp_prof_run):
            run = usp_prof_run({str(runs / "again")!r})
            assert run is usp_prof_run({str(runs / "again")!r})
            assert assert_no_regression(run).verdict == "pass"

        def test_slow(assert_no_regression):
            assert_no_regression({str(runs / "slow")!r})

        def test_bound(assert_no_regression):
            assert_no_regression({str(runs / "slow")!r}, minimum={{"tokens_per_second": 1e12}}, inconclusive="warn",
                                 max_regression={{"step_time": "900%"}})
        """
    )
    baseline = ("--usp-prof-baseline", str(runs / "baseline.json"))
    result = pytester.runpytest(*baseline, "-p", "no:randomly", "-p", "no:cacheprovider")
    outcome = result.parseoutcomes()
    assert outcome["passed"] == 1
    assert outcome["failed"] == 2
    result.stdout.fnmatch_lines(["*regressed: *step_time*"])
