"""Time of unrecorded steps, which the recorder measures before its window."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from usp_prof import record

if TYPE_CHECKING:
    from pathlib import Path

STEP_S = 0.02
OPTIONS: dict[str, Any] = {"peak_flops": 1e9, "warmup": 1, "active": 1}


def unrecorded(folder: Path, *, wait: int, slow: int = -1, failing: int = -1) -> float | None:
    """Record the step behind `wait` and a warm-up; gives what the manifest says of the steps before it, in ns."""
    with record.session(folder, wait=wait, **OPTIONS) as session:
        for number in range(wait + 2):
            with suppress(ZeroDivisionError), session.step():
                time.sleep(0.5 if number == slow else STEP_S)
                assert 1 / (number - failing)
    times: dict[str, float] = json.loads((folder / "run.json").read_text())["unrecorded_step_ns"]
    return times.get("0")


@pytest.mark.parametrize("wait", [5, 8, 40])
def test_the_mean_step_before_the_window_is_in_the_manifest(wait: int, tmp_path: Path) -> None:
    mean = unrecorded(tmp_path, wait=wait)
    assert mean is not None
    assert STEP_S * 1e9 <= mean < 1.5 * STEP_S * 1e9


@pytest.mark.parametrize("wait", [0, 4])
def test_fewer_than_three_settled_steps_have_no_unrecorded_time(wait: int, tmp_path: Path) -> None:
    assert unrecorded(tmp_path, wait=wait) is None


@pytest.mark.parametrize("slow", [0, 1, 5, 6])
def test_the_first_two_steps_and_those_from_the_warm_up_on_do_not_count(slow: int, tmp_path: Path) -> None:
    mean = unrecorded(tmp_path, wait=5, slow=slow)
    assert mean is not None
    assert mean < 1.5 * STEP_S * 1e9


def test_a_step_that_raised_spoils_the_time(tmp_path: Path) -> None:
    assert unrecorded(tmp_path, wait=6, failing=4) is None
