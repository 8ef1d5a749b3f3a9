"""Overview page: findings first, then the figures that they are based on."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar
from urllib.parse import urlencode

import streamlit as st

from usp_prof.charts.inputs import BreakdownRows, HeatMap, Part
from usp_prof.findings.causes import Cause
from usp_prof.model.topology import Topology
from usp_prof.report.document import Block, Chart, DataTable, Document, Findings, Health, KeyFigures, Section, Stack
from usp_prof.report.figures import Figures

from .. import data, served_runs, state
from ..answers import incident
from ..answers.pictures import charts_of_kind
from ..components import findings
from ..components.blocks import folded, page_link, show, show_all, show_parts, verdict
from ..components.choices import choose_tab
from ..components.findings import show_findings, shown_at
from ..components.timeline import timeline
from ..state import Page, Room, View
from ..work import wait

ORDER = "Problems first, then alternatives. Gain: share of the step that a change saves, ± its error; gains overlap."
MOST_RANKS = 6
"""Number of ranks shown for the longest step."""
ORDERS = {"rank": "by rank", "slowest": "most compute first", "waiting": "longest idle first"}

BlockKind = TypeVar("BlockKind")


def draw() -> None:
    """Draw the page."""
    view = state.current()
    document = wait(data.ask_document(view.run, view.selection))
    verdict(document.verdict.sentence)
    _head(document)
    blocks = document.summary.blocks
    for block in _blocks_of_kind(blocks, KeyFigures):
        show(block, "key-figures")
    left, right = st.columns([1, 1], gap="large")
    with left:
        _wrong(document, view)
    with right:
        for stack in _blocks_of_kind(blocks, Stack):
            st.markdown(f"**{stack.title}**")  # its total would be a second step time next to the run's
            show_parts(stack)
        place = st.container(key="worst-step")
    _folds(document, view)
    with place:  # last, since a first visit waits for it
        _worst_step(document, view)


def _wrong(document: Document, view: View) -> None:
    """Show the findings in the report's order, and the health of the traces."""
    st.markdown("**Findings**, most important first" if len(document.findings) > 1 else "**Findings**")
    if document.findings:
        st.caption(ORDER)
    for block in _blocks_of_kind(document.summary.blocks, Findings):
        show_findings(block, view)
    if document.findings:
        page_link("suggestions", "All findings, and what they save together")
    offer_incident(document, view)
    for doubt in _blocks_of_kind(document.summary.blocks, Health):
        show(doubt, "health")


def _worst_step(document: Document, view: View) -> None:
    """Show the longest of the selected steps on the timeline, for outlier ranks and some others."""
    store = wait(data.ask_timeline(view.run))
    steps = [step for step in store.steps if step.number in document.run.steps] or store.steps
    begin, end = 0, store.span_ns
    if steps:
        worst = max(steps, key=lambda step: step.end_ns - step.start_ns)
        begin, end = worst.start_ns, worst.end_ns
        st.markdown(_step_name(worst.number, len(steps), document))
    ranks = findings.outliers_first(document, view.ranks or store.ranks)[:MOST_RANKS]
    room = (end - begin) // 50
    timeline(
        served_runs.source(view.run), key="worst", ranks=list(ranks), kinds=["exposed"], fixed=True,
        compact=True, range=[begin - room, end + room], height=280,
    )  # fmt: skip
    page_link("timeline", "Open in Timeline", {"at": str(worst.number)} if steps else {})


def _step_name(step: int, steps: int, document: Document) -> str:
    """Return the name of the drawn step, or of the recorded window if steps are unknown."""
    if Figures(document.values).overall("job_step_time") is None:
        return "**Recorded window**"
    return f"**Longest step** ({step})" if steps > 1 else f"**Step {step}**"


def _folds(document: Document, view: View) -> None:
    """Show folded details: each rank's step, the summary's tables, health."""
    layout = data.open_numbered(view.run).tables.topology
    for number, chart in enumerate(charts_of_kind(document, BreakdownRows)):
        folded(
            f"by-rank-{number}" if number else "by-rank",
            "Each rank's step",
            partial(_by_rank, chart, document, layout),
        )
    for chart in charts_of_kind(document, HeatMap):
        folded("heat-map", chart.title, partial(show, Chart("", chart.data), "heat-map"))
    for number, table in enumerate(_blocks_of_kind(document.summary.blocks, DataTable)):
        folded(f"summary-{number}", table.title, partial(show, replace(table, title=""), f"summary-{number}"))
    for part in document.sections:
        if part.id == "health":
            folded("health", part.title, partial(show_all, part.blocks, part.id))


def _head(document: Document) -> None:
    facts = document.run
    axes = " x ".join(f"{axis} {size}" for axis, size in facts.axes.items())
    count = len(facts.ranks)
    facts_in_words = [
        facts.name,
        f"{count} of {facts.world_size} ranks" if facts.world_size else f"{count} rank{'s' if count > 1 else ''} read",
        axes or ("axes unknown" if count > 1 else ""),
        ", ".join(facts.devices) or "CPU",
    ]
    st.caption(
        state.plain(" · ".join(fact for fact in facts_in_words if fact))
        + (" · **paced: compute is synthetic**" if facts.paced else ""),
        width="stretch",
    )


def _by_rank(chart: Chart, document: Document, layout: Topology) -> None:
    """Show each rank's step in the selected order; with many ranks, outliers and the mean of the rest."""
    axes = tuple(layout.axes) if len(layout.axes) > 1 and layout.coordinates else ()
    offered = ORDERS | {axis: f"by {axis}" for axis in axes}
    shown_as = {"format_func": offered.__getitem__, "label_visibility": "collapsed"}
    order = choose_tab("Order", "order", tuple(offered), "rank", **shown_as)
    rows = chart.data
    if isinstance(rows, BreakdownRows):
        place_of_label = {
            f"rank {rank}": places[order] for rank, places in layout.coordinates.items() if order in places
        }
        show(Chart("", along(rows, order, place_of_label) if place_of_label else ordered(rows, order)), "by-rank")
    outliers = findings.outlier_ranks(document)
    if outliers:
        shown = ", ".join(f"{rank}" for rank in outliers[:12]) + (" ..." if len(outliers) > 12 else "")
        st.caption(f"Outliers: {'rank' if len(outliers) == 1 else 'ranks'} {shown}")


def ordered(rows: BreakdownRows, order: str) -> BreakdownRows:
    """Sort rows: as they are, by most compute, or by most idle time."""
    roles = {"slowest": ("compute",), "waiting": ("idle",)}.get(order)
    if roles is None:
        return rows
    parts = [part for part in rows.parts if part.role.partition(":")[0] in roles]
    size = [sum(part.values_ns[place] for part in parts) for place in range(len(rows.labels))]
    return _rows_at(rows, sorted(range(len(rows.labels)), key=lambda place: -size[place]))


def along(rows: BreakdownRows, axis: str, place_of_label: Mapping[str, int]) -> BreakdownRows:
    """Sort rows by their coordinate on an axis and label them with it; rows without one come first."""
    order = sorted(range(len(rows.labels)), key=lambda place: place_of_label.get(rows.labels[place], -1))
    sorted_rows = _rows_at(rows, order)
    labels = (
        f"{axis} {place_of_label[label]}, {label}" if label in place_of_label else label for label in sorted_rows.labels
    )
    return replace(sorted_rows, labels=tuple(labels))


def _rows_at(rows: BreakdownRows, places: Sequence[int]) -> BreakdownRows:
    return BreakdownRows(
        tuple(rows.labels[place] for place in places),
        tuple(Part(part.label, part.role, tuple(part.values_ns[place] for place in places)) for part in rows.parts),
    )


def _blocks_of_kind(blocks: Sequence[Block], kind: type[BlockKind]) -> list[BlockKind]:
    return [block for block in blocks if isinstance(block, kind)]


# The incident story: two buttons that download a description of the most important cause.


def offer_incident(document: Document, view: View) -> None:
    """Offer the story of the most important cause, as HTML and as Markdown."""
    cause = document.verdict.cause
    if cause is None:
        return
    shown_cause = _cause_to_show(cause, view)
    name = served_runs.name(view.run)
    tables = data.open_numbered(view.run).tables
    stem = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-") or "run"

    def story() -> tuple[Section, ...]:
        return incident.sections(document, data.timeline_store(view.run), shown_cause)

    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="incident"):
        st.markdown("**Incident story**", width="content", help="describes the first finding, named above")
        st.download_button(
            "HTML", lambda: incident.as_webpage(story(), tables, name).encode(), f"{stem}-incident.html", "text/html",
            on_click="ignore", help="one page to send: verdict, straggler, victims, cause, the change and a link",
        )  # fmt: skip
        st.download_button(
            "Markdown", lambda: incident.as_markdown(story(), name), f"{stem}-incident.zip", "application/zip",
            on_click="ignore", help="the same as Markdown with drawings",
        )  # fmt: skip


def _cause_to_show(cause: Cause, view: View) -> incident.ShownCause:
    ranks = data.open_numbered(view.run).tables.ranks
    shown = shown_at(cause.finding, ranks)
    origin = re.sub(r"^(https?://[^/]+).*$", r"\1", str(st.context.url or ""))
    return incident.ShownCause(
        cause, shown, commands(cause, view.run), f"{origin}/timeline?{served_runs.source(view.run)}&{urlencode(shown)}"
    )


def commands(cause: Cause, run: int) -> tuple[str, ...]:
    """Return the commands that replay the change and show the rows that prove the finding."""
    served = served_runs.runs()[run]
    where = shlex.quote(served.path) + (f" --run {shlex.quote(served.run)}" if served.run else "")
    commands = []
    if cause.finding.edit:
        commands.append(f"usp-prof whatif {where} --edit {shlex.quote(cause.finding.edit)}")
    if cause.finding.rows:
        commands.append(f"usp-prof query {where} {shlex.quote(cause.finding.rows)}")
    return tuple(commands)


OVERVIEW = Page("Overview", "overview", draw, Room.DIAGNOSE)
