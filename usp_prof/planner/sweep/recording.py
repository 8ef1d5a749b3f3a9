"""Recording: one cell of a sweep run once more with its traces, for the planner to learn from."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from usp_prof.model.errors import InputError
from usp_prof.planner.sweep import outcome, runner

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.planner.sweep.runner import Sweep

FOLDER = "recorded"


def recorded(folder: Path, sweep: Sweep, cell: str, timeout: float) -> Path:
    """Record a cell by name, unless its traces are there; gives their folder."""
    chosen = next(each for each in sweep.cells if each.name == cell)
    traces = folder / FOLDER / chosen.name
    if (traces / "run.json").exists():
        return traces
    words = [*sweep.words(chosen), "--profile", "--output", str(traces)]
    try:
        ended = subprocess.run(  # noqa: S603 - the trainer
            words, capture_output=True, text=True, timeout=timeout, check=False, env=runner.environment()
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"{cell} took longer than --timeout while it was recorded") from error
    if ended.returncode or not (traces / "run.json").exists():
        _, reason = outcome.failure(ended.returncode, ended.stderr)
        raise InputError(f"{cell} could not be recorded: {reason}")
    return traces
