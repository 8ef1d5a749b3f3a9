"""Bubble of a paced pipeline: measured against the simulated ideal of its schedule, at pp 4, 8 micro-batches.

The step is the median of three. A schedule disturbed by a busy machine is recorded again, at most twice.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import pytest
from trainer_fleet import finish, start, torchrun

from trainer.configuration.options import SCHEDULES
from usp_prof import open_run
from usp_prof.analyses import pipeline

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.trainer, pytest.mark.timed, pytest.mark.timeout(900)]
BOUND = 0.02
SIZES = "--pp 4 --micro-batches 8 --layers 8 --sequence 16 --pace 100,100,100"
WINDOW = "--steps 4 --profile --profile-skip 0 --profile-steps 3 --no-profile-memory"


def excess(folder: Path, schedule: str) -> float:
    process = start(
        [*torchrun(4), "trainer/run.py", *f"{SIZES} {WINDOW} --schedule {schedule}".split(), "--output", str(folder)]
    )
    _, err = finish(process, 250)
    assert process.returncode == 0, err
    result = pipeline.compute(open_run(folder).tables)
    steps = {cell.step for cell in result.cells}
    assert len(steps) == 3
    return median(result.bubble_fraction(step) for step in steps) - result.bubbles.measured


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_measured_bubble_is_near_the_ideal(schedule: str, tmp_path: Path) -> None:
    excesses = []
    for attempt in range(3):
        excesses.append(excess(tmp_path / str(attempt), schedule))
        if -0.005 <= excesses[-1] <= BOUND:
            return
    pytest.fail(f"measured bubbles are off the ideal by {excesses}")
