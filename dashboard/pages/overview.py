"""What is wrong, in one screen? Findings first, then the figures that they rest on."""

from __future__ import annotations

import streamlit as st

from dashboard import data, state

TITLE = "Overview"
PATH = "overview"


def draw() -> None:
    """Draw the page."""
    view = state.current()
    run = data.open_numbered(view.run)
    st.write(run.name)
