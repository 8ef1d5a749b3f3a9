"""`usp-prof analyze`: from trace files to each output format."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from tiny import Trace, write

from usp_prof.cli.app import main
from usp_prof.report.build import analyze, build
from usp_prof.report.writers import json_text
from usp_prof.run import open_run

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "report.schema.json").read_text())
MS = 1_000_000


def trace(rank: int) -> Trace:
    """Make two 10 ms steps: compute, then an all-reduce for which rank 1 is late."""
    made = Trace(rank=rank, world=2).group("1", [0, 1], "mesh_tp")
    for number in range(2):
        at = number * 10 * MS
        made.step(number + 5, at, 10 * MS)
        late = rank * MS
        made.kernel("gemm", at + MS, 4 * MS + late, launch_at=at + 100)
        made.collective("all_reduce", at + 5 * MS + late, 2 * MS - late, launch_at=at + 200, group="1", nelems=1 << 20)
    return made


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("USP_PROF_CACHE", str(tmp_path / "cache"))
    return write({rank: trace(rank) for rank in range(2)}, tmp_path / "run")


def test_the_command_reports_the_same_as_the_library(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    next(path for path in run.iterdir() if "1" in path.stem).unlink()
    assert main(["analyze", str(run), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    opened = open_run(run)
    own = json.loads(json_text.write(build(opened.tables, analyze(opened.tables), name=opened.name)))
    assert report == own
    assert any(row["code"] == "rules_skipped" for row in report["health"])
    assert main(["analyze", str(run)]) == 0
    assert "rules skipped for lack of " in capsys.readouterr().out


def test_the_terminal_shows_run_step_and_parts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(run)]) == 0
    text = capsys.readouterr().out
    assert "2 ranks, tp=2" in text
    assert "Where the mean rank step goes" in text
    assert "exposed tp" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text


def test_sections_are_shown_on_demand(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(run), "--section", "breakdown", "--section", "health"]) == 0
    text = capsys.readouterr().out
    assert "By rank" in text
    assert "Health of the traces" in text


def test_json_keeps_to_the_published_schema_and_adds_up(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The end of the recording cuts step 6, so only a selection includes it."""
    assert main(["analyze", str(run), "--format", "json", "--steps", "5:6"]) == 0
    report = json.loads(capsys.readouterr().out)
    jsonschema.validate(report, SCHEMA)
    assert report["run"]["ranks"] == [0, 1]
    assert report["run"]["world_size"] == 2
    assert report["run"]["axes"] == {"tp": 2}
    assert report["run"]["steps"] == [5, 6]
    by = {(metric["id"], *sorted(metric["dims"].items())): metric["value"] for metric in report["metrics"]}
    for rank in (0, 1):
        for step in (5, 6):
            place = (("rank", rank), ("step", step))
            parts = [by["compute_time", *place], by["memcpy_time", *place]]
            parts += [value for key, value in by.items() if key[0] == "exposed_comm_time" and key[2:] == place]
            parts += [value for key, value in by.items() if key[0] == "idle_time" and key[2:] == place]
            assert sum(parts) == by["step_time", *place]


@pytest.mark.parametrize(("form", "content"), [("markdown", "## usp-prof: run"), ("html", "<!DOCTYPE html>")])
def test_reports_are_written_to_files(run: Path, tmp_path: Path, form: str, content: str) -> None:
    out = tmp_path / "report"
    assert main(["analyze", str(run), "--format", form, "-o", str(out), "-q"]) == 0
    assert out.read_text().startswith(content)


def test_a_file_that_cannot_be_written_is_reported(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", str(run), "--format", "json", "-o", str(tmp_path / "no" / "file")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_steps_and_ranks_can_be_selected(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(run), "--format", "json", "--steps", "6:", "--ranks", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["run"]["ranks"], report["run"]["steps"]) == ([1], [6])


@pytest.mark.parametrize(("steps", "left"), [("5", [5]), (":5", [5]), ("5:6", [5, 6]), ("6:9", [6])])
def test_step_ranges_are_parsed(run: Path, capsys: pytest.CaptureFixture[str], steps: str, left: list[int]) -> None:
    assert main(["analyze", str(run), "--format", "json", "--steps", steps]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["steps"] == left


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "x"], "not a range of steps"),
        (["--steps", ":"], "not a range of steps"),
        (["--steps", "7:3"], "ends before it begins"),
        (["--only", "breakdwon"], "did you mean breakdown"),
        (
            ["--only", "xyzzy"],
            "choose from breakdown, clock, collectives, cp, critical_path, host, kernels, memory, mfu",
        ),
        (["-o", "file"], "add --format"),
        (["--ranks", "1,5-7"], "has no rank 5-7"),
        (["--ranks", "x"], "list of numbers"),
        (["--steps", "99"], "has no step 99"),
        (["--steps", "99:"], "has no step 99 or later"),
        (["--run", "other"], "no run is named"),
        (["--model", "nowhere.json"], "cannot read model description"),
    ],
)
def test_usage_errors_state_what_to_do(
    run: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["analyze", str(run), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_rank_shown_alone_keeps_its_figures(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures_by_report = []
    for words in ([], ["--ranks", "0"]):
        assert main(["analyze", str(run), "--format", "json", *words]) == 0
        metrics = json.loads(capsys.readouterr().out)["metrics"]
        of_rank_0 = [metric for metric in metrics if metric["dims"].get("rank") == 0]
        figures_by_report.append(
            {(metric["id"], *sorted(metric["dims"].items())): metric["value"] for metric in of_rank_0}
        )
    assert "wait_time" in {key[0] for key in figures_by_report[0]}
    assert figures_by_report[0] == figures_by_report[1]


def test_a_single_analysis_can_be_requested(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(run), "--only", "breakdown", "--format", "json"]) == 0
    ids = {metric["id"] for metric in json.loads(capsys.readouterr().out)["metrics"]}
    assert "compute_time" in ids
    assert "comm_time" not in ids


def test_the_newest_of_several_runs_is_shown_unless_all_are_requested(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {rank: trace(rank) for rank in range(2)}
    for rank_trace in other.values():
        rank_trace.base += 3_600_000_000_000
    write(other, run.parent / "later")
    (run.parent / "both").mkdir()
    run.rename(run.parent / "both" / "run")
    (run.parent / "later").rename(run.parent / "both" / "later")
    both = str(run.parent / "both")
    assert main(["analyze", both]) == 0
    text = capsys.readouterr().out
    assert "1 other run here" in text
    assert main(["analyze", both, "--run", "all", "--format", "json"]) == 0
    reports = json.loads(capsys.readouterr().out)
    jsonschema.validate(reports, SCHEMA)
    assert len({report["run"]["name"] for report in reports["reports"]}) == 2
    assert main(["analyze", both, "--run", "all"]) == 0
    assert capsys.readouterr().out.count("usp-prof ") >= 2
