"""Course: figures and pictures of the recorded lessons, in a clone's `docs/course`; an installed package has none."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from usp_prof.learn.page import from_json
from usp_prof.learn.recording import CLONE

if TYPE_CHECKING:
    from usp_prof.learn.lessons import Lesson
    from usp_prof.learn.measurement import LessonFigures

FOLDER = CLONE / "docs" / "course"


@cache
def recorded() -> dict[str, LessonFigures]:
    """Give what was measured of each lesson that has a page; empty where there is no clone."""
    path = FOLDER / "figures.json"
    return from_json(path.read_text(encoding="utf-8")) if path.exists() else {}


def picture(lesson: Lesson, run: str) -> str:
    """Give the SVG of one run of a lesson; empty where there is none."""
    path = FOLDER / "images" / f"{lesson.name}-{run}.svg"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def run_of(lesson: Lesson, path: str) -> str:
    """Name the run of a lesson that a path holds: `.../LESSON/RUN`, or its recording in `traces/`; empty for others."""
    parts = Path(path).parts
    for run in lesson.runs:
        if parts[-2:] == (lesson.name, run.name) or (run.recorded and parts[-1:] == (run.recorded,)):
            return run.name
    return ""
