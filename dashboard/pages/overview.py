"""What is wrong, in one screen? Findings first, then the figures that they rest on."""

from __future__ import annotations

import streamlit as st

from dashboard import data, state
from dashboard.components.blocks import section
from dashboard.components.sections import draw_sections
from dashboard.components.waiting import wait

TITLE = "Overview"
PATH = "overview"
SECTIONS = ("breakdown", "step_time", "health")


def draw() -> None:
    """Draw the page."""
    view = state.current()
    document = wait(data.ask_document(view.run, view.selection))
    facts = document.run
    axes = " x ".join(f"{axis} {size}" for axis, size in facts.axes.items()) or "axes not known"
    said = [f"{len(facts.ranks)} of {facts.world_size or '?'} ranks", axes, ", ".join(facts.devices) or "CPU"]
    st.markdown(f"### {facts.name}\n{' · '.join(said)}" + (" · **paced: compute is synthetic**" if facts.paced else ""))
    section(document.summary, dark=state.is_dark(), heading=False)
    draw_sections(SECTIONS, TITLE, without=document.summary)
