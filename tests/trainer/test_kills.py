"""Kills of a job: every survivor, a rank that was not itself killed by SIGKILL, keeps its trace."""

from __future__ import annotations

import gzip
import json
import os
import signal
import time
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from trainer_fleet import finish, process_of, start, torchrun

if TYPE_CHECKING:
    import subprocess

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(300)]

LAYOUTS = ("--dp 2", "--pp 2 --micro-batches 4")
PROCESSES = {"one process": 1, "--dp 2 --pp 2": 4}
"""Processes of the other layouts; those of `LAYOUTS` have two."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
TARGETS = ("rank 0", "rank 1", "torchrun")
MOMENTS = ("in the window", "while writing")
EVERY = [
    *product(LAYOUTS, SIGNALS, TARGETS, MOMENTS),
    *product(["one process"], SIGNALS[:2], ["rank 0"], MOMENTS),
    *product(LAYOUTS[:1], [signal.SIGHUP], ["rank 1", "torchrun"], MOMENTS),
    *product(["--dp 2 --pp 2"], SIGNALS[:2], ["torchrun"], ["in the window"]),
]
IN_CI = [
    ("--dp 2", signal.SIGKILL, "rank 1", "while writing"),
    ("--dp 2", signal.SIGKILL, "torchrun", "in the window"),
    ("--dp 2", signal.SIGHUP, "torchrun", "in the window"),
    ("--pp 2 --micro-batches 4", signal.SIGTERM, "torchrun", "while writing"),
]
CASES = [pytest.param(*case, marks=[] if case in IN_CI else [pytest.mark.full]) for case in EVERY]
RECORDED = 12
"""Steps of a window whose trace takes seconds to write."""


def begin(layout: str, folder: Path, recorded: int) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a run that would train for hours; return its launch and the processes of its ranks."""
    processes = PROCESSES.get(layout, 2)
    profile = f"--profile --profile-skip 0 --profile-steps {recorded} --output {folder}"
    options = f"--device cpu --metrics json --steps 1000000 --timeout 60 {profile}"
    launch = start(
        [*torchrun(processes), "trainer/run.py", *options.split(), *(layout.split() if processes > 1 else [])]
    )
    assert launch.stdout is not None
    for line in launch.stdout:
        if line.startswith("{") and json.loads(line)["step"] == 4:
            break
    return launch, [process_of(launch, rank) for rank in range(processes)]


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_a_rank_that_waits_for_a_frozen_one_keeps_its_trace(tmp_path: Path, number: signal.Signals) -> None:
    launch, ranks = begin("--dp 2", tmp_path / "run", 500_000)
    os.kill(ranks[1], signal.SIGSTOP)
    time.sleep(1)
    os.kill(launch.pid, number)
    deadline = time.monotonic() + 60
    while is_alive(ranks[0]) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.kill(ranks[1], signal.SIGKILL)
    _, error = finish(launch, 120)
    assert (tmp_path / "run" / "rank0.json.gz").exists(), error[-3000:]


def is_alive(process: int) -> bool:
    """Return whether a process runs; those that ended and were not waited for do not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(("layout", "number", "target", "moment"), CASES)
def test_no_survivor_loses_its_trace(
    tmp_path: Path, layout: str, number: signal.Signals, target: str, moment: str
) -> None:
    writes = moment == "while writing"
    folder = tmp_path / "run"
    launch, ranks = begin(layout, folder, RECORDED if writes else 500_000)
    if writes:
        while not list(folder.glob(".recording-*/*")):
            time.sleep(0.005)
    victim = launch.pid if target == "torchrun" else ranks[int(target.removeprefix("rank "))]
    os.kill(victim, number)
    if target == "torchrun" and number == signal.SIGKILL:
        launch.wait(10)
        deadline = time.monotonic() + 100
        while any(map(is_alive, ranks)):  # they end without torchrun
            assert time.monotonic() < deadline, "the ranks go on without torchrun"
            time.sleep(0.2)
        launch.stdout.close()
        error = launch.stderr.read()
        launch.stderr.close()
    else:
        _, error = finish(launch, 120)
    survivors = [rank for rank, process in enumerate(ranks) if (process, number) != (victim, signal.SIGKILL)]
    for rank in survivors:
        path = folder / f"rank{rank}.json.gz"
        assert path.exists(), f"rank {rank} lost its trace\n{error[-3000:]}"
        names = [event.get("name", "") for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]]
        assert sum(name.startswith("ProfilerStep") for name in names) >= 1
    assert 'trainer/run.py", line' not in error, "a traceback of ours"
