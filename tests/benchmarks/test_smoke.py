"""Smoke test of benchmarks: a small run of each ends without a traceback, with its bars met or missed."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SMALL = (
    "analyze --megabytes 4 --rounds 1",
    "analyze --findings 8 --events 2000 --rounds 1",
    "cross_rank --ranks 8 --events 2000",
    "dashboard_speed --ranks 2 --slices 20000 --parts prepare tile",
    "gate --checks 4",
    "made_runs --cases 1 --seed 2",
    "planner",
    "planner_physics --checks 200",
    "planner_sources",
    "read --megabytes 4 --rounds 1",
    "record_overhead --pairs 4 --width 16",
    "repairs --cases 1 --seed 3 --clean 1",
    "scale --ranks 8 --events 2000",
    "simulated --seeds 400 --kinds ddp tp --faults pause slow_gpu",
)
"""Benchmarks with options that make them take seconds."""
WITH_SMALL_RUN = {command.split()[0] for command in SMALL}
OTHERS = {
    "cluster": "starts Dask workers and a server: minutes",
    "injected": "takes minutes; tests/whatif/test_injected_delays.py runs a part of it",
    "injected_again": "takes minutes; tests/whatif/test_second_injection.py runs a part of it",
    "made_changes": "takes a minute; tests/whatif/test_made_changes.py runs a part of it",
    "metamorphic": "takes minutes; tests/whatif/test_metamorphic.py runs a part of it",
    "dashboard_links": "drives a browser for minutes",
    "object_store": "needs nginx",
    "plain_trainer": "plain_trainers records it",
    "plain_trainers": "records for minutes",
    "planner_messages": "starts torchrun a dozen times",
    "planner_size": "plans a million configurations: its bar",
    "recorded": "records for an hour",
}
"""Benchmarks that have no small run: they are only imported."""


def scripts() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.py") if "def main(" in path.read_text())


def test_each_benchmark_has_a_smoke_run_or_a_reason() -> None:
    modules = {"large_trace", "planner_fit"}
    assert set(scripts()) - modules == {*WITH_SMALL_RUN, *OTHERS}


@pytest.mark.parametrize("command", SMALL)
def test_a_small_run_of_each_benchmark_succeeds(command: str, tmp_path: Path) -> None:
    name, *options = command.split()
    words = [sys.executable, FOLDER / f"{name}.py", *options]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert "failed:" not in done.stderr


@pytest.mark.parametrize("path", sorted(set(FOLDER.glob("*.py")) - {FOLDER / f"{name}.py" for name in WITH_SMALL_RUN}))
def test_other_benchmark_files_can_be_imported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    assert runpy.run_path(str(path))["__doc__"]
