"""What should be changed, and what would that be worth, together?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pandas as pd
import streamlit as st

from dashboard import data, state
from dashboard.answers import together
from dashboard.components.answer import offer
from dashboard.components.blocks import show
from dashboard.components.download import data_table
from dashboard.components.findings import one
from dashboard.components.waiting import wait
from usp_prof import UspProfError
from usp_prof.model.edit import parse_edit
from usp_prof.model.metric import Unit
from usp_prof.report.document import DataTable, TableColumn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.model.finding import Finding

TITLE = "Suggestions"
PATH = "suggestions"
ORDER = (
    "What is wrong comes before what could be chosen otherwise, each by its gain; what would mend others as well comes "
    "by what it adds to them."
)


def draw() -> None:
    """Draw the page."""
    view = state.current()
    findings = wait(data.ask_document(view.run, view.selection)).findings
    if not findings:
        st.success("No rule found anything to complain of.")
        return
    st.caption(ORDER)
    st.caption("Tick what you would change: the run is replayed with all of it, since gains overlap and never add up.")
    place = st.container()
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
    with place:
        _together(view.run, ticked)
    st.subheader("All of them", anchor="table")
    data_table(as_table(findings), "findings", raw=as_frame(findings))


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
    found = together.section(ticked, steps, data.paths()[index])
    for number, block in enumerate(found.blocks[:-1]):
        show(block, f"together-{number}", state.is_dark())
    st.code(found.blocks[-1].text, language=None)  # type: ignore[union-attr]
    offer(PATH, TITLE, index, " ".join(str(edit) for edit in edits), lambda: (found,))


def as_table(findings: Sequence[Finding]) -> DataTable:
    """Give one row for each finding."""
    columns = (
        TableColumn("finding"),
        TableColumn("what", prose=True),
        TableColumn("where"),
        TableColumn("gain", Unit.FRACTION),
        TableColumn("±", Unit.FRACTION),
        TableColumn("basis"),
        TableColumn("change"),
    )
    rows = tuple(
        (
            each.code, each.title, _place(each) or None, each.gain_fraction or None,
            each.error_fraction or None, str(each.basis) if each.gain_fraction else None, each.edit or None,
        )
        for each in findings
    )  # fmt: skip
    return DataTable("", columns, rows)


def as_frame(findings: Sequence[Finding]) -> pd.DataFrame:
    """Give the same raw, with the evidence and the settings as JSON."""
    return pd.DataFrame(
        [
            {
                "finding": each.code,
                "level": str(each.level),
                "what": each.title,
                "where": json.dumps(dict(each.where)),
                "gain_fraction": each.gain_fraction,
                "cumulative_gain_fraction": each.cumulative_gain_fraction,
                "error_fraction": each.error_fraction,
                "basis": str(each.basis),
                "change": each.edit,
                "advice": each.advice,
                "evidence": json.dumps(dict(each.evidence)),
                "settings": json.dumps(dict(each.settings)),
            }
            for each in findings
        ]
    )


def _place(finding: Finding) -> str:
    return ", ".join(f"{name} {value}" for name, value in finding.where.items())
