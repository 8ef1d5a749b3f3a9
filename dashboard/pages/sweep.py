"""How does speed or memory change from configuration to configuration? Heat maps over any two of their degrees."""

from __future__ import annotations

import streamlit as st

from dashboard import planning, state
from dashboard.answers import sweep
from dashboard.components.answer import offer
from dashboard.components.blocks import show
from usp_prof.planner.search import GRID_AXES

TITLE = "Sweep"
PATH = "sweep"


def draw() -> None:
    """Draw the page."""
    learnt, plans = planning.ask()
    planning.said(learnt, plans)
    if not plans.best:
        st.warning("Nothing fits, so that there is nothing to compare.")
        st.info("Choose more devices, or a device with more memory.")
        return
    place, names = st.columns(3), tuple(sweep.FIGURES)
    down = _axis(place[0], "Down", "down", GRID_AXES)
    across = _axis(place[1], "Across", "across", tuple(axis for axis in (*GRID_AXES[1:], GRID_AXES[0]) if axis != down))
    what = place[2].selectbox("Figure", names, names.index(state.word("figure", names)))
    state.keep("figure", None if what == names[0] else what)
    found = sweep.section(plans, down, across, what)
    for number, block in enumerate(found.blocks):
        show(block, f"sweep-{number}", state.is_dark())
    offer(PATH, TITLE, state.current().run, f"{planning.choice(plans)} {down} {across} {what}", lambda: (found,))


def _axis(place: st.delta_generator.DeltaGenerator, label: str, name: str, offered: tuple[str, ...]) -> str:
    chosen: str = place.selectbox(label, offered, offered.index(state.word(name, offered)))
    state.keep(name, None if chosen == offered[0] else chosen)
    return chosen
