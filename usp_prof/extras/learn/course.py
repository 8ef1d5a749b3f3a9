"""Course: pages, figures and pictures of the recorded lessons in a clone's `docs/course`.

`tools/make_course` writes them, and the dashboard reads them. An installed package has none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec

from usp_prof.charts.inputs import PipelineSchedule, TimelineSlices
from usp_prof.charts.svg import as_svg, following_browser, recolored
from usp_prof.charts.theme import LIGHT, Theme
from usp_prof.extras.learn.comparison import Claim, Row, claims, misses, rows
from usp_prof.extras.learn.lessons import CLONE, Lesson, lessons
from usp_prof.extras.learn.measurement import LessonFigures
from usp_prof.model.errors import InputError
from usp_prof.run import Run

FOLDER = CLONE / "docs" / "course"


@cache
def recorded() -> dict[str, LessonFigures]:
    """Return the measured figures of each lesson with a page, by name; empty without a clone."""
    path = FOLDER / "figures.json"
    return from_json(path.read_text(encoding="utf-8")) if path.exists() else {}


def picture(lesson: Lesson, run: str, theme: Theme = LIGHT) -> str:
    """Return the SVG of one run of a lesson in a theme; empty if there is none."""
    path = FOLDER / "images" / f"{lesson.name}-{run}.svg"
    return recolored(path.read_text(encoding="utf-8"), theme) if path.exists() else ""


def run_of(lesson: Lesson, path: str) -> str:
    """Return the run of a lesson that a path contains: `.../LESSON/RUN`, or its recording in `traces/`; else empty."""
    parts = Path(path).parts
    for run in lesson.runs:
        if parts[-2:] == (lesson.name, run.name) or (run.recorded and parts[-1:] == (run.recorded,)):
            return run.name
    return ""


# Pages: a lesson and its measured figures, as Markdown.


MADE = "<!-- Made by tools/make_course -->"
_INTRODUCTION = """\
Each lesson records a technique of the
[Ultra-Scale Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook) before and after, with this
repository's trainer. A page shows the timelines and compares measured figures with theory. `usp-prof learn` lists the
lessons, `usp-prof learn overlap` records one and shows it, and `--open` opens its runs in the dashboard.

Nearly all runs are [paced](../trainer.md#pacing): a layer waits as long as a device would compute. Communication is
real, over gloo, and the lesson says if links are slowed down. Lessons show the order of work, memory and messages, not
the speed of a GPU.

*Measured* figures come from the recorded runs. *Theory* follows from pace, links and mesh. *Replayed* and *planned* are
predictions from the first run's trace, by `usp-prof whatif` and by the calibrated planner. All pictures of a lesson
have the same time scale.
"""
_NOT_SHOWN = """\
A paced run has no kernels, so the lessons about one device compare operations or bytes, not speed. For a recorded GPU
run, these edits predict the speed:

- **Fused optimizers**: `fused_optimizer` (finding: [`unfused-optimizer`](../reference/rules.md#unfused-optimizer))
- **Compiled layers**: `no_launch_gaps` (finding: [`host-bound`](../reference/rules.md#host-bound))
- **Mixed precision**: `matmul_dtype=bf16`
"""


def page(lesson: Lesson, figures: LessonFigures) -> str:
    """Write a lesson's page."""
    parts = [
        f"# {lesson.title}",
        MADE,
        f"{lesson.part}. Playbook section: *{lesson.playbook}*.",
        lesson.explanation.strip(),
        f"Code:\n\n{code(lesson)}",
        "## Record it",
        f"```sh\nusp-prof learn {lesson.name}\n```",
        _runs(lesson),
        "## Pictures",
        lesson.look.strip(),
        *(f"**{run.name}**\n\n![{run.name}](images/{lesson.name}-{run.name}.svg)" for run in lesson.runs),
        "## Results",
        comparison(lesson, figures),
        "## Question",
        f"{lesson.question.strip()}",
        f"<details>\n<summary>Answer</summary>\n\n{lesson.answer.strip()}\n\n</details>",
    ]
    return "\n\n".join(parts) + "\n"


def code(lesson: Lesson) -> str:
    """List the files that implement a lesson's technique, with the names to look for."""
    entries = [entry.split(": ") for entry in lesson.code]
    return "\n".join(f"- `{path}`: {', '.join(f'`{name}`' for name in names.split(', '))}" for path, names in entries)


def commands(lesson: Lesson) -> str:
    """Return the commands that record a lesson's runs, one per line."""
    return "\n".join(f"torchrun {' '.join(lesson.command(run, run.name)[1:])}" for run in lesson.runs)


def _runs(lesson: Lesson) -> str:
    """Return the command that all runs of a lesson share, and a table of the options that each run adds."""
    command = f"```text\ntorchrun {' '.join(lesson.shared_words()[1:])}\n```"
    lines = [command, "", "| run | technique | added options |", "|---|---|---|"]
    lines += [f"| {run.name} | {run.title} | {f'`{run.options}`' if run.options else ''} |" for run in lesson.runs]
    return "\n".join(lines)


def comparison(lesson: Lesson, figures: LessonFigures) -> str:
    """Format the results of a lesson: the table, the claims, where it was recorded."""
    parts = [
        _table(rows(lesson, figures), [run.name for run in lesson.runs]),
        _claims(claims(lesson, figures)),
        *filter(None, [misses(lesson, figures)]),
        *_remarks(figures),
        f"Recorded on {figures.recorded}: {figures.machine}. {figures.remark}".strip(),
    ]
    return "\n\n".join(parts)


def index(figures_by_lesson: Mapping[str, LessonFigures]) -> str:
    """Format the index: recorded lessons link to their page, others show their command."""
    chosen = lessons()
    lines = ["# The playbook, live", MADE, _INTRODUCTION.strip()]
    for part in dict.fromkeys(entry.part for entry in chosen):
        entries = [
            f"- [{entry.title}]({entry.name}.md)"
            if entry.name in figures_by_lesson
            else f"- {entry.title}: no page yet; record it with `usp-prof learn {entry.name}`"
            for entry in chosen
            if entry.part == part
        ]
        lines += [f"## {part}", "\n".join(entries)]
    lines += ["## Limits of a CPU", _NOT_SHOWN.strip()]
    toctree = "\n".join(lesson.name for lesson in chosen if lesson.name in figures_by_lesson)
    lines.append(f"```{{toctree}}\n:hidden:\n\n{toctree}\n```")
    return "\n\n".join(lines) + "\n"


def to_json(figures_by_lesson: Mapping[str, LessonFigures]) -> str:
    """Format the measured figures as JSON, with six digits."""
    rounded = msgspec.to_builtins(figures_by_lesson)
    return msgspec.json.format(msgspec.json.encode(_rounded(rounded)), indent=1).decode() + "\n"


def from_json(text: str) -> dict[str, LessonFigures]:
    """Parse the measured figures."""
    return msgspec.json.decode(text, type=dict[str, LessonFigures])


def _table(compared: Sequence[Row], names: Sequence[str]) -> str:
    """Format a row per figure and source, a column per run; a figure is named on its first row only."""
    lines = [f"| figure | from | {' | '.join(names)} |", f"|{'---|' * (len(names) + 2)}"]
    shown = ""
    for row in compared:
        title = row.figure if row.figure != shown else ""
        shown = row.figure
        lines.append(f"| {title} | {row.source} | {' | '.join(row.texts)} |")
    return "\n".join(lines)


def _claims(claims: Sequence[Claim]) -> str:
    return "\n".join(f"- {claim.says} ({claim.evidence}{'' if claim.holds else ': **missed**'})" for claim in claims)


def _remarks(figures: LessonFigures) -> list[str]:
    remarks = list(dict.fromkeys(remark for run in figures.runs.values() for remark in run.remarks))
    return [f"Not predicted: {'; '.join(remarks)}."] if remarks else []


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


# Pictures: one SVG per run, all of a lesson on one time scale, small enough for a repository.


_Drawn = TimelineSlices | PipelineSchedule
_TIP = re.compile(r"<title>.*?</title>", re.DOTALL)
_BOX = re.compile(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)" fill="([^"]+)"(?:/>|></rect>)')


def draw(lesson: Lesson, runs: Mapping[str, Run]) -> dict[str, str]:
    """Draw a middle step of each run, all on one time scale."""
    inputs = {name: _timeline_of(lesson, run) for name, run in runs.items()}
    until = max(int(drawn.end_ns.max()) for drawn in inputs.values())
    label = max(len(row) for drawn in inputs.values() for row in drawn.rows)
    return {
        name: _small(as_svg(replace(drawn, until_ns=until, label_characters=label))) for name, drawn in inputs.items()
    }


def _timeline_of(lesson: Lesson, run: Run) -> _Drawn:
    drawn = run.pipeline().picture if lesson.picture == "pipeline" else run.timeline().picture
    if not isinstance(drawn, TimelineSlices | PipelineSchedule):
        raise InputError(f"{run.path} has nothing to draw", hint=f"record it again: usp-prof learn {lesson.name}")
    return drawn


def _small(svg: str) -> str:
    """Merge all boxes of one color into one path, and remove tooltips, which an image never shows.

    Paths follow the last grid line, so that they cover the grid and numbers inside boxes cover them.
    """
    plain = _TIP.sub("", svg)
    boxes: dict[str, list[str]] = {}
    for x, y, width, height, fill in _BOX.findall(plain):
        boxes.setdefault(fill, []).append(f"M{x},{y}h{width}v{height}h-{width}z")
    paths = "".join(f'<path fill="{fill}" d="{"".join(boxes_of_fill)}"/>' for fill, boxes_of_fill in boxes.items())
    rest = _BOX.sub("", plain)
    behind_grid = rest.index("/>", rest.rindex("<line")) + len("/>")
    return following_browser(f"{rest[:behind_grid]}{paths}{rest[behind_grid:]}\n")
