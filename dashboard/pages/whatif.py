"""What would a change be worth? The run replayed with changes made, alone and together."""

from __future__ import annotations

import streamlit as st

from dashboard import data, state
from dashboard.answers import whatif
from dashboard.components import changes
from dashboard.components.answer import offer
from dashboard.components.blocks import section
from usp_prof.model.axis import PARALLEL_AXES
from usp_prof.model.edit import parse_edit
from usp_prof.whatif.edits import EDITS

TITLE = "What if"
PATH = "whatif"
MOST_LETTERS = 400


def draw() -> None:
    """Draw the page."""
    view = state.current()
    axes = tuple(axis for axis in PARALLEL_AXES if data.open_numbered(view.run).tables.topology.axis_groups(axis))
    found, left = changes.chosen(st.query_params.get("edits", "")[:MOST_LETTERS].split(), axes)
    typed = st.text_input(
        "More changes, one after the other with a blank between",
        " ".join(left),
        placeholder="rank_as_peers=all bandwidth=2,axis=dp",
        max_chars=MOST_LETTERS,
    )
    text = " ".join([*found, *typed.split()])
    state.keep("edits", text)
    with st.expander("Which changes there are"):
        st.dataframe([{"change": each.example, "what it does": each.doc} for each in EDITS], hide_index=True)
    if not text.strip():
        st.info("Name a change to see what it would be worth.")
        return
    edits = tuple(parse_edit(word) for word in text.split())
    with st.spinner("replaying", show_time=True):
        error = data.replay_error(view.run)
        alone = [data.prediction(view.run, (edit,)) for edit in edits]
        together = data.prediction(view.run, edits)
    made = whatif.section(error, alone, together)
    section(made, dark=state.is_dark())
    offer(PATH, TITLE, view.run, text, lambda: (made,))
