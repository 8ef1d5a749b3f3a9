"""`usp-prof whatif`: the command, its formats, and the files it writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pyarrow.compute as pc
import pytest

from usp_prof.analyses import step_time
from usp_prof.cli.app import main
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write
from usp_prof.run import open_run

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "report.schema.json").read_text())
SCALE = {"ns": 1, "μs": 1e3, "ms": 1e6}
DECLARED = {
    "mesh": {"dp": 2, "pp": 2}, "seed": 5, "shape": {"layers": 2}, "work": {"steps": 3, "micro_batches": 3},
    "faults": [{"kind": "slow_rank", "rank": 1, "factor": 1.4}],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("whatif")
    write(Declaration.from_dict(DECLARED), made / "run")
    return made


@pytest.fixture(autouse=True)
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USP_PROF_CACHE", str(folder / "cache"))


def mean_step(path: Path, folder: Path) -> float:
    times = step_time.compute(open_run(path, cache_dir=folder / "cache").tables)
    return float((times.end_ns - times.start_ns).mean())


def test_the_terminal_compares_before_and_after(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(folder / "run"), "--edit", "rank_as_peers=1", "--edit", "zero=3"]) == 0
    text = capsys.readouterr().out
    assert "gain" in text
    assert "gain together" in text
    assert "MFU (palm)" in text
    assert "idle: pipeline" in text
    assert "optimizer" in text, "the memory that sharding saves"
    assert "communication that the changes add" in text


def test_the_parts_before_and_after_add_up_to_the_step(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pause = {
        "kind": "gc_pause",
        "rank": 2,
        "step": 10,
        "delay_ns": 30_000_000,
    }  # the first step differs from the others
    write(Declaration.from_dict(DECLARED | {"faults": [pause]}), tmp_path / "run")
    assert main(["whatif", str(tmp_path / "run"), "--edit", "comm_removed,axis=dp"]) == 0
    rows = capsys.readouterr().out.partition("after\n")[2].partition("MFU")[0].splitlines()
    times = [[float(number) * SCALE[unit] for number, unit in re.findall(r"([\d.]+) (ns|μs|ms)", row)] for row in rows]
    step, *parts = (time for time in times if time)
    for side in (0, 1):
        assert sum(part[side] for part in parts) == pytest.approx(step[side], rel=0.01)


@pytest.mark.parametrize(("ranks", "says"), [("0-3", "mean rank step"), ("0,1", "mean step of 2 ranks")])
def test_a_mean_names_its_ranks(ranks: str, says: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(folder / "run"), "--ranks", ranks, "--edit", "comm_faster=2"]) == 0
    assert capsys.readouterr().out.count(says) == 2  # next to the step, and above the parts before and after


def test_json_is_the_predicted_runs_report_with_the_recorded_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", str(folder / "run"), "--edit", "rank_as_peers=1", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, SCHEMA)
    jsonschema.validate(data, {"$ref": "#/$defs/WhatIfJson", "$defs": SCHEMA["$defs"]})
    change = data["prediction"]["together"]
    assert change["edits"] == ["rank_as_peers=1"]
    assert 0 < change["gain_fraction"] < 0.3
    steps = [
        [metric["value"] for metric in side["metrics"] if metric["id"] == "step_time" and not metric["dims"]]
        for side in (data["before"], data)
    ]
    assert steps[1][0] < steps[0][0]
    assert data["prediction"]["memory_before"] == data["prediction"]["memory_after"]


@pytest.mark.parametrize("edit", ["rank_as_peers=1", "schedule=zb-h1"])
def test_a_predicted_folder_has_the_predicted_step(
    edit: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "predicted"
    assert main(["whatif", str(folder / "run"), "--edit", edit, "--format", "json", "-o", str(out)]) == 0
    change = json.loads(capsys.readouterr().out)["prediction"]["together"]
    assert mean_step(out, folder) == pytest.approx(change["after_ns"], rel=0.01)
    assert main(["whatif", str(folder / "run"), "--edit", edit, "-o", str(out)]) == 2
    assert "is there already" in capsys.readouterr().err


def test_a_predicted_file_has_all_ranks_as_named_processes(folder: Path, tmp_path: Path) -> None:
    out, apart = tmp_path / "predicted.json", tmp_path / "apart"
    for path in (out, apart):
        assert main(["whatif", str(folder / "run"), "--edit", "rank_as_peers=1", "-o", str(path)]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert all(any(name.startswith(f"rank {rank} ") for name in names) for rank in range(4))
    marks = [event for event in events if event["name"].startswith("ProfilerStep#")]
    assert len(marks) == 4 * 3
    kernels = [(event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") == "kernel"]
    again = open_run(apart, cache_dir=folder / "cache").tables.arrow("kernels").filter(pc.field("kind") != "memcpy")
    begin = again["start_ns"].to_numpy()
    span = (begin + again["dur_ns"].to_numpy()).max() - begin.min()
    assert len(kernels) == again.num_rows
    assert max(end for _, end in kernels) - min(start for start, _ in kernels) == pytest.approx(span / 1e3, abs=0.01)


def test_the_ideal_names_the_slow_rank(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(folder / "run"), "--ideal", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["slowdown"] == pytest.approx(data["step_ns"] / data["ideal_ns"])
    first = next(part for part in data["parts"] if part["what"] == "rank")
    assert first["name"] == "1"
    assert main(["whatif", str(folder / "run"), "--ideal"]) == 0
    text = capsys.readouterr().out
    assert "job slowdown " in text
    shares = re.findall(r"^  (axis|rank|stage|\w+ actions) .* (-?[0-9.]+)$", text, re.MULTILINE)
    assert all(float(share) >= 0.5 for _, share in shares)
    assert [float(share) for _, share in shares] == sorted((float(share) for _, share in shares), reverse=True)
    hidden = int(match[1]) if (match := re.search(r"^  (\d+) more parts? below 0.5%", text, re.MULTILINE)) else 0
    assert len(shares) + hidden == len(data["parts"])
    assert hidden > 0


PUBLISHED = Path(__file__).parents[2].parent / "shared" / "traces" / "straggler-timelines"


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published timelines are not available next to the project")
@pytest.mark.parametrize("job", ["ST", "AR"])
def test_the_command_reads_published_operation_tables(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    truth = json.loads((PUBLISHED / f"ms-{job}.json").read_text())
    assert main(["whatif", str(PUBLISHED / f"trace-{job}.parquet"), "--ideal", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ideal_ns"] == pytest.approx(truth["tideal"] * 1e9, rel=0.015)
    assert data["slowdown"] == pytest.approx(truth["tori"] / truth["tideal"], rel=0.015)
    assert main(["whatif", str(PUBLISHED / f"trace-{job}.parquet"), "--ideal"]) == 0
    assert "last stage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no edit was given"),
        (["--edit", "zero=9"], "stages 0 to 3"),
        (["--ideal", "--edit", "zero=1"], "takes no edits"),
        (["--edit", "tp=4"], "hint: record a run with tp"),
    ],
)
def test_usage_errors_name_the_problem(
    words: list[str], says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", str(folder / "run"), *words]) == 2
    assert says in capsys.readouterr().err


def test_the_list_has_a_sentence_for_each_edit(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # no sentence is wrapped
    assert main(["whatif", str(folder / "run"), "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) % 2 == 0
    assert all(line.startswith("    ") for line in lines[1::2])
    assert any(line.startswith("schedule=") for line in lines[::2])
    assert any(line.startswith("recompute=") for line in lines[::2])
