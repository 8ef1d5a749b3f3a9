"""The course as published in `docs/course`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from usp_prof.extras.learn.course import from_json

if TYPE_CHECKING:
    from usp_prof.extras.learn.measurement import LessonFigures

COURSE = Path(__file__).parents[2] / "docs" / "course"
IMAGES = COURSE / "images"


@cache
def recorded_figures() -> dict[str, LessonFigures]:
    """Read what was measured of each lesson."""
    return from_json((COURSE / "figures.json").read_text(encoding="utf-8"))
