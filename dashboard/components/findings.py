"""How is what was found shown? Each with its place, gain and error, its evidence, and a way to see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from dashboard import data, state
from usp_prof.model.finding import Basis
from usp_prof.model.metric import Unit
from usp_prof.report.format import quantity

if TYPE_CHECKING:
    from dashboard.state import View
    from dashboard.timeline.store import TimelineStore
    from usp_prof.model.finding import Finding
    from usp_prof.report.document import Findings

_UNITS = {"_ns": Unit.NS, "_bytes": Unit.BYTES, "_fraction": Unit.FRACTION}


def listed(block: Findings, view: View, *, brief: bool = False) -> None:
    """List findings, worst first."""
    if not block.findings:
        st.success("No rule found anything to complain of.")
    for number, finding in enumerate(block.findings):
        with st.container(border=True):
            one(finding, view, number, brief=brief)
    if block.more:
        st.caption(f"and {block.more} more under Suggestions")


def sure(finding: Finding) -> str:
    """Say how sure the gain is; a bound without an error of its own is what it is worth at most."""
    if finding.basis is Basis.BOUND and not finding.error_fraction:
        return "at most, a bound"
    return f"± {quantity(finding.error_fraction, Unit.FRACTION)}, {finding.basis}"


def one(finding: Finding, view: View, number: int, *, brief: bool = False) -> None:
    """Show one finding."""
    left, right = st.columns([3.2, 1.3])
    place = ", ".join(f"{name} {value}" for name, value in finding.where.items())
    left.markdown(f"**{state.plain(finding.title)}**" + (f"  \n{state.plain(place)}" if place else ""))
    if finding.advice:
        left.caption(state.plain(finding.advice))
    right.metric("gain", quantity(finding.gain_fraction, Unit.FRACTION) if finding.gain_fraction else "not known")
    if finding.gain_fraction:
        right.caption(sure(finding))
    timeline = st.session_state.get("pages", {}).get("timeline")
    if timeline is not None and data.worker.known(("timeline", view.run)):
        query = shown_at(finding, view, data.timeline_store(view.run))
        right.page_link(timeline, label="Show me", query_params=query)
    if brief:
        return
    with left.expander("Evidence"):
        rows = [{"what": _head(name), "value": _value(name, value)} for name, value in finding.evidence.items()]
        if finding.edit:
            rows.append({"what": "the change that was replayed", "value": finding.edit})
        st.dataframe(rows, hide_index=True, key=f"evidence-{number}")
    if finding.settings:
        with left.expander("How to set it"):
            rows = [{"where": name, "setting": str(value)} for name, value in finding.settings.items()]
            st.dataframe(rows, hide_index=True, key=f"settings-{number}")


def shown_at(finding: Finding, view: View, store: TimelineStore) -> dict[str, str]:
    """Give the selection under which the timeline shows a finding: its step, its rank beside others, what it is of."""
    query = {"run": str(view.run)} if view.run else {}
    step = next((each for each in store.steps if each.number == finding.where.get("step")), None)
    if step is None and store.steps:
        step = store.steps[len(store.steps) // 2]
    if step is not None:
        room = (step.end_ns - step.start_ns) // 20
        query["range"] = f"{step.start_ns - room}-{step.end_ns + room}"
    rank = finding.where.get("rank")
    if isinstance(rank, int) and rank in store.ranks:
        query["ranks"] = ",".join(str(each) for each in sorted({rank, *list(store.ranks)[:8]}))
    query["show"] = _rows_of(finding)
    return query


def _rows_of(finding: Finding) -> str:
    """Choose the rows that show what a finding is about."""
    if "stage" in finding.where or "stages" in finding.where:
        return "exposed,actions"
    return "host,exposed" if finding.code.startswith(("host", "late-input", "gc")) else "exposed,path"


def _head(name: str) -> str:
    return next((name.removesuffix(end) for end in _UNITS if name.endswith(end)), name).replace("_", " ")


def _value(name: str, value: object) -> str:
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), None)
    return quantity(value, unit) if unit is not None and isinstance(value, int | float) else str(value)
