"""Plan: configurations that were never run, of a recorded model or one that is typed; Sweep is a tab of it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from usp_prof import UspProfError
from usp_prof.extras.planner.answers import plan as plan_answer
from usp_prof.extras.planner.answers import plan_map as plan_map_answer
from usp_prof.extras.planner.answers import sweep as sweep_answer
from usp_prof.extras.planner.calibration import Calibration
from usp_prof.extras.planner.launch import TRAINERS, refusal
from usp_prof.extras.planner.predict import Prediction as Plan
from usp_prof.extras.planner.question import Question
from usp_prof.extras.planner.search import GRID_AXES, Plans
from usp_prof.extras.planner.sweep import runner as sweep_runner
from usp_prof.extras.planner.sweep.published import Published
from usp_prof.extras.planner.sweep.published import read as read_published_sweep
from usp_prof.extras.planner.sweep.rows import Row as SweepRow
from usp_prof.extras.planner.sweep.rows import rows_of_folder as rows_of_sweep
from usp_prof.extras.planner.sweep.score import score as score_of_sweep
from usp_prof.model.configuration import Configuration
from usp_prof.model.selection import EVERYTHING
from usp_prof.report.document import Chart

from .. import data, served_runs, state
from ..components.blocks import folded, section, show, show_all, verdict
from ..components.choices import choose_tab, choose_word, usual_first
from ..components.download import show_table
from ..components.question import ask_question, calibration_of, draw_configuration, show_start
from ..report import offer
from ..state import Page, Room
from ..work import wait, worker

if TYPE_CHECKING:
    from streamlit.delta_generator import DeltaGenerator


MOST_PLANS = 200
"""How many plans the choice and the table offer; the chart shows all."""
BEST, ONE, SWEEP_TAB, RAN, PUBLISHED = "Best plans", "One configuration", "Sweep", "What was run", "Published sweep"


# The inputs are above the tabs; all choices are in the address.


def draw_plan() -> None:
    """Draw one of the tabs; the page opens on the best plans."""
    _draw(BEST)


def draw_sweep() -> None:
    """Draw the page with its tab Sweep, for links to where it was a page of its own."""
    _draw(SWEEP_TAB)


def _draw(first: str) -> None:
    tabs = (BEST, ONE, SWEEP_TAB, *([RAN] if sweep_folders() else []), *([PUBLISHED] if published_table() else []))
    tab = choose_tab("View", "view", tabs, first, label_visibility="collapsed")
    if tab == RAN:
        _ran()
        return
    if tab == PUBLISHED:
        _published()
        return
    place = st.container()
    calibration, reason = calibration_of(state.current().run) if served_runs.run_count() else (None, "")
    facts = None
    if reason:
        st.info(state.plain(f"Not based on this run: {reason}. Choose a model, or record with usp_prof.record."))
        facts = wait(data.ask_document(state.current().run, EVERYTHING)).run
    trainer = state.word("trainer", _trainers(calibration))
    question = replace(ask_question(calibration, facts), trainer=trainer)
    if tab == ONE:
        is_doubted = _doubted(calibration, question, "memory")
        draw_configuration(
            question,
            _best_configuration(question, trainer),
            place,
            lambda: _trainer(calibration),
            with_times=not is_doubted,
        )
        return
    plans = wait(data.ask_plans(question))
    if tab == BEST or not plans.best or plan_answer.is_doubtful(calibration, question):
        with place:
            verdict(plan_answer.verdict(calibration, plans, trainer))
            if remark := plan_answer.not_startable(plans, trainer):
                st.caption(state.plain(remark))
    show(plan_answer.basis(calibration, plans), "plan-basis")
    if not plans.best:
        st.info("Choose more devices, or a device with more memory.")
    elif _doubted(calibration, question, "the order of the plans"):
        _order(calibration, plans, trainer)
    elif tab == BEST:
        _best(calibration, plans, trainer)
    else:
        _sweep(calibration, plans, place)


def _best_configuration(question: Question, trainer: str) -> Configuration | None:
    """Return the fastest configuration that fits and that the trainer can start, or None."""
    try:
        plans = wait(data.ask_plans(question))
    except UspProfError:
        return None
    place = max(plan_answer.startable(plans, trainer)[0], 0) if plans.best else 0
    return plans.best[place].configuration if plans.best else None


def _trainers(calibration: Calibration | None) -> tuple[str, ...]:
    """Return the trainers, the usual one first: one that can start the recorded configuration, or Megatron."""
    trainers = tuple(TRAINERS)
    usual = "megatron"
    if calibration is not None:
        able = (name for name in trainers if not refusal(name, calibration.model, calibration.configuration))
        usual = next(able, trainers[0])
    return usual_first(usual, trainers)


def _trainer(calibration: Calibration | None) -> str:
    """Choose the trainer whose command is shown."""
    offered = _trainers(calibration)
    return choose_tab("Trainer", "trainer", offered, offered[0])


def _doubted(calibration: Calibration | None, question: Question, shown: str) -> bool:
    """Show a warning if the recorded step is predicted too badly to show more than what `shown` names."""
    if calibration is None or not plan_answer.is_doubtful(calibration, question):
        return False
    st.error(plan_answer.doubt(calibration, shown))
    return True


def _order(calibration: Calibration | None, plans: Plans, trainer: str) -> None:
    """Show plans in order, without step times, and how to start the first one that the trainer supports."""
    st.caption("Plans whose expected steps differ by less than 0.5% count as equal: the simpler one comes first.")
    show_table(plan_answer.ordered(plans, MOST_PLANS), "plans-order")
    place, _ = plan_answer.startable(plans, trainer)
    show_start(_trainer(calibration), plans.question, plans.best[max(place, 0)])
    choice = data.question_key(plans.question)
    offer(PLAN, state.current().run, choice, lambda: plan_answer.sections(calibration, plans, plans.best[0], ""))


# Best plans: every legal configuration predicted, the fastest first, and what fills the memory of one.


def _best(calibration: Calibration | None, plans: Plans, trainer: str) -> None:
    """Draw the plans that fit, and one of them: the fastest that the trainer can start, until another is chosen."""
    place, _ = plan_answer.startable(plans, trainer)
    usual = place if 0 <= place < MOST_PLANS else 0
    key = ("front", calibration is None, data.question_key(plans.question), usual)
    points = wait(data.ask_made(key, lambda: plan_answer.points(plans, calibration, usual)))
    show(Chart("Speed over memory", points), "plan-front")
    st.caption("Hover over a dot for its configuration. 2x1 means two micro-batches of one sequence.")
    picked, trainer = _one_plan(calibration, plans, usual)
    which = "All" if len(plans.best) == plans.fitting else f"{len(plans.best):,} of"
    folded(
        "plans", f"{which} {plans.fitting:,} plans that fit, fastest first",
        lambda: show_table(plan_answer.plans_table(plans.best, MOST_PLANS), "plans", raw=plan_answer.frame(plans.best)),
    )  # fmt: skip
    if served_runs.run_count():
        choice = f"{data.question_key(plans.question)} {picked.configuration} {trainer}"
        offer(PLAN, state.current().run, choice, lambda: plan_answer.sections(calibration, plans, picked, trainer))


def _one_plan(calibration: Calibration | None, plans: Plans, usual: int) -> tuple[Plan, str]:
    """Show one plan: its figures, the memory of each pipeline rank, and how it is started."""
    st.markdown("**One plan**")
    shown = plans.best[:MOST_PLANS]
    names = [str(plan.configuration) for plan in shown]
    before = names.index(state.word("plan", (names[usual], *names)))
    options = state.bound("plan", usual, *names)
    place = st.selectbox("Plan", range(len(names)), before, names.__getitem__, **options)
    state.choose("plan", names[place] if place != usual else None)
    key = ("plan", data.question_key(plans.question), str(shown[place].configuration))
    plan_section = wait(data.ask_made(key, lambda: plan_answer.single_plan(plans, shown[place], next(iter(TRAINERS)))))
    show_all(plan_section.blocks[:-1], "plan")
    trainer = _trainer(calibration)
    show_start(trainer, plans.question, shown[place])
    return shown[place], trainer


PLAN = Page("Plan", "plan", draw_plan, Room.PREDICT, needs_run=False)


# Sweep: how a figure changes from configuration to configuration, as a heat map over any two degrees.


def _sweep(calibration: Calibration | None, plans: Plans, top: DeltaGenerator) -> None:
    """Draw the map, with its sentence at the top of the page."""
    down_column, across_column, figure_column, trainer_column = st.columns([1, 1, 1, 2])
    down = choose_word("Rows", "down", GRID_AXES, place=down_column)
    # The second axis comes first, so that the default is not the one of the rows.
    other_axes = tuple(axis for axis in (*GRID_AXES[1:], GRID_AXES[0]) if axis != down)
    across = choose_word("Columns", "across", other_axes, place=across_column)
    figure = choose_word("Metric", "figure", tuple(plan_map_answer.FIGURES), place=figure_column)
    with trainer_column:
        trainer = _trainer(calibration)
    choice = f"{data.question_key(plans.question)} {down} {across} {figure} {trainer}"
    key = ("sweep", calibration is None, choice)
    heat_map = wait(
        data.ask_made(key, lambda: plan_map_answer.section(plans, down, across, figure, trainer, calibration))
    )
    with top:
        verdict(plan_map_answer.verdict(plans, down, across, figure, trainer, calibration))
    *drawn, cell_table = heat_map.blocks
    show_all(drawn, "sweep")
    folded("sweep-cells", "Plan of each cell", lambda: show(cell_table, "sweep-cells"))
    if served_runs.run_count():
        offer(SWEEP, state.current().run, choice, lambda: (heat_map,))


SWEEP = Page("Sweep", "sweep", draw_sweep, Room.PREDICT, part_of=PLAN.path, needs_run=False)


# Recorded sweeps: the finished cells of a folder of `usp-prof sweep`.


SWEEPS_VARIABLE = "USP_PROF_DASHBOARD_SWEEPS"


def sweep_folders() -> tuple[Path, ...]:
    """Return the folders of sweeps that were named at the start."""
    return tuple(Path(folder) for folder in json.loads(os.environ.get(SWEEPS_VARIABLE, "[]")))


def _ended(folder: Path) -> tuple[tuple[SweepRow, ...], int]:
    """Return the finished cells of a sweep, and the number of all its cells."""
    sweep = sweep_runner.read(folder)
    if sweep is None:
        raise UspProfError(f"{folder.name} contains no sweep", hint="usp-prof sweep FOLDER --grid tp=1,2")
    return rows_of_sweep(sweep, sweep_runner.finished_cells(folder, sweep)), len(sweep.cells)


def _ran() -> None:
    """Show the finished cells of a sweep that was named at the start."""
    folders = sweep_folders()
    names = [folder.name for folder in folders]
    wanted = state.number("folder", 0, len(folders) - 1) or 0
    place = 0
    if len(names) > 1:
        place = st.selectbox("Sweep", range(len(names)), wanted, names.__getitem__, **state.bound("folder"))
        state.choose("folder", place or None)
    rows, cells = _ended(folders[place])
    remarks = (f"{len(rows)} of {cells} cells have ended.",)
    for part in sweep_answer.sections(rows, None, remarks, drawn=True):
        section(part)


# A published sweep: the same pictures for a table that the user provides.


PUBLISHED_VARIABLE = "USP_PROF_DASHBOARD_PUBLISHED"
ALL_MODELS = "all models"


def published_table() -> tuple[str, Path] | None:
    """Return the form and the file of the published sweep that was named at the start; None if there is none."""
    form_and_file = json.loads(os.environ.get(PUBLISHED_VARIABLE, "[]"))
    return (form_and_file[0], Path(form_and_file[1])) if form_and_file else None


def _published() -> None:
    """Draw a published sweep, of all models or one, next to the planner's predictions."""
    form_and_file = published_table()
    assert form_and_file is not None  # the tab is there  # noqa: S101
    form, file = form_and_file
    table: Published = wait(worker.ask(("published", form, str(file)), lambda: read_published_sweep(form, file)))
    model = choose_word("Rows of", "rows", (ALL_MODELS, *sorted({row.model for row in table.rows})))
    rows = tuple(row for row in table.rows if model in (ALL_MODELS, row.model))
    for part in sweep_answer.sections(rows, score_of_sweep(rows), table.notes, drawn=True):
        section(part)
