"""Which configuration should be trained? Every legal one predicted, the best first, and what fills its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from dashboard import planning, state
from dashboard.answers import plan
from dashboard.components.answer import offer
from dashboard.components.blocks import show
from dashboard.components.download import data_table
from usp_prof.planner.launch import TRAINERS, command
from usp_prof.report.document import Chart

if TYPE_CHECKING:
    from usp_prof.planner.prediction import Prediction
    from usp_prof.planner.search import Plans

TITLE = "Plan"
PATH = "plan"
MOST_PLANS = 200
"""How many plans the choice and the table offer; the chart shows all."""


def draw() -> None:
    """Draw the page."""
    learnt, plans = planning.ask()
    planning.said(learnt, plans)
    if not plans.best:
        st.warning(plan.nothing_fits(plans))
        st.info("Choose more devices, or a device with more memory.")
        return
    dark = state.is_dark()
    st.subheader("Speed over memory", anchor="front")
    show(Chart("", plan.points(plans)), "plan-front", dark)
    shown = plans.best[:MOST_PLANS]
    data_table(plan.listed(plans.best, MOST_PLANS), "plans", raw=plan.frame(plans.best))
    picked, trainer = _one(plans, shown)
    choice = f"{planning.choice(plans)} {picked.configuration} {trainer}"
    offer(PATH, TITLE, state.current().run, choice, lambda: plan.sections(learnt, plans, picked, trainer))


def _one(plans: Plans, shown: tuple[Prediction, ...]) -> tuple[Prediction, str]:
    """Show one plan: its figures, the memory of each pipeline rank, and how it is started."""
    st.subheader("One of them", anchor="one")
    names = [str(each.configuration) for each in shown]
    wanted = st.query_params.get("plan", "")
    place = st.selectbox("Plan", range(len(names)), names.index(wanted) if wanted in names else 0, names.__getitem__)
    state.keep("plan", names[place] if place else None)
    trainers = tuple(TRAINERS)
    made = plan.one(plans, shown[place], trainers[0])
    for number, block in enumerate(made.blocks[:-1]):
        show(block, f"plan-{number}", state.is_dark())
    trainer = st.segmented_control("Start it with", trainers, default=state.word("trainer", trainers)) or trainers[0]
    state.keep("trainer", None if trainer == trainers[0] else trainer)
    st.code(command(trainer, plans.question.model, shown[place].configuration), language="sh", wrap_lines=True)
    return shown[place], trainer
