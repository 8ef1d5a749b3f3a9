"""Pages that show sections of the report: communication, pipeline, kernels, ranks, host, memory.

Each page shows its sections as they are. Beneath them some offer more: communication the calls over time, pipeline
another schedule, memory what the planner predicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from .. import data, state
from ..components.blocks import draw_sections, show
from ..components.timeline import timeline
from ..engine import Edit, Schedule, Stack, StackPart, Unit, UspProfError, plan_answer, whatif_answer
from ..report import offer
from ..state import Page, View
from ..work import wait

if TYPE_CHECKING:
    from ..engine import Document

AS_IT_IS = "as it ran"
MOST_MICRO_BATCHES = 256


# Communication: what is communicated, on which axis, how fast, and who waits for whom.


def draw_communication() -> None:
    """Draw the sections, and the calls of each group over time."""
    draw_sections(("overlap", "collectives", "moe", "cp"), COMMUNICATION.title)
    _calls()


def _calls() -> None:
    """Show the calls of each group over time."""
    view = state.current()
    store = wait(data.ask_calls(view.run))
    if not store.ranks:
        return
    st.subheader("The calls over time", anchor="calls")
    st.caption("A row for each group: grey until its last member has arrived, then in the colour of the axis.")
    timeline(
        f"run={view.run}&of=calls", key="calls", dark=state.is_dark(), ranks=list(store.ranks), kinds=[], height=420,
        fixed=True,
    )  # fmt: skip


COMMUNICATION = Page("Communication", "communication", draw_communication)


# Pipeline: how the schedule runs, what its bubble costs beside the ideal, what another schedule would do.


def draw_pipeline() -> None:
    """Draw the sections, the parts of the bubble, and the actions under another schedule."""
    view = state.current()
    document = wait(data.ask_document(view.run, view.selection))
    draw_sections(("pipeline",), PIPELINE.title)
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
    passes = middle.number_input(
        "Micro-batches (0: as it ran)", 0, MOST_MICRO_BATCHES, state.number("m", 0, MOST_MICRO_BATCHES) or 0
    )
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
    made = whatif_answer.schedule_section(edit, found)
    for number, block in enumerate(made.blocks):
        show(block, f"another-{number}", state.is_dark())
    offer(PIPELINE, view.run, str(edit), lambda: (made,))


PIPELINE = Page("Pipeline", "pipeline", draw_pipeline)


# Memory: how much is in use, when and for what; as measured, and as the planner predicts for this configuration.


def draw_memory() -> None:
    """Draw the sections, and what the planner predicts fills the memory."""
    draw_sections(("memory",), MEMORY.title)
    st.subheader("Predicted", anchor="predicted")
    try:
        learnt = wait(data.ask_calibration(state.current().run))
    except UspProfError as error:
        st.info(f"Nothing can be predicted: {error.message}. {error.hint}")
        return
    predicted = plan_answer.predicted_memory(learnt)
    for number, block in enumerate(predicted.blocks):
        show(block, f"memory-predicted-{number}", state.is_dark())


MEMORY = Page("Memory", "memory", draw_memory)


# Kernels, ranks, host: sections of the report and nothing else.


def draw_kernels() -> None:
    """Draw how well the device is used, by kernel, op and shape."""
    draw_sections(("mfu", "kernels"), KERNELS.title)


def draw_ranks() -> None:
    """Draw which rank is late or slow, and how far apart the clocks are."""
    draw_sections(("stragglers", "step_time", "critical_path", "clock"), RANKS.title)


def draw_host() -> None:
    """Draw whether the host keeps the device busy."""
    draw_sections(("host",), HOST.title)


KERNELS = Page("Kernels", "kernels", draw_kernels)
RANKS = Page("Ranks", "ranks", draw_ranks)
HOST = Page("Host", "host", draw_host)
