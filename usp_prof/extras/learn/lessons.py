"""Lessons: techniques of the Ultra-Scale Playbook, with the runs that show each one, and their recording.

Each lesson is one file in `lessons/`. A lesson's figures are metrics of its runs. A figure may have a theory (a
function of `theory.py`). The planner and the what-if predict the step from the first run's trace alone. `shows`
describes the expected result.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from shutil import rmtree
from types import MappingProxyType
from typing import Any

from usp_prof.model.errors import InputError, unknown_name

LESSONS = (
    "overlap",
    "buckets",
    "accumulation",
    "zero",
    "prefetch",
    "recompute",
    "precision",
    "tensor",
    "asynchronous",
    "ring",
    "ulysses",
    "interleaved",
    "pipeline",
    "experts",
    "compile",
    "optimizer",
    "configuration",
)
"""The lessons in reading order, which follows the playbook."""
STEPS = "--profile --steps 5 --profile-skip 2 --profile-steps 2"
_FOLDER = Path(__file__).parent / "lessons"
_NO_DIMS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LessonRun:
    """One run of a lesson: its options, and its prediction from the first run's trace."""

    name: str
    title: str
    options: str
    whatif: str = ""
    """Edits that turn the first run into this one; empty if there are none."""
    planned: bool = False
    """Whether the planner can represent the difference from the first run."""
    recorded: str = ""
    """Recording with these options in the repository's `traces/`, used instead of a new one; empty if none."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric in which the runs differ.

    Theory and measurement agree within the ratio `within`, or differ by at most `apart`.
    """

    metric: str
    dims: Mapping[str, str] = field(default_factory=lambda: _NO_DIMS)
    theory: str = ""
    within: float | None = None
    apart: float | None = None
    title: str = ""
    """Title in this lesson; empty for the metric's title."""
    no_theory: tuple[str, ...] = ()
    """Runs for which theory and metric count different things; the lesson explains the difference."""

    @property
    def key(self) -> str:
        """Key among a lesson's figures: the metric and its dimensions, if any."""
        return f"{self.metric}[{','.join(self.dims.values())}]" if self.dims else self.metric


@dataclass(frozen=True, slots=True)
class Shown:
    """An expected result: the ratio of a figure between two runs is within bounds."""

    figure: str
    run: str
    against: str
    says: str
    at_most: float = float("inf")
    at_least: float = 0.0


@dataclass(frozen=True, slots=True)
class Lesson:
    """One technique: its text, its runs (the first without it), its figures, and the expected results."""

    name: str
    title: str
    part: str
    playbook: str
    """The section of the Ultra-Scale Playbook to read with it."""
    processes: int
    options: str
    explanation: str
    code: tuple[str, ...]
    """Files that implement it, each with its classes and functions: `path: name, name`."""
    look: str
    question: str
    answer: str
    runs: tuple[LessonRun, ...]
    figures: tuple[Figure, ...]
    shows: tuple[Shown, ...]
    picture: str = "timeline"
    """Picture of each run: `timeline` or `pipeline`."""
    memory: bool = False
    """Whether allocations are recorded, which makes traces larger."""

    def command(self, run: LessonRun, output: str) -> list[str]:
        """Return the arguments of `python -m` that record a run."""
        return [*self.shared_words(), *shlex.split(run.options), "--output", output]

    def shared_words(self) -> list[str]:
        """Return the arguments that all runs of the lesson share."""
        words = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(self.processes), "trainer/run.py"]
        words += shlex.split(f"{STEPS} {self.options}")
        return [*words, *([] if self.memory else ["--no-profile-memory"])]


@cache
def lesson(name: str) -> Lesson:
    """Read one lesson; raise `UspProfError` for an unknown name."""
    if name not in LESSONS:
        raise unknown_name("lesson", name, LESSONS, list_command="usp-prof learn")
    data: dict[str, Any] = tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    lists = {"runs": LessonRun, "figures": Figure, "shows": Shown}
    for key, kind in lists.items():
        data[key] = tuple(kind(**entry) for entry in data[key])
    data["code"] = tuple(data["code"])
    return Lesson(name=name, **data)


def lessons() -> tuple[Lesson, ...]:
    """Read all lessons, in order."""
    return tuple(lesson(name) for name in LESSONS)


# Recording: the trainer records the runs one after another, on this machine's cores.


CLONE = Path(__file__).parents[3]
"""The repository, or the folder of installed packages if there is no clone."""
HOMES = (CLONE, CLONE / "usp_prof_trainer")
"""Folders that may contain the trainer: in the clone, or installed."""
MOST_SECONDS = 600
"""Timeout: a run takes less than a minute on two idle cores, so a run that takes this long hangs."""


def record(lesson: Lesson, folder: Path, *, again: bool = False, say: Callable[[str], None] = lambda _: None) -> None:
    """Record the runs of a lesson as `FOLDER/RUN`.

    Existing recordings are kept unless `again` is set, also those in the repository. Raises `UspProfError` if the
    trainer or PyTorch is missing, or if a run fails.
    """
    missing = [run for run in lesson.runs if again or not _is_recorded(path_of(run, folder))]
    if missing:
        home = _home_of_trainer()
    for run in missing:
        output = folder / run.name
        rmtree(output, ignore_errors=True)
        words = lesson.command(run, str(output.absolute()))
        say(f"recording {run.name}: torchrun {' '.join(words[1:])}")
        _run([sys.executable, "-m", *words], home)


def path_of(run: LessonRun, folder: Path) -> Path:
    """Return the path of a lesson's run: in the folder, else in the repository's `traces/`."""
    own = folder / run.name
    shipped = CLONE / "traces" / run.recorded if run.recorded else own
    return own if _is_recorded(own) or not _is_recorded(shipped) else shipped


def _is_recorded(path: Path) -> bool:
    return (path / "run.json").exists()


def _home_of_trainer() -> Path:
    """Return the folder that contains the trainer; raise if the trainer or PyTorch is missing."""
    home = next((home for home in HOMES if (home / "trainer" / "run.py").exists()), None)
    if home is None:
        raise InputError("lessons need the trainer, which is missing", hint="pip install 'usp-prof[trainer]'")
    if importlib.util.find_spec("torch") is None:
        raise InputError("lessons need PyTorch, which is not installed", hint="pip install 'usp-prof[trainer]'")
    return home


def _run(words: list[str], home: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # one thread per process: ranks share the cores
    with subprocess.Popen(  # noqa: S603 - our own command
        words, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=MOST_SECONDS)
        except BaseException:
            process.terminate()  # torchrun terminates its ranks
            raise
    if process.returncode:
        last = "\n".join(output.strip().splitlines()[-12:])
        raise InputError(
            f"recording failed with exit code {process.returncode}:\n{last}",
            hint="check whether a firewall blocks local ports",
        )
