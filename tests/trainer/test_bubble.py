"""Is a paced pipeline's bubble that of its schedule? Measured against the simulated ideal, at pp 4, 8 micro-batches.

DualPipeV is left out: torch runs an overlapped pair of a forward and a backward as one action and sends what the
first of them made only after both, which no simulation of single actions knows (11.7 against 5.8 %).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from trainer_fleet import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.trainer, pytest.mark.timed]
BOUNDS = {"gpipe": 0.02, "1f1b": 0.02, "interleaved": 0.02, "interleaved-zb": 0.03, "zbv": 0.02}


@pytest.mark.parametrize("schedule", BOUNDS)
def test_measured_bubble_is_near_the_ideal(schedule: str, tmp_path: Path) -> None:
    sizes = "--pp 4 --micro-batches 8 --layers 8 --sequence 16 --pace 100,100,100"
    window = "--steps 4 --profile --profile-skip 2 --profile-steps 1 --no-profile-memory"
    command = f"-m torch.distributed.run --nproc-per-node 4 trainer/run.py {sizes} {window} --schedule {schedule}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = [sys.executable, *command.split(), "--output", str(tmp_path / "run")]
    subprocess.run(run, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=200)
    ask = [sys.executable, "-m", "usp_prof.cli.app", "analyze", str(tmp_path / "run"), "--format", "json"]
    report = json.loads(subprocess.run(ask, cwd=ROOT, check=True, capture_output=True, timeout=100).stdout)
    figures = {metric["id"]: metric["value"] for metric in report["metrics"] if not metric["dims"]}
    excess = figures["bubble_fraction"] - figures["bubble_ideal_fraction"]
    assert -0.005 <= excess <= BOUNDS[schedule]
