"""How much memory is in use, when and for what? As measured, and as the planner predicts for this configuration."""

from __future__ import annotations

import streamlit as st

from dashboard import data, state
from dashboard.answers import plan
from dashboard.components.blocks import show
from dashboard.components.sections import draw_sections
from dashboard.components.waiting import wait
from usp_prof import UspProfError

TITLE = "Memory"
PATH = "memory"
SECTIONS = ("memory",)


def draw() -> None:
    """Draw the page."""
    draw_sections(SECTIONS, TITLE)
    st.subheader("Predicted", anchor="predicted")
    try:
        learnt = wait(data.ask_calibration(state.current().run))
    except UspProfError as error:
        st.info(f"Nothing can be predicted: {error.message}. {error.hint}")
        return
    found = plan.predicted_memory(learnt)
    for number, block in enumerate(found.blocks):
        show(block, f"memory-predicted-{number}", state.is_dark())
