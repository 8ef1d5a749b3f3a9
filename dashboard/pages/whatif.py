"""What would a change be worth? The run replayed with changes made, alone and together."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from dashboard import data, state
from dashboard.components import changes
from dashboard.components.download import table
from usp_prof.model.axis import PARALLEL_AXES
from usp_prof.model.edit import parse_edit
from usp_prof.model.metric import Unit
from usp_prof.report.format import quantity
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
    before, after, gain = st.columns(3)
    before.metric("step, measured", quantity(together.before_ns, Unit.NS))
    before.caption(f"replayed unchanged: within {error:.2%} of it")
    after.metric("step, predicted", quantity(together.after_ns, Unit.NS))
    gain.metric("gain", f"{together.gain_fraction:.1%}")
    gain.caption(f"± {together.error_fraction:.1%}, {together.basis}")
    rows = [
        {
            "change": str(each.edits[0]),
            "step": quantity(each.after_ns, Unit.NS),
            "gain alone": f"{each.gain_fraction:.1%}",
            "error": f"± {each.error_fraction:.1%}",
            "basis": str(each.basis),
        }
        for each in alone
    ]
    table(pd.DataFrame(rows), "whatif")
    st.caption("Gains overlap: they are never added, but replayed together.")
