"""Runner: starts the trainer for each cell of a sweep, several at a time, and stores the outcomes.

    FOLDER/sweep.json             the request: the trainer, its fixed options, the cells
    FOLDER/cells/NAME/cell.json   outcome of a cell that ended or failed; a cell without one is run (again)
    FOLDER/cells/NAME/output.txt  the trainer's output, and errors.txt

Cells that were running when a sweep was stopped have no outcome, so the same command runs them again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from usp_prof.contract import SWEEP_FILE
from usp_prof.extras.planner.sweep.cells import Cell, trainer_words
from usp_prof.extras.planner.sweep.rows import (
    CELL_FILE,
    Outcome,
    Status,
    failure,
    figures_of_cell,
    read_outcome,
    write_outcome,
)
from usp_prof.model.errors import InputError, UsageError
from usp_prof.model.files import is_later
from usp_prof.whole_files import whole_file

if TYPE_CHECKING:
    Progress = Callable[[int, int, Outcome], None]


FORMAT, VERSION = "usp-prof-sweep", 1
GRACE_SECONDS = 20
"""Time between SIGTERM and SIGKILL."""
LOOK_EVERY_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep: the trainer's file, the options of all cells, and the cells."""

    trainer: str
    fixed: tuple[tuple[str, str], ...]
    cells: tuple[Cell, ...]

    def words(self, cell: Cell) -> list[str]:
        """Return the command of a cell; the cell's options are last, so they take precedence."""
        return [*command(self.trainer, cell.processes), *trainer_words(self.fixed), *trainer_words(cell.options)]


def trainer_of_clone() -> str:
    """Return the trainer in this repository; empty if the package was installed without one."""
    path = Path(__file__).resolve().parents[4] / "trainer" / "run.py"
    return str(path) if path.exists() else ""


def open_sweep(folder: Path, requested: Sweep) -> Sweep:
    """Merge a request into the folder's sweep and store it; raise if its fixed options differ."""
    before = read(folder)
    if before is not None:
        if requested.fixed and requested.fixed != before.fixed:
            raise UsageError(
                f"{folder} has a sweep with other options: {' '.join(trainer_words(before.fixed)) or 'none'}",
                hint="leave the options out to continue it, or name another folder",
            )
        cells = tuple(dict.fromkeys([*before.cells, *requested.cells]))
        requested = replace(requested, fixed=before.fixed, cells=cells)
    if not requested.cells:
        raise UsageError("a sweep needs cells", hint="--grid tp=1,2 zero=0,1, or --list cells.csv")
    folder.mkdir(parents=True, exist_ok=True)
    data = {
        "format": FORMAT,
        "version": VERSION,
        "fixed": dict(requested.fixed),
        "cells": [{"processes": cell.processes, "options": dict(cell.options)} for cell in requested.cells],
    }
    with whole_file(folder / SWEEP_FILE) as file:
        file.write((json.dumps(data, indent=1) + "\n").encode())
    return requested


def read(folder: Path) -> Sweep | None:
    """Return the sweep stored in a folder, or None."""
    path = folder / SWEEP_FILE
    if not path.is_file():
        return None
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if is_later(data, FORMAT, VERSION):
            raise InputError(
                f"{path} was written by a later usp-prof", hint="update usp-prof, or choose another folder"
            )
        cells = tuple(Cell(int(cell["processes"]), _pairs(cell["options"])) for cell in data["cells"])
        return Sweep("", _pairs(data["fixed"]), cells)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is not the description of a sweep: {error!r}", hint="choose the folder of a sweep"
        ) from error


def _pairs(options: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((str(option), str(value)) for option, value in options.items()))


def folder_of(folder: Path, cell: Cell) -> Path:
    """Return the folder of a cell."""
    return folder / "cells" / cell.name


def finished_cells(folder: Path, sweep: Sweep) -> list[Outcome]:
    """Return the outcomes that exist, in the order of the cells."""
    outcomes = (read_outcome(folder_of(folder, cell)) for cell in sweep.cells)
    return [outcome for outcome in outcomes if outcome is not None]


def run(
    folder: Path, sweep: Sweep, *, at_once: int = 1, timeout: float = 600.0, again: bool = False,
    progress: Progress | None = None,
) -> list[Outcome]:  # fmt: skip
    """Run the cells that have not ended, and with `again` those that failed; return all outcomes.

    Ctrl-C stops the running trainers and is raised again.
    """
    left = [cell for cell in sweep.cells if _is_due(folder, cell, again=again)]
    done, stop = len(sweep.cells) - len(left), Event()
    with ThreadPoolExecutor(at_once, "cell") as pool:
        running = {pool.submit(_run_cell, folder, sweep, cell, timeout, stop) for cell in left}
        try:
            while running:
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    done += 1
                    result = future.result()
                    if progress is not None and result is not None:
                        progress(done, len(sweep.cells), result)
        except BaseException:
            stop.set()
            for future in running:
                future.cancel()
            raise
    return finished_cells(folder, sweep)


def _is_due(folder: Path, cell: Cell, *, again: bool) -> bool:
    before = read_outcome(folder_of(folder, cell))
    return before is None or (again and before.status is not Status.OK)


def _run_cell(folder: Path, sweep: Sweep, cell: Cell, timeout: float, stop: Event) -> Outcome | None:
    """Run one cell; return None, without storing an outcome, if the sweep was stopped meanwhile."""
    if stop.is_set():
        return None
    place = folder_of(folder, cell)
    place.mkdir(parents=True, exist_ok=True)
    (place / CELL_FILE).unlink(missing_ok=True)
    began = time.monotonic()
    output, errors = place / "output.txt", place / "errors.txt"
    words = [*sweep.words(cell), "--metrics", "json"]
    with output.open("wb") as out, errors.open("wb") as err:
        # In its own session, Ctrl-C reaches only this process, which then ends the trainer.
        process = subprocess.Popen(  # noqa: S603 - the trainer
            words, stdout=out, stderr=err, stdin=subprocess.DEVNULL, start_new_session=True, env=environment()
        )
        timed_out = _waited(process, timeout, stop)
    if stop.is_set() and process.returncode != 0:
        return None
    outcome = _outcome(cell, process.returncode, output, errors, timed_out=timed_out)
    timed = replace(outcome, wall_seconds=round(time.monotonic() - began, 3))
    write_outcome(timed, place)
    return timed


def command(trainer: str, processes: int) -> list[str]:
    """Return the command prefix that starts the trainer: torchrun with its own port if there are several processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [sys.executable, *(launcher if processes > 1 else []), trainer]


def environment() -> dict[str, str]:
    """Return an environment with one thread per process, like torchrun's, also for a single process."""
    return {"OMP_NUM_THREADS": "1", **os.environ}


def _waited(process: subprocess.Popen[bytes], timeout: float, stop: Event) -> bool:
    """Wait for the end; return whether it took too long."""
    last = time.monotonic() + timeout
    while process.poll() is None:
        late = time.monotonic() > last
        if late or stop.wait(LOOK_EVERY_SECONDS):
            _end(process)
            return late
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a trainer, and kill it if it does not end."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _outcome(cell: Cell, status: int, output: Path, errors: Path, *, timed_out: bool) -> Outcome:
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    start = Outcome(cell.name, cell.processes, dict(cell.options), Status.OK)
    if timed_out:
        return replace(start, status=Status.TIMED_OUT, reason="it took longer than --timeout")
    if status:
        kind, reason = failure(status, errors.read_text(encoding="utf-8", errors="replace"))
        return replace(start, status=kind, reason=reason)
    figures = figures_of_cell(lines)
    if not figures:
        return replace(start, status=Status.CRASHED, reason="it ended before it printed a step")
    return replace(start, **figures)


FOLDER = "recorded"


def record_cell(folder: Path, sweep: Sweep, cell: str, timeout: float) -> Path:
    """Record a cell by name, unless its traces exist; return their folder."""
    chosen = next(candidate for candidate in sweep.cells if candidate.name == cell)
    traces = folder / FOLDER / chosen.name
    if (traces / "run.json").exists():
        return traces
    words = [*sweep.words(chosen), "--profile", "--output", str(traces)]
    try:
        ended = subprocess.run(  # noqa: S603 - the trainer
            words, capture_output=True, text=True, timeout=timeout, check=False, env=environment()
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"{cell} took longer than --timeout while it was recorded", hint="increase --timeout"
        ) from error
    if ended.returncode or not (traces / "run.json").exists():
        _, reason = failure(ended.returncode, ended.stderr)
        raise InputError(f"{cell} could not be recorded: {reason}", hint="see its output in the folder of the sweep")
    return traces
