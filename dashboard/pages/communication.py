"""What is communicated, on which axis, how fast, and who waits for whom?"""

from __future__ import annotations

import streamlit as st

from dashboard import data, state
from dashboard.components.sections import draw_sections
from dashboard.components.timeline import timeline
from dashboard.components.waiting import wait

TITLE = "Communication"
PATH = "communication"
SECTIONS = ("overlap", "collectives", "moe", "cp")


def draw() -> None:
    """Draw the page."""
    draw_sections(SECTIONS, TITLE)
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
