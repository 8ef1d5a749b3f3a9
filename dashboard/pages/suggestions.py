"""Suggestions page: findings to select, and the prediction for all selected changes together."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

import pandas as pd
import streamlit as st

from usp_prof import UspProfError
from usp_prof.findings.causes import causes_of
from usp_prof.model.edit import parse_edit
from usp_prof.model.finding import Finding
from usp_prof.model.metric import Unit
from usp_prof.report.answers import whatif as whatif_answer
from usp_prof.report.document import DataTable, Document, data_table
from usp_prof.report.words import REST as REST_OF_FINDINGS
from usp_prof.whatif.predict import Prediction

from .. import data, served_runs, state
from ..answers import verdicts
from ..components.blocks import folded, now_and_predicted, show_all, verdict
from ..components.download import show_table
from ..components.findings import show_finding
from ..components.play import offer_play
from ..report import offer
from ..state import Page, Room, View
from ..work import wait

ORDER = (
    "Problems first, then alternatives, each sorted by gain minus error. "
    "Gains overlap: select changes to see what they save together."
)


def draw() -> None:
    """Draw the page."""
    view = state.current()
    document = wait(data.ask_document(view.run, view.selection))
    findings = document.findings
    verdict(verdicts.suggestions(document))
    if not findings:
        st.success("No rule found anything.")
        return
    st.caption(ORDER)
    place = st.container(key="now")
    asked_numbers = st.query_params.get("ticked", "").split(",")
    wanted = {number for number, finding in enumerate(findings) if finding.edit and str(number) in asked_numbers}
    if {number for number in asked_numbers if number} - set(map(str, wanted)):
        state.ignore("ticked")
    shown = [cause.finding for cause in causes_of(findings).shown]
    first = [number for number, finding in enumerate(findings) if any(finding is other for other in shown)]
    rest = [number for number in range(len(findings)) if number not in first]
    chosen = _with_box(findings, first, wanted, view)
    title = f"{len(rest)} more: {REST_OF_FINDINGS}"
    if rest and not folded("rest", title, lambda: chosen.update(_with_box(findings, rest, wanted, view))):
        chosen |= wanted.intersection(rest)
    state.choose("ticked", ",".join(str(number) for number in sorted(chosen)))
    ticked = [findings[number] for number in sorted(chosen)]
    with place, st.container():
        steps = _replayed(view.run, ticked)
        now_and_predicted(steps[-1] if steps else None, f"{len(ticked)} selected" if ticked else "no change selected")
    _together(view.run, ticked, steps)
    if steps:
        offer_play(view, document, steps[-1])
    folded(
        "table", "All findings as a table", lambda: show_table(as_table(findings), "findings", raw=as_frame(findings))
    )


def _with_box(findings: Sequence[Finding], numbers: Sequence[int], wanted: Collection[int], view: View) -> set[int]:
    """Show findings, each with a checkbox; return the numbers of the selected ones."""
    ticked = set()
    for number in numbers:
        finding = findings[number]
        with st.container(border=True):
            left, right = st.columns([1, 30])
            is_ticked = left.checkbox(
                "Select this change",
                number in wanted,
                label_visibility="collapsed",
                disabled=not finding.edit,
                **state.bound("ticked", number),
            )
            if is_ticked:
                ticked.add(number)
            with right:
                show_finding(finding, view, number)
                if not finding.edit:
                    st.caption("Cannot be selected: there is no replayed change for this finding.")
    return ticked


def _replayed(index: int, ticked: Sequence[Finding]) -> list[Prediction]:
    """Replay the run with the first selected change, then with the first two, and so on."""
    edits = tuple(parse_edit(finding.edit) for finding in ticked)
    try:
        return [wait(data.ask_prediction(index, edits[: count + 1], edits)) for count in range(len(edits))]
    except UspProfError as error:
        st.warning(f"These changes cannot be combined: {state.plain(error.message)}")
        return []


def _together(index: int, ticked: Sequence[Finding], steps: Sequence[Prediction]) -> None:
    """Show the prediction for all selected changes."""
    if not steps:
        return
    edits = steps[-1].edits
    together = whatif_answer.together_section(ticked, steps, served_runs.runs()[index].path)
    show_all(together.blocks[:-1], "together")
    st.code(together.blocks[-1].text, language=None)  # type: ignore[union-attr]
    offer(SUGGESTIONS, index, " ".join(str(edit) for edit in edits), lambda: (together,))


def as_table(findings: Sequence[Finding]) -> DataTable:
    """Return one row for each finding."""
    columns = {
        "finding": None, "what": None, "where": None, "gain": Unit.FRACTION, "±": Unit.FRACTION, "basis": None,
        "change": None,
    }  # fmt: skip
    rows = [
        (
            finding.code, finding.title, finding.place or None, finding.gain_fraction or None,
            finding.error_fraction or None, finding.basis.word if finding.gain_fraction else None, finding.edit or None,
        )
        for finding in findings
    ]  # fmt: skip
    return data_table("", columns, rows, prose=("what",))


def as_frame(findings: Sequence[Finding]) -> pd.DataFrame:
    """Return one row of raw values per finding, with evidence and settings as JSON."""
    return pd.DataFrame(
        [
            {
                "finding": finding.code,
                "level": str(finding.level),
                "what": finding.title,
                "where": json.dumps(dict(finding.where)),
                "gain_fraction": finding.gain_fraction,
                "cumulative_gain_fraction": finding.cumulative_gain_fraction,
                "error_fraction": finding.error_fraction,
                "basis": str(finding.basis),
                "change": finding.edit,
                "advice": finding.advice,
                "evidence": json.dumps(dict(finding.evidence)),
                "settings": json.dumps(dict(finding.settings)),
            }
            for finding in findings
        ]
    )


def _none(document: Document) -> str:
    return "" if document.findings else "No findings."


SUGGESTIONS = Page("Suggestions", "suggestions", draw, Room.PREDICT, _none)
