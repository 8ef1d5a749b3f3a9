"""Record a parallelism technique before and after, and compare with theory."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

from usp_prof.cli.opening import completes, note, output, write_out
from usp_prof.cli.wrapping import wrapped, wrapped_page
from usp_prof.extras.learn import lessons
from usp_prof.extras.learn.lessons import Lesson, path_of, record
from usp_prof.model.errors import UsageError
from usp_prof.model.files import check_name

if TYPE_CHECKING:
    from usp_prof.extras.learn.comparison import Claim
    from usp_prof.extras.learn.measurement import LessonFigures

EXAMPLES = """\
  usp-prof learn
  usp-prof learn overlap
  usp-prof learn pipeline --open
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    chosen = parser.add_argument(
        "lesson", metavar="LESSON", nargs="?", help="lesson to record; without one, all are listed"
    )
    completes(chosen, lambda: lessons.LESSONS)
    parser.add_argument(
        "--output", metavar="DIR", default="traces/learn", help="folder for the recorded runs (default: %(default)s)"
    )
    parser.add_argument("--again", action="store_true", help="record existing runs again")
    parser.add_argument("--open", action="store_true", help="open the runs in the dashboard")


def run(args: argparse.Namespace) -> int:
    """List the lessons, or record the missing runs of one and show it; always returns 0."""
    if not args.lesson:
        if args.open or args.again:
            raise UsageError("no lesson was given", hint="usp-prof learn lists them")
        write_out(_lesson_list())
        return 0
    chosen = lessons.lesson(args.lesson)
    folder = Path(args.output) / chosen.name
    check_name(folder, "name another folder with --output")
    record(chosen, folder, again=args.again, say=lambda text: note(args, text))
    from usp_prof.extras.learn.measurement import measure  # noqa: PLC0415 - a list of lessons needs no replay

    figures, _ = measure(chosen.name, folder, cache_dir=args.cache_dir)
    _show(args, chosen, figures)
    if not args.open:
        return 0
    from usp_prof.cli.commands import dashboard  # noqa: PLC0415 - only for --open

    paths = [str(path_of(member, folder)) for member in chosen.runs]
    options = ArgumentParser()
    dashboard.configure(options)  # so that options not named here have their defaults
    served = options.parse_args(["--host", dashboard.LOOPBACK[0], "--", *paths])
    served.page, served.cache_dir = "learn", args.cache_dir
    return dashboard.run(served)


def _lesson_list() -> str:
    all_lessons = lessons.lessons()
    width = max(len(lesson.name) for lesson in all_lessons)
    lines = [f"  {lesson.name:{width}}  {lesson.title}" for lesson in all_lessons]
    return "\n".join(["lessons", *lines, "", "usp-prof learn LESSON records one and shows it"]) + "\n"


def _show(args: argparse.Namespace, chosen: Lesson, figures: LessonFigures) -> None:
    from rich import box  # noqa: PLC0415 - only for a table
    from rich.table import Table  # noqa: PLC0415

    from usp_prof.extras.learn.comparison import claims, rows  # noqa: PLC0415

    screen = output(args)
    shown = Table("figure", "from", box=box.SIMPLE_HEAD if screen.is_terminal else None, pad_edge=False)
    for run in chosen.runs:
        shown.add_column(run.name, justify="right")
    for row in rows(chosen, figures):
        shown.add_row(row.figure, row.source, *row.texts)
    write_out(f"{chosen.title}\n\n{wrapped_page(chosen.explanation.strip(), screen.width)}\n\n")
    screen.print(shown)
    write_out(wrapped("".join(_line(claim) for claim in claims(chosen, figures)), screen.width, _HANGING))
    question, answer = (text.strip() for text in (f"Question: {chosen.question}", f"Answer: {chosen.answer}"))
    write_out(f"\n{wrapped_page(question, screen.width)}\n\n{wrapped_page(answer, screen.width)}\n")


_HANGING = 8
"""Width of the verdict before a claim."""


def _line(claim: Claim) -> str:
    return f"{'holds ' if claim.holds else 'missed'}  {claim.says} ({claim.evidence})\n"
