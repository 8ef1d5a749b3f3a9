"""HTML downloads: the report of a run with the choices made on pages, or one page alone.

The report shows each page as the reader last left it, or as it opens. A page that is empty until something is chosen
(What if, another schedule, selected suggestions) is in the report once something was chosen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import streamlit as st

from usp_prof import UspProfError, __version__
from usp_prof.extras.planner.answers import plan as plan_answer
from usp_prof.extras.planner.answers import plan_map as plan_map_answer
from usp_prof.extras.planner.calibration import Calibration
from usp_prof.extras.planner.launch import TRAINERS
from usp_prof.extras.planner.question import Question
from usp_prof.extras.planner.search import GRID_AXES, Plans
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.report.document import Document, Section, Text
from usp_prof.report.run_facts import run_facts
from usp_prof.report.writers.webpage import write as write_webpage
from usp_prof.timeline.page import assets as timeline_assets
from usp_prof.timeline.page import embedded as embedded_timeline

from . import data, served_runs
from .state import Page
from .work import Result

ORDER = ("pipeline", "memory", "suggestions", "whatif", "plan", "sweep", "query")
"""The pages with choices, in the order of the report. Comparisons are left out: the report is about one run."""


def ask(index: int, selection: Selection, answers: tuple[Answer, ...] = ()) -> Result[str]:
    """Ask for the report of a part of a run as one page of HTML, with what was chosen on pages."""

    def compose() -> str:
        data.worker.report_progress("writing the report")
        document = data.document(index, selection)
        document = replace(document, sections=(*document.sections, *chosen(index, answers)))
        tables = data.open_numbered(index).tables
        timeline = embedded_timeline(tables, selection, focus=document.verdict.straggler)
        return write_webpage([document], [timeline], timeline_assets())

    names = tuple(sorted((answer.page, answer.choice) for answer in answers))
    return data.worker.ask(("report", index, selection, names), compose, lane=index)


def chosen(index: int, answers: tuple[Answer, ...]) -> Iterator[Section]:
    """Yield the sections of the pages with choices, in order."""
    sections_of_page = {answer.page: answer.sections for answer in answers}
    for page in ORDER:
        if page in sections_of_page:
            yield from sections_of_page[page]()
        elif page in _FIRST:
            yield from _first(page, index)


def recorded_question(calibration: Calibration) -> Question:
    """Return the question with the recorded devices and batch."""
    ran = calibration.configuration
    return Question(
        calibration.model, calibration.cluster, ran.devices, ran.batch, ran.dtype, profile=calibration.profile
    )


def _first(page: str, index: int) -> tuple[Section, ...]:
    title, build_sections = _FIRST[page]
    try:
        return build_sections(index)
    except UspProfError as error:
        return (Section(page, title, (Text(f"Not available: {error.message}", quiet=True),)),)


def _memory(index: int) -> tuple[Section, ...]:
    return (plan_answer.predicted_memory(data.ask_calibration(index).result()),)


def _plans(index: int) -> tuple[Calibration, Plans]:
    calibration = data.ask_calibration(index).result()
    return calibration, data.ask_plans(replace(recorded_question(calibration), trainer=next(iter(TRAINERS)))).result()


def _plan(index: int) -> tuple[Section, ...]:
    calibration, plans = _plans(index)
    trainer = next(iter(TRAINERS))
    place, _ = plan_answer.startable(plans, trainer)
    return plan_answer.sections(calibration, plans, plans.best[max(place, 0)] if plans.best else None, trainer)


def _sweep(index: int) -> tuple[Section, ...]:
    calibration, plans = _plans(index)
    if not plans.best:
        return ()
    down, across = GRID_AXES[:2]
    figure, trainer = next(iter(plan_map_answer.FIGURES)), next(iter(TRAINERS))
    return (plan_map_answer.section(plans, down, across, figure, trainer, calibration),)


_FIRST: dict[str, tuple[str, Callable[[int], tuple[Section, ...]]]] = {
    "memory": ("Memory, predicted", _memory),
    "plan": ("Plan", _plan),
    "sweep": ("Sweep", _sweep),
}
"""Sections of pages that the reader has not opened: title, and the function that builds them."""


# Answers: what a page shows under the choices made on it.


@dataclass(frozen=True, slots=True)
class Answer:
    """A page's sections, built when they are written; `choice` distinguishes answers of one page."""

    run: int
    page: str
    title: str
    choice: str
    sections: Callable[[], tuple[Section, ...]]


# Downloads of one page: as a file of HTML, and kept as a part of the whole report.


_KEPT = "answers"


def offer(page: Page, run: int, choice: str, sections: Callable[[], tuple[Section, ...]]) -> None:
    """Offer what a page shows as one file of HTML, and keep it for the report of this session."""
    answer = Answer(run, page.path, page.title, choice, sections)
    st.session_state.setdefault(_KEPT, {})[page.path] = answer
    name = f"{re.sub(r'[^A-Za-z0-9.-]+', '-', served_runs.name(run)).strip('-') or 'run'}-{page.path}.html"
    st.download_button(
        "This page as HTML",
        lambda: written(answer).encode(),
        name,
        "text/html",
        key=f"html-{page.path}",
        on_click="ignore",
        help="this page with its charts in one file that needs no server",
    )


def answers_of_run(run: int) -> tuple[Answer, ...]:
    """Return the last content of this session's pages for a run."""
    answers: dict[str, Answer] = st.session_state.get(_KEPT, {})
    return tuple(answer for answer in answers.values() if answer.run == run)


def written(answer: Answer) -> str:
    """Write one page's answer as HTML, like a report."""
    facts = run_facts(data.open_numbered(answer.run).tables, EVERYTHING, served_runs.name(answer.run))
    summary = Section("choice", answer.title, ())
    return write_webpage([Document(__version__, facts, {}, (), (), (), summary, answer.sections())])
