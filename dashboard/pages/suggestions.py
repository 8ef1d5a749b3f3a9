"""What should be changed, and what would that be worth, together?"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pandas as pd
import streamlit as st

from dashboard import data, state
from dashboard.components.blocks import show
from dashboard.components.download import table
from dashboard.components.findings import one, sure
from dashboard.components.waiting import wait
from usp_prof import UspProfError
from usp_prof.charts.inputs import Waterfall
from usp_prof.model.edit import parse_edit
from usp_prof.model.metric import Unit
from usp_prof.report.document import Chart
from usp_prof.report.format import quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.model.finding import Finding
    from usp_prof.whatif.predict import Prediction

TITLE = "Suggestions"
PATH = "suggestions"
LONGEST = 48
"""Letters of a finding's title beside a bar."""


def draw() -> None:
    """Draw the page."""
    view = state.current()
    findings = wait(data.ask_document(view.run, view.selection)).findings
    if not findings:
        st.success("No rule found anything to complain of.")
        return
    st.caption("Tick what you would change: the run is replayed with all of it, since gains overlap and never add up.")
    together = st.container()
    asked = st.query_params.get("ticked", "").split(",")
    ticked = []
    for number, finding in enumerate(findings):
        with st.container(border=True):
            left, right = st.columns([1, 22])
            before = bool(finding.edit) and (str(number) in asked or asked == ["all"])
            if left.checkbox(
                "count it in", before, label_visibility="collapsed", disabled=not finding.edit, key=f"tick-{number}"
            ):
                ticked.append(finding)
            with right:
                one(finding, view, number)
    state.keep("ticked", ",".join(str(number) for number, finding in enumerate(findings) if finding in ticked))
    with together:
        _together(view.run, ticked)
    st.subheader("All of them", anchor="table")
    table(as_table(findings), "findings")


def _together(index: int, ticked: Sequence[Finding]) -> None:
    """Replay the run with everything that is ticked, one after the other."""
    if not ticked:
        return
    edits = tuple(parse_edit(finding.edit) for finding in ticked)
    try:
        steps = [wait(data.ask_prediction(index, edits[: count + 1])) for count in range(len(edits))]
    except UspProfError as error:
        st.warning(f"These cannot be made together: {state.plain(error.message)}")
        return
    last = steps[-1]
    now, then, gain = st.columns(3)
    now.metric("step, measured", quantity(last.before_ns, Unit.NS))
    then.metric("step, predicted", quantity(last.after_ns, Unit.NS))
    gain.metric(f"gain of {len(ticked)} together", f"{last.gain_fraction:.1%}")
    gain.caption(f"± {last.error_fraction:.1%}, {last.basis}")
    show(Chart("", bars(ticked, steps)), "together", state.is_dark())
    words = " ".join(str(edit) for edit in edits)
    st.code(
        f"usp-prof whatif {data.paths()[index]} {' '.join(f'--edit {word}' for word in words.split())}", language=None
    )


def bars(ticked: Sequence[Finding], steps: Sequence[Prediction]) -> Waterfall:
    """Set the step out from what was measured, over what each change takes from it, to what is predicted."""
    after = [steps[0].before_ns, *(step.after_ns for step in steps)]
    return Waterfall(
        "now",
        after[0],
        tuple(_short(finding.title) for finding in ticked),
        tuple(late - early for early, late in pairwise(after)),
        "with all of it",
    )


def as_table(findings: Sequence[Finding]) -> pd.DataFrame:
    """Give one row for each finding."""
    return pd.DataFrame(
        [
            {
                "finding": finding.code,
                "what": finding.title,
                "where": ", ".join(f"{name} {value}" for name, value in finding.where.items()),
                "gain": f"{finding.gain_fraction:.1%}" if finding.gain_fraction else "not known",
                "error": sure(finding) if finding.gain_fraction else "",
                "basis": str(finding.basis),
                "change": finding.edit,
            }
            for finding in findings
        ]
    )


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
