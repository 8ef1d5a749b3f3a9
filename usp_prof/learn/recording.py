"""Recording of lessons: each run by the trainer of a clone, one after another, on this machine's cores."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

from usp_prof.model.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from usp_prof.learn.lessons import Lesson, LessonRun

CLONE = Path(__file__).parents[2]
MOST_SECONDS = 600
"""A run takes less than a minute on two quiet cores; one that takes this long hangs."""


def record(lesson: Lesson, folder: Path, *, again: bool = False, say: Callable[[str], None] = lambda _: None) -> None:
    """Record the runs of a lesson below a folder, `FOLDER/RUN` each; those that are there are kept, unless `again`.

    A run that the repository holds is recorded only with `again`.
    Raises `UspProfError` where the trainer or PyTorch is missing, and where a run fails.
    """
    missing = [run for run in lesson.runs if again or not _is_recorded(path_of(run, folder))]
    if missing:
        _check_trainer()
    for run in missing:
        output = folder / run.name
        rmtree(output, ignore_errors=True)
        words = lesson.command(run, str(output.absolute()))
        say(f"recording {run.name}: torchrun {' '.join(words[1:])}")
        _run([sys.executable, "-m", *words])


def path_of(run: LessonRun, folder: Path) -> Path:
    """Say where a run of a lesson lies: below the folder, else in the repository's `traces/`."""
    own = folder / run.name
    kept = CLONE / "traces" / run.recorded if run.recorded else own
    return own if _is_recorded(own) or not _is_recorded(kept) else kept


def _is_recorded(path: Path) -> bool:
    return (path / "run.json").exists()


def _check_trainer() -> None:
    if not (CLONE / "trainer" / "run.py").exists():
        raise InputError(
            "lessons are recorded by the trainer, which is in the repository and not in the installed package",
            hint="git clone https://github.com/usp-prof/usp-prof, and in it: pip install -e '.[trainer]'",
        )
    if importlib.util.find_spec("torch") is None:
        raise InputError("PyTorch is not installed, which lessons are recorded with", hint="pip install torch")


def _run(words: list[str]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # one thread a process: ranks share the cores
    with subprocess.Popen(  # noqa: S603 - our own command
        words, cwd=CLONE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            told, _ = process.communicate(timeout=MOST_SECONDS)
        except BaseException:
            process.terminate()  # torchrun ends its ranks
            raise
    if process.returncode:
        last = "\n".join(told.strip().splitlines()[-12:])
        raise InputError(f"recording failed with exit code {process.returncode}:\n{last}", hint="is a port blocked?")
