"""Smoke test of the whole product: record four ranks, show where steps go, the fault, and the gain of its fix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from drawn import drawn, naming

from usp_prof.cli.app import main

ROOT = Path(__file__).parents[2]
PACED = "--dp 4 --layers 2 --batch 4 --micro-batches 1 --pace 30,30,30 --steps 6 --profile --profile-steps 3"
FAULT = "--fault slow-rank:rank=2,factor=3"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record the trainer on four processes, like the README's demo on eight."""
    folder = tmp_path_factory.mktemp("mission") / "run"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*launch, "trainer/run.py", "--device", "cpu", *PACED.split(), *FAULT.split(), "--output", folder],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def answer(capsys: pytest.CaptureFixture[str], cache: Path, *words: str) -> dict[str, Any]:
    """Run a command and return its JSON output."""
    assert main([*words, "--format", "json", "--cache-dir", str(cache)]) == 0
    return json.loads(capsys.readouterr().out)


def of_all_ranks(answered: dict[str, Any], metric: str) -> float:
    return next(row["value"] for row in answered["metrics"] if row["id"] == metric and not row["dims"])


def test_every_rank_is_recorded(run: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = answer(capsys, cache, "info", str(run))
    assert info["axes"] == {"dp": 4}
    assert [(rank["rank"], rank["steps"], rank["collectives"] > 0) for rank in info["ranks"]] == [
        (rank, 3, True) for rank in range(4)
    ]


def test_the_report_names_the_slow_rank_and_a_fix_saves_what_it_costs(
    run: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = answer(capsys, cache, "analyze", str(run))
    step_time = of_all_ranks(report, "step_time")
    parts = ("compute_time", "exposed_comm_time", "memcpy_time", "idle_time")
    assert sum(of_all_ranks(report, part) for part in parts) == pytest.approx(step_time)
    slow = next(finding for finding in report["findings"] if finding["code"] == "slow-rank")
    assert "2" in slow["edit"]
    assert slow["gain_fraction"] > 0.3
    repaired = answer(capsys, cache, "whatif", str(run), "--edit", slow["edit"])
    assert of_all_ranks(repaired, "step_time") == pytest.approx(step_time * (1 - slow["gain_fraction"]), rel=0.01)


def test_the_dashboard_shows_the_run(run: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with naming([run], cache, monkeypatch):
        texts = [text.value for text in drawn("overview").markdown]
    assert any("2 compute" in text and "as long as" in text for text in texts)
