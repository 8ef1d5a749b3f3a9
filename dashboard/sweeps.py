"""Sweeps that were named at the start: their folders, and the cells that have ended by now."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from .engine import UspProfError, rows_of_sweep, sweep_runner

if TYPE_CHECKING:
    from .engine import SweepRow

FOLDERS_VARIABLE = "USP_PROF_DASHBOARD_SWEEPS"


def folders() -> tuple[str, ...]:
    """Give the folders of sweeps that were named at the start."""
    return tuple(json.loads(os.environ.get(FOLDERS_VARIABLE, "[]")))


def name(index: int) -> str:
    """Give the name that a sweep goes by."""
    return Path(folders()[index]).name


def rows(index: int) -> tuple[tuple[SweepRow, ...], int]:
    """Give the cells of a sweep that have ended by now, and how many there will be."""
    folder = Path(folders()[index])
    sweep = sweep_runner.read(folder)
    if sweep is None:
        raise UspProfError(f"{folder.name} holds no sweep", hint="usp-prof sweep FOLDER --grid tp=1,2")
    return rows_of_sweep(sweep, sweep_runner.finished(folder, sweep)), len(sweep.cells)
