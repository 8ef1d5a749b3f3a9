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


def unrecorded(
    folder: Path, *, wait: int, slow: int = -1, failing: int = -1, sleeps: list[tuple[int, int]] | None = None
) -> float | None:
    """Record the step after `wait` and a warm-up; return the manifest's time of the earlier steps in ns.

    The begin and end of each step's sleep are appended to `sleeps`.
    """
    with record.session(folder, wait=wait, **OPTIONS) as session:
        for number in range(wait + 2):
            with suppress(ZeroDivisionError), session.step():
                begin = time.perf_counter_ns()
                time.sleep(0.5 if number == slow else STEP_S)
                if sleeps is not None:
                    sleeps.append((begin, time.perf_counter_ns()))
                assert 1 / (number - failing)
    times: dict[str, float] = json.loads((folder / "run.json").read_text())["unrecorded_step_ns"]
    return times.get("0")


@pytest.mark.parametrize("wait", [5, 8, 40])
def test_the_mean_step_before_the_window_is_in_the_manifest(wait: int, tmp_path: Path) -> None:
    sleeps: list[tuple[int, int]] = []
    mean = unrecorded(tmp_path, wait=wait, sleeps=sleeps)
    first = max(2, wait - 32)
    least = sleeps[wait - 1][1] - sleeps[first][0]
    most = sleeps[wait][0] - sleeps[first - 1][1]
    assert mean is not None
    assert least <= mean * (wait - first) <= most


@pytest.mark.parametrize("wait", [0, 4])
def test_fewer_than_three_settled_steps_have_no_unrecorded_time(wait: int, tmp_path: Path) -> None:
    assert unrecorded(tmp_path, wait=wait) is None


@pytest.mark.parametrize("slow", [0, 1, 5, 6])
def test_the_first_two_steps_and_those_from_the_warm_up_on_do_not_count(slow: int, tmp_path: Path) -> None:
    mean = unrecorded(tmp_path, wait=5, slow=slow)
    assert mean is not None
    assert mean < 0.1e9  # 0.5 s in any of the three timed steps would result in 0.18 s


def test_a_step_that_raised_makes_the_unrecorded_time_unknown(tmp_path: Path) -> None:
    assert unrecorded(tmp_path, wait=6, failing=4) is None
