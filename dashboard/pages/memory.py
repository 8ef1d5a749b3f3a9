"""How much memory is in use, when and for what? As measured, and as the planner predicts for this configuration."""

from __future__ import annotations

import streamlit as st

from dashboard import data, planning, state
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
    st.caption(f"What the planner's formulas give for {learnt.configuration}; see Plan for other configurations.")
    planning.memory_chart(learnt.model, learnt.configuration, learnt.cluster.room_bytes, key="memory-predicted")
