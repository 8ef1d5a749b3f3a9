"""What is in the HTML report? The run's own report, and what the pages with choices say.

Those say it as last chosen in the reader's session, else as they first come up. A page that shows nothing before
something is chosen (What if, another schedule, suggestions ticked) is in the report once that was done.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dashboard import data
from dashboard.answers import comparison, plan, sweep
from usp_prof import UspProfError
from usp_prof.planner.launch import TRAINERS
from usp_prof.planner.search import GRID_AXES, Question
from usp_prof.report.build import analyse, build
from usp_prof.report.document import Section, Text
from usp_prof.report.writers import webpage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from dashboard.answers.answer import Answer
    from usp_prof.model.selection import Selection
    from usp_prof.planner.calibration import Calibration
    from usp_prof.planner.search import Plans

ORDER = ("pipeline", "memory", "suggestions", "whatif", "plan", "compare", "sweep", "query")
"""The pages with choices, in the order of the report."""


def ask(index: int, selection: Selection, answers: tuple[Answer, ...] = ()) -> Future[str]:
    """Ask for the report of a part of a run as one page of HTML, with what was chosen on pages."""

    def compose() -> str:
        data.worker.tell("writing the report")
        run = data.open_numbered(index)
        results = analyse(run.tables, selection)
        document = build(run.tables, results, name=run.name, selection=selection)
        return webpage.write([replace(document, sections=(*document.sections, *chosen(index, answers)))])

    names = tuple(sorted((answer.page, answer.choice) for answer in answers))
    return data.worker.ask(("report", index, selection, names), compose)


def chosen(index: int, answers: tuple[Answer, ...]) -> Iterator[Section]:
    """Give the sections of the pages with choices, in order."""
    said = {answer.page: answer.sections for answer in answers}
    for page in ORDER:
        if page in said:
            yield from said[page]()
        elif page in _FIRST:
            yield from _first(page, index)


def recorded_question(learnt: Calibration) -> Question:
    """Ask for plans on as many devices of the same kind, for as large a batch, as ran."""
    ran = learnt.configuration
    return Question(learnt.model, learnt.cluster, ran.devices, ran.batch, ran.dtype)


def _first(page: str, index: int) -> tuple[Section, ...]:
    title, build_sections = _FIRST[page]
    try:
        return build_sections(index)
    except UspProfError as error:
        return (Section(page, title, (Text(f"Nothing can be said: {error.message}", quiet=True),)),)


def _memory(index: int) -> tuple[Section, ...]:
    return (plan.predicted_memory(data.ask_calibration(index).result()),)


def _plans(index: int) -> tuple[Calibration, Plans]:
    learnt = data.ask_calibration(index).result()
    return learnt, data.ask_plans(recorded_question(learnt)).result()


def _plan(index: int) -> tuple[Section, ...]:
    learnt, plans = _plans(index)
    return plan.sections(learnt, plans, plans.best[0] if plans.best else None, next(iter(TRAINERS)))


def _sweep(index: int) -> tuple[Section, ...]:
    _, plans = _plans(index)
    return (sweep.section(plans, *GRID_AXES[:2], next(iter(sweep.FIGURES))),) if plans.best else ()


def _compare(index: int) -> tuple[Section, ...]:
    if data.run_count() < 2:
        return ()
    first, second = (0, index) if index else (0, 1)
    pair = data.ask_comparison(first, second).result().pairs[0]
    return comparison.sections(pair, data.name(first), data.name(second), everything=False)


_FIRST: dict[str, tuple[str, Callable[[int], tuple[Section, ...]]]] = {
    "memory": ("Memory, predicted", _memory),
    "plan": ("Plan", _plan),
    "compare": ("Compare", _compare),
    "sweep": ("Sweep", _sweep),
}
"""What is said before anybody chose."""
