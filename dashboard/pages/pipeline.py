"""How does the schedule run, what does its bubble cost beside the ideal, and what would another schedule do?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from dashboard import data, state
from dashboard.answers import schedule
from dashboard.components.answer import offer
from dashboard.components.blocks import show
from dashboard.components.sections import draw_sections
from dashboard.components.waiting import wait
from usp_prof import UspProfError
from usp_prof.algebra.schedules.orders import Schedule
from usp_prof.model.edit import Edit
from usp_prof.model.metric import Unit
from usp_prof.report.document import Stack, StackPart

if TYPE_CHECKING:
    from dashboard.state import View
    from usp_prof.report.document import Document

TITLE = "Pipeline"
PATH = "pipeline"
SECTIONS = ("pipeline",)
AS_IT_IS = "as it ran"
MOST_PASSES = 256


def draw() -> None:
    """Draw the page."""
    view = state.current()
    document = wait(data.ask_document(view.run, view.selection))
    draw_sections(SECTIONS, TITLE)
    causes = by_cause(document)
    if causes is None:
        return
    st.subheader("What the bubble is made of", anchor="causes")
    show(causes, "causes", state.is_dark())
    _another(view)


def by_cause(document: Document) -> Stack | None:
    """Divide the bubble: what the schedule costs by itself, what uneven stages add, what the run lost on top."""
    whole = {value.metric.id: float(value.value) for value in document.values if not value.dims}
    measured = whole.get("bubble_fraction")
    if measured is None:
        return None
    even = min(whole.get("bubble_balanced_fraction", 0.0), measured)
    ideal = min(max(whole.get("bubble_ideal_fraction", even), even), measured)
    parts = (
        StackPart("the schedule itself", "idle:bubble", even),
        StackPart("uneven stages", "action:W", ideal - even),
        StackPart("lost beside: late actions, transfers, the host", "comm", measured - ideal),
        StackPart("pipeline actions", "compute", 1 - measured),
    )
    return Stack("The pipeline's window, mean over ranks and steps", 1.0, Unit.FRACTION, parts)


def _another(view: View) -> None:
    """Redraw the pipeline under another schedule, with the measured length of each action."""
    st.subheader("Under another schedule", anchor="another")
    left, middle, right = st.columns([2, 1, 1])
    names = (AS_IT_IS, *(str(each) for each in Schedule))
    before = state.word("schedule", names)
    name = left.selectbox("Schedule", names, names.index(before))
    passes = middle.number_input("Micro-batches (0: as it ran)", 0, MOST_PASSES, state.number("m", 0, MOST_PASSES) or 0)
    chunks = right.number_input("Stages on a rank (0: the usual)", 0, 8, state.number("v", 0, 8) or 0)
    state.keep("schedule", name if name != AS_IT_IS else None)
    state.keep("m", passes or None)
    state.keep("v", chunks or None)
    if name == AS_IT_IS:
        st.caption("Choose a schedule to see the same actions in its order.")
        return
    places = [("m", str(passes))] * bool(passes) + [("v", str(chunks))] * bool(chunks)
    edit = Edit("schedule", name, tuple(places))
    try:
        found = wait(data.ask_schedule(view.run, edit))
    except UspProfError as error:
        st.warning(state.plain(f"{error.message}. {error.hint or ''}"))
        return
    made = schedule.section(edit, found)
    for number, block in enumerate(made.blocks):
        show(block, f"another-{number}", state.is_dark())
    offer(PATH, TITLE, view.run, str(edit), lambda: (made,))
