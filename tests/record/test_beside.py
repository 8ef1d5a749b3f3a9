"""Harmlessness of the recorder: other profilers, sessions, forks, interrupts and failures, in real processes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., "Outcome"]

PROGRAM = Path(__file__).parent / "programs" / "beside.py"

pytestmark = pytest.mark.trainer


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a program: its folder, its last line of output and its stderr."""

    folder: Path
    code: int
    output: str
    errors: str

    def names(self, path: str, prefix: str) -> Counter[str]:
        """Count the events of a trace whose names start with a prefix."""
        file = self.folder / path
        text = gzip.decompress(file.read_bytes()) if path.endswith(".gz") else file.read_bytes()
        events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
        return Counter(event["name"] for event in events if event["name"].startswith(prefix))

    def notes(self, path: str = "ours") -> list[str]:
        """Return the notes of the manifest."""
        notes: list[str] = json.loads((self.folder / path / "run.json").read_text())["notes"]
        return notes

    def traces(self) -> list[str]:
        """List the traces of all sessions."""
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.glob("*/rank*"))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a case of `programs/beside.py` in a process of its own."""

    def beside(case: str, *, code: int = 0) -> Outcome:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-X", "faulthandler", str(PROGRAM), case, str(tmp_path / "left")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, done.stderr[-3000:]
        assert ("trained" in done.stdout) == (code == 0)
        return Outcome(tmp_path / "left", done.returncode, done.stdout, done.stderr)

    return beside


STEPS_OF_OURS = {"ProfilerStep#1": 1, "ProfilerStep#2": 1, "ProfilerStep#3": 1}


@pytest.mark.parametrize(
    ("case", "products"),
    [
        ("theirs_around", 8),
        ("theirs_scheduled_around", 2),
        ("theirs_scheduled_within", 2),
        ("theirs_warming_within", 2),
        ("theirs_in_a_window", 8),
        ("theirs_in_a_step", 1),
        ("theirs_past_the_session", 1),
        ("theirs_legacy_in_a_window", 8),
    ],
)
def test_a_session_does_not_record_while_another_profiler_runs(run: Run, case: str, products: int) -> None:
    outcome = run(case)
    assert outcome.names("theirs.json", "aten::mm")["aten::mm"] == products
    assert outcome.traces() == []
    assert "RecordingWarning" in outcome.errors
    (note,) = outcome.notes()
    assert "to have both" in note


def test_a_range_that_another_profiler_cut_writes_to_no_freed_memory(run: Run) -> None:
    outcome = run("theirs_in_many_windows")
    assert outcome.names("theirs.json", "aten::mm") == {"aten::mm": 1}
    assert outcome.traces() == []


@pytest.mark.parametrize("case", ["theirs_before", "theirs_after"])
def test_consecutive_profilers_are_both_complete(run: Run, case: str) -> None:
    outcome = run(case)
    assert outcome.names("theirs.json", "aten::mm") == {"aten::mm": 1}
    assert outcome.names("ours/rank0.json.gz", "ProfilerStep") == STEPS_OF_OURS
    assert "RecordingWarning" not in outcome.errors


def test_the_first_of_two_sessions_records(run: Run) -> None:
    outcome = run("two_sessions")
    assert outcome.traces() == ["ours/rank0.json.gz"]
    assert outcome.names("ours/rank0.json.gz", "ProfilerStep") == STEPS_OF_OURS
    assert outcome.notes() == []
    (note,) = outcome.notes("second")
    assert "still open in this process" in note


def test_a_session_that_is_never_entered_reports_it_once(run: Run) -> None:
    outcome = run("never_entered")
    assert outcome.errors.count("never entered") == 1
    assert outcome.traces() == []


def test_a_session_that_is_entered_twice_records_once(run: Run) -> None:
    outcome = run("entered_twice")
    assert outcome.errors.count("a session records once") == 2
    assert outcome.names("ours/rank0.json.gz", "ProfilerStep") == STEPS_OF_OURS


def test_a_step_that_raised_does_not_count_and_the_loop_continues(run: Run) -> None:
    outcome = run("a_step_raises_and_the_loop_goes_on")
    assert outcome.names("ours/rank0.json.gz", "ProfilerStep") == {"ProfilerStep#1": 1, "ProfilerStep#3": 1}
    assert outcome.names("ours/rank0.json.gz", "train::cut") == {"train::cut step=2": 1}
    assert outcome.notes() == ["rank 0: step 2 counts as none, it ended with MemoryError: injected"]


@pytest.mark.parametrize("case", ["forked_loader", "forked_child_ends"])
def test_forked_processes_record_and_write_nothing(run: Run, case: str) -> None:
    outcome = run(case)
    steps = outcome.names("ours/rank0.json.gz", "ProfilerStep")
    assert steps == (STEPS_OF_OURS if case == "forked_loader" else {f"ProfilerStep#{step}": 1 for step in range(1, 7)})
    assert outcome.notes() == []


def test_forked_children_leave_with_their_own_status(run: Run) -> None:
    outcome = run("forked_children_leave")
    assert len(outcome.names("ours/rank0.json.gz", "ProfilerStep")) == 22
    assert outcome.traces() == ["ours/rank0.json.gz"]
    assert "still open in the process that this one was forked from" in outcome.errors
    assert outcome.errors.rstrip().endswith("after the session")


def test_forked_workers_end_while_a_session_records(run: Run) -> None:
    outcome = run("forked_workers")
    assert outcome.names("ours/rank0.json.gz", "ProfilerStep") == STEPS_OF_OURS


def test_an_interrupt_keeps_the_complete_steps(run: Run) -> None:
    outcome = run("interrupted", code=-2)
    assert outcome.errors.rstrip().endswith("KeyboardInterrupt")
    assert outcome.names("ours/rank0.json.gz", "ProfilerStep") == STEPS_OF_OURS
    assert outcome.names("ours/rank0.json.gz", "train::cut") == {"train::cut step=4": 1}


@pytest.mark.parametrize(
    "case",
    ["ended_on_another_thread", "ended_beside_a_thread_that_goes_on", "steps_on_another_thread_than_the_window"],
)
def test_a_window_that_moves_to_another_thread_is_dropped_and_its_profiler_stopped(run: Run, case: str) -> None:
    outcome = run(case)
    assert outcome.traces() == ["second/rank0.json.gz"]
    assert outcome.names("second/rank0.json.gz", "ProfilerStep") == STEPS_OF_OURS
    assert outcome.notes("second") == []
    (note,) = outcome.notes()
    assert "began on another thread" in note
    if case == "ended_on_another_thread":
        assert outcome.names("theirs.json", "aten::mm") == {"aten::mm": 1}
    if case == "ended_beside_a_thread_that_goes_on":
        (note,) = outcome.notes("early")
        assert "the window of an earlier session is still open on thread loop" in note


def test_an_internal_failure_ends_the_recording_not_the_training(run: Run) -> None:
    outcome = run("our_failure")
    assert "beginning the recording failed" in outcome.errors
    assert outcome.traces() == []
