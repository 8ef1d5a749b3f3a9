"""Predictions of runs with missing steps: the screen names what they leave out and what they cannot know."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING

from usp_prof.cli.app import main
from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write
from usp_prof.findings import find_all
from usp_prof.findings.repairs import repairs_of
from usp_prof.replay.step_times import unedited
from usp_prof.run import open_run

if TYPE_CHECKING:
    import pytest

    from usp_prof.run import Run

TRACES = Path(__file__).parents[2] / "traces"


def _job(folder: Path, *, lacks_steps: bool) -> Run:
    """Make four ranks, of which rank 1 is slow; rank 3 may lack the last two of five steps."""
    fault = {"kind": "slow_rank", "rank": 1, "factor": 1.4}
    declared = {"mesh": {"dp": 4}, "work": {"steps": 5, "micro_batches": 2}, "faults": [fault]}
    write(Declaration.from_dict(declared), folder)
    if lacks_steps:
        (file,) = (path for path in folder.iterdir() if "3" in path.name and path.name != "run.json")
        trace = json.loads(gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes())
        events = trace["traceEvents"]
        last = max(event["ts"] + event.get("dur", 0) for event in events if event.get("name") == "ProfilerStep#12")
        trace["traceEvents"] = [event for event in events if event.get("ts", 0) < last]
        text = json.dumps(trace).encode()
        file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)
    return open_run(folder, cache_dir=folder.parent / "cache")


def test_repairs_are_not_judged_if_a_rank_lacks_steps(tmp_path: Path) -> None:
    assert [repair.rank for repair in repairs_of(_job(tmp_path / "whole", lacks_steps=False).tables)] == [1]
    assert not repairs_of(_job(tmp_path / "lacks", lacks_steps=True).tables)


def test_whatif_says_that_a_rank_lacks_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, lacks_steps in (("whole", False), ("lacks", True)):
        _job(tmp_path / name, lacks_steps=lacks_steps)
        options = ["--edit", "rank_as_peers=1", "--cache-dir", str(tmp_path / "cache")]
        assert main(["whatif", str(tmp_path / name), *options]) == 0
        doubt = "The gain may be wrong: it needs complete traces of all ranks (steps_missing of rank 3)."
        assert (doubt in " ".join(capsys.readouterr().out.split())) is lacks_steps


def test_gains_and_figures_are_of_the_same_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The recording ended before the last step's wait for input, so the mean was 60.1 ms here and 68.2 ms there."""
    run = open_run(TRACES / "gpu-late-input", cache_dir=tmp_path)
    (row,) = (row for row in run.health if row.code == "steps_cut")
    assert "before step 29 did" in row.detail
    (cost,) = (row for row in find_all(run.tables).skipped if row.code == "recording_cost")
    assert "a step of 68.2 ms;" in cost.detail
    options = ["--edit", "no_input_wait", "--cache-dir", str(tmp_path)]
    assert main(["whatif", str(TRACES / "gpu-late-input"), *options]) == 0
    assert "Without step 29: the recording of a rank ended before it did." in capsys.readouterr().out
    assert float(run.breakdown().df["step_ns"].mean()) == unedited(run.tables).mean_measured_ns
    (late,) = (finding for finding in find_all(run.tables).findings if finding.code == "late-input")
    assert late.evidence["loading_ns_per_step"] == run.host().df["input_ns"].item()
