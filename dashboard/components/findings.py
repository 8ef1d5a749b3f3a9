"""Findings with place, gain, error, evidence and a link to the timeline; outlier ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import streamlit as st

from usp_prof.model.finding import Basis, Finding
from usp_prof.model.metric import Unit
from usp_prof.model.rule_code import RuleCode
from usp_prof.report.document import Document, Findings
from usp_prof.report.figures import Figures
from usp_prof.report.format import column_scale, quantity
from usp_prof.report.sections.summary import worst_ranks
from usp_prof.report.verdict import error_of_gain, of_step
from usp_prof.report.words import changes_of_parts, further_place, left_out

from .. import data, state
from ..state import View
from .blocks import page_link, unbroken

MIDDLE = "middle"
"""Place on the timeline of findings without a step: the middle step."""
_PLACE = frozenset({"at_rank", "at_step", "start_ns", "end_ns"})
"""Evidence that gives the place."""
_MOST_PEERS = 3
"""Ranks shown next to the rank of a finding."""
_UNITS = {"_ns": Unit.NS, "_bytes": Unit.BYTES, "_fraction": Unit.FRACTION}


def show_findings(block: Findings, view: View) -> None:
    """Show findings, most important first."""
    remark = left_out(block.more, block.noise)
    if not block.causes:
        st.success("No finding is worth acting on." if remark else "No rule found anything.")
    for number, cause in enumerate(block.causes):
        with st.container(border=True):
            show_finding(cause.finding, view, number, brief=True)
            if cause.parts:
                st.caption(state.plain(f"Same root cause: {', '.join(part.title for part in cause.parts)}"))
    if remark:
        st.caption(remark)
    if block.unasked:
        st.caption(state.plain(block.unasked))


def sure(finding: Finding) -> str:
    """Return error and basis of a gain, and its step if that excludes recording; a bound is an upper limit."""
    error = error_of_gain(finding)
    if finding.basis is Basis.BOUND:
        return f"upper limit ({error})" if error else "upper limit"
    return ", ".join([error, finding.basis.word, *([of_step(finding)] if finding.without_recording else [])])


def show_finding(finding: Finding, view: View, number: int, *, brief: bool = False) -> None:
    """Show one finding."""
    left, right = st.columns([3.2, 1.3])
    place = further_place(finding.title, finding.where)
    left.markdown(f"**{state.plain(finding.title)}**" + (f" ({state.plain(place)})" if place else ""))
    for line in (changes_of_parts(finding), finding.advice):
        if line:
            left.caption(state.plain(line))
    right.metric("gain", quantity(finding.gain_fraction, Unit.FRACTION) if finding.gain_fraction else "unknown")
    if finding.gain_fraction:
        right.caption(unbroken(sure(finding)))
    with right:
        page_link("timeline", "Show me", shown_at(finding, data.open_numbered(view.run).tables.ranks))
    if brief:
        return
    with left.expander("Evidence and settings" if finding.settings else "Evidence"):
        _evidence(finding, number)
        if finding.settings:
            rows = [{"library": name, "setting": str(value)} for name, value in finding.settings.items()]
            st.dataframe(rows, hide_index=True, key=f"settings-{number}")


def _evidence(finding: Finding, number: int) -> None:
    """Show the evidence of a finding: figures as numbers that sort, the rest as sentences."""
    rows = figures_of(finding)
    if rows:
        st.dataframe(rows, hide_index=True, key=f"evidence-{number}")
    sentences = [f"{_head(name)}: {value}" for name, value in finding.evidence.items() if isinstance(value, str)]
    if "at_rank" in finding.evidence and "at_step" in finding.evidence:
        sentences.append(f"most visible on rank {finding.evidence['at_rank']} in step {finding.evidence['at_step']}")
    if finding.edit:
        sentences.append(f"replayed change: {finding.edit}")
    for sentence in sentences:
        st.caption(state.plain(sentence))


def shown_at(finding: Finding, ranks: Sequence[int]) -> dict[str, str]:
    """Return the timeline selection of a finding: its time, its rank next to others, and the rows to show."""
    query = {}
    begin, end = (finding.evidence.get(name) for name in ("start_ns", "end_ns"))
    step = finding.where.get("step", finding.evidence.get("at_step", MIDDLE))
    query["at"] = f"{begin}-{end}" if isinstance(begin, int) and isinstance(end, int) else str(step)
    first, named_ranks = _ranks_of(finding, ranks)
    if named_ranks:
        # A group's members are shown alone; a single rank is shown next to others.
        shown = sorted(named_ranks) if len(named_ranks) > 1 else with_peers(named_ranks, ranks)
        query["only"] = state.format_ranks(tuple(shown))
    if first is not None:
        query["focus"] = str(first)
    query["show"] = _rows_of(finding)
    return query


def with_peers(chosen_ranks: set[int], ranks: Sequence[int]) -> tuple[int, ...]:
    """Add the nearest other ranks to the chosen ones, in order: they are most likely their peers."""
    other_ranks = [rank for rank in ranks if rank not in chosen_ranks]
    nearest = sorted(other_ranks, key=lambda rank: min(abs(rank - chosen_rank) for chosen_rank in chosen_ranks))
    return tuple(sorted(chosen_ranks | set(nearest[:_MOST_PEERS])))


def _ranks_of(finding: Finding, ranks: Sequence[int]) -> tuple[int | None, set[int]]:
    """Return the rank that shows a finding, and all ranks that it names: one rank, or the members of its group."""
    candidates = [finding.where.get("rank"), finding.evidence.get("at_rank")]
    members = str(finding.where.get("group") or "").partition("@")[2].split(",")
    candidates += [int(member) for member in members if member.isdigit()]
    present_ranks = [rank for rank in candidates if isinstance(rank, int) and rank in ranks]
    return (present_ranks[0] if present_ranks else None), set(present_ranks)


_OF_HOST = {
    RuleCode.HOST_BOUND, RuleCode.HOST_PAUSE, RuleCode.SLOW_HOST, RuleCode.LATE_INPUT, RuleCode.BLOCKING_SYNC,
    RuleCode.BLOCKING_COPIES, RuleCode.MEMORY_PRESSURE,
}  # fmt: skip
"""Rules on hosts, whose proof is on the host's rows of the timeline."""


def _rows_of(finding: Finding) -> str:
    """Choose the rows that show a finding."""
    if "stage" in finding.where or "stages" in finding.where:
        return "exposed,actions"
    return "host,exposed" if finding.code in _OF_HOST else "exposed,path"


def _head(name: str) -> str:
    """Return a name in words, without its unit."""
    for ending in _UNITS:
        name = name.removesuffix(ending)
    return name.replace("_", " ")


def figures_of(finding: Finding) -> list[dict[str, str | float]]:
    """Return the numbers of the evidence; those with the same unit have one scale."""
    figures = {
        name: value for name, value in finding.evidence.items() if name not in _PLACE and isinstance(value, int | float)
    }
    heads = [_head(name) for name in figures]
    units = {name: next((unit for end, unit in _UNITS.items() if name.endswith(end)), None) for name in figures}
    rows: list[dict[str, str | float]] = []
    for name, value in figures.items():
        unit = units[name]
        if unit is None:
            counts = heads.count(_head(name)) > 1  # such as the peers, and their time
            label = f"number of {_head(name)}" if counts else _head(name)
            rows.append({"what": label, "value": round(value, 3) or 0, "unit": ""})
            continue
        scale = column_scale([figures[other] for other in figures if units[other] is unit], unit)
        scaled = round(value / scale.factor, scale.decimals) or 0.0  # not -0.0, which the grid writes with its sign
        rows.append({"what": _head(name), "value": scaled, "unit": scale.suffix})
    return rows


# Outlier ranks: those that cost the others time, or compute slower than their peers.


def outliers_first(document: Document, ranks: Iterable[int]) -> tuple[int, ...]:
    """Sort ranks: the worst outliers first, then the others by number."""
    outliers = outlier_ranks(document)
    place_of_outlier = {rank: place for place, rank in enumerate(outliers)}
    return tuple(sorted(ranks, key=lambda rank: (place_of_outlier.get(rank, len(outliers)), rank)))


def outlier_ranks(document: Document) -> tuple[int, ...]:
    """Return the outliers, the worst first."""
    return tuple(int(rank) for rank in worst_ranks(Figures(document.values)))
