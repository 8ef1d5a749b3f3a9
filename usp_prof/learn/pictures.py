"""Pictures of a lesson: one SVG a run, all of a lesson on one time scale, small enough to be kept in a repository."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from usp_prof.charts.inputs import PipelineSchedule, TimelineSlices
from usp_prof.charts.svg import as_svg
from usp_prof.model.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from usp_prof.learn.lessons import Lesson
    from usp_prof.run import Run

Drawn = TimelineSlices | PipelineSchedule
_TIP = re.compile(r"<title>.*?</title>", re.DOTALL)
_BOX = re.compile(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)" fill="([^"]+)"(?:/>|></rect>)')


def draw(lesson: Lesson, runs: Mapping[str, Run]) -> dict[str, str]:
    """Draw a middle step of each run; a millisecond is as wide in all of them."""
    inputs = {name: _input(lesson, run) for name, run in runs.items()}
    until = max(int(drawn.end_ns.max()) for drawn in inputs.values())
    return {name: _small(as_svg(replace(drawn, until_ns=until))) for name, drawn in inputs.items()}


def _input(lesson: Lesson, run: Run) -> Drawn:
    picture = run.pipeline().picture if lesson.picture == "pipeline" else run.timeline().picture
    if not isinstance(picture, TimelineSlices | PipelineSchedule):
        raise InputError(f"{run.path} holds nothing to draw", hint=f"record it anew: usp-prof learn {lesson.name}")
    return picture


def _small(svg: str) -> str:
    """Write all boxes of one colour as one path, and leave out texts under the pointer, which an image never shows.

    Paths go behind the grid's last line, so that they cover the grid and the numbers inside boxes cover them.
    """
    plain = _TIP.sub("", svg)
    boxes: dict[str, list[str]] = {}
    for x, y, width, height, fill in _BOX.findall(plain):
        boxes.setdefault(fill, []).append(f"M{x},{y}h{width}v{height}h-{width}z")
    paths = "".join(f'<path fill="{fill}" d="{"".join(each)}"/>' for fill, each in boxes.items())
    rest = _BOX.sub("", plain)
    place = rest.index("/>", rest.rindex("<line")) + len("/>")
    return f"{rest[:place]}{paths}{rest[place:]}\n"
