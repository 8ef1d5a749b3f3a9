"""Compare page: why the step of one run is longer than another's, metrics with their noise, aligned timelines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import streamlit as st

from usp_prof.gate.comparison import Pair
from usp_prof.model.selection import EVERYTHING
from usp_prof.report.answers import comparison as comparison_answer
from usp_prof.report.document import Document, Section
from usp_prof.timeline.store import TimelineStore

from .. import data, served_runs, state
from ..components.blocks import folded, note_whole_run, show, show_all, verdict
from ..components.choices import type_integer
from ..components.download import numbers
from ..components.findings import outliers_first
from ..components.timeline import timeline
from ..report import offer
from ..state import Page, Room
from ..work import wait

AROUND_PX, RANK_PX = 70, 37
"""Height of a timeline: of its axis, and of a folded rank."""
MOST_RANKS = 8
"""Number of ranks whose folded timelines are shown."""
MOST_TRIED = 4
"""Number of runs that are opened to find a similar one."""


def draw() -> None:
    """Draw the page."""
    if served_runs.run_count() < 2:
        st.info("One run is open. To compare, start the dashboard with two or more.")
        st.code("usp-prof dashboard traces/before traces/after")
        return
    names = [run.name for run in served_runs.runs()]
    second = state.run_index()
    first = _earlier_run(second, names)
    if first is None:
        return
    pair = wait(data.ask_comparison(first, second)).pairs[0]
    _why(pair, first, second, names)
    step = _timelines(first, second, names)
    _details(pair, names[first], names[second])
    everything = _lists_everything()
    offer(
        COMPARE, state.current().run, f"{first} {second} {everything} {step}",
        lambda: (
            *comparison_answer.sections(pair, names[first], names[second], everything=everything),
            *_drawn((first, second), step),
        ),
    )  # fmt: skip


def _earlier_run(second: int, names: Sequence[str]) -> int | None:
    """Choose the run to compare with: by default a similar one; None, with the reason, if no run is chosen."""
    other_runs = [index for index in range(len(names)) if index != second]
    asked_key = st.query_params.get("before", "")
    asked_run = served_runs.index_of(asked_key)
    is_unknown = bool(asked_key) and asked_run is None
    usual = None if is_unknown or asked_run in other_runs else _similar_run(second)
    shown_run = asked_run if asked_run in other_runs else usual
    shown = other_runs.index(shown_run) if shown_run is not None else None
    first: int | None = st.selectbox(
        f"Compare {names[second]} with an earlier run", other_runs, shown, names.__getitem__,
        placeholder="Choose a run", **state.bound("before", second, shown),
    )  # fmt: skip
    if first is not None:
        state.choose("before", served_runs.key(first) if first != usual else None)
    elif is_unknown:
        st.error(state.plain(state.not_served(asked_key)))
    else:
        st.info(state.plain(f"No other run has the device and the work of {names[second]}. Choose a run to see both."))
    return first


def _similar_run(second: int) -> int | None:
    """Return the nearest run whose times can be compared: an earlier one, or else a later one."""
    nearest = [*range(second - 1, -1, -1), *range(second + 1, served_runs.run_count())][:MOST_TRIED]
    return next((index for index in nearest if wait(data.ask_is_similar(index, second))), None)


def _why(pair: Pair, first: int, second: int, names: Sequence[str]) -> None:
    """Show which step is longer, and why."""
    sentence = comparison_answer.verdict(pair, names[first], names[second])
    is_compared = comparison_answer.are_times_compared(pair)
    repaired = _repaired(first, second, names[first]) if is_compared else ""
    verdict(f"{sentence} {repaired}".strip())
    note_whole_run(state.current().selection)
    if pair.doubts:
        doubts = "; ".join(pair.doubts)
        st.warning(state.plain(f"{doubts[:1].upper()}{doubts[1:]}"))
    why = comparison_answer.waterfall(pair, names[first], names[second])
    show(why.blocks[0], "steps")
    if is_compared:
        show(wait(data.ask_made(("compare", second), lambda: comparison_answer.picture(pair), first)), "picture")


def _details(pair: Pair, before: str, after: str) -> None:
    """Fold the parts of the step, the metrics, the work and the conditions."""
    if comparison_answer.are_times_compared(pair):
        parts = comparison_answer.waterfall(pair, before, after).blocks[-1]
        folded("parts", "Parts of the step, before and after", partial(show, parts, "parts"))
    folded("metrics", "Metrics, most important first", lambda: _metrics(pair))
    for part in (comparison_answer.work(pair), comparison_answer.conditions(pair)):
        if part.blocks:
            folded(part.id, part.title, partial(show_all, part.blocks, part.id))


def _lists_everything() -> bool:
    """Return whether the metrics of each axis, cause and rank are listed."""
    return state.word("all", ("0", "1")) == "1"


def _repaired(first: int, second: int, before: str) -> str:
    """Name the straggler of the first run if the second run has none, or another."""
    late, later = (wait(data.ask_document(index, EVERYTHING)).verdict.straggler for index in (first, second))
    if late is None or late == later:
        return ""
    text = f"Rank {late}, the straggler of {before}, no longer delays the other_runs"
    return f"{text}; rank {later} does." if later is not None else f"{text}."


def _drawn(runs: tuple[int, int], step: int | None) -> tuple[Section, ...]:
    """Draw the timelines of a step of both runs for a page without a server."""
    if step is None:
        return ()
    steps = [
        (served_runs.name(run), data.open_numbered(run).tables, data.timeline_store(run).steps[step]) for run in runs
    ]
    return (comparison_answer.timelines([(name, tables, job_step.number) for name, tables, job_step in steps]),)


def _metrics(pair: Pair) -> None:
    """List the metrics; the CSV contains raw values with the interval of each change."""
    place = st.container()
    everything = st.toggle("Each axis, cause and rank", _lists_everything(), **state.bound("all"))
    state.choose("all", "1" if everything else None)
    with place:
        shown, raw = (
            comparison_answer.metrics_shown(pair, everything=everything),
            comparison_answer.metrics_frame(pair, everything=everything),
        )
        numbers(shown, raw, "metrics")


def _timelines(first: int, second: int, names: list[str]) -> int | None:
    """Show the linked timelines of both runs, aligned at the start of a step; return the position of the step."""
    stores = [wait(data.ask_timeline(index)) for index in (first, second)]
    most = min(len(store.steps) for store in stores)
    if not most:
        return None
    title, choice = st.columns([3, 1], vertical_alignment="bottom")
    title.markdown("**Timelines, aligned by step**")
    place = 0
    if most > 1:
        with choice:
            place = type_integer("Recorded step (1: the first of each run)", "step", 1, most, 1) - 1
    ranks = _ranks_of_both(first, stores)
    longest = max(store.steps[place].end_ns - store.steps[place].start_ns for store in stores)
    for index, store in zip((first, second), stores, strict=True):
        step = store.steps[place]
        st.markdown(f"**{state.plain(names[index])}**, step {step.number}")
        timeline(
            served_runs.source(index),
            key=f"aligned-{index}",
            ranks=ranks or list(store.ranks)[:MOST_RANKS],
            kinds=["exposed"],
            compact=True,
            jump=[step.start_ns, step.start_ns + longest],
            zero=step.start_ns,
            group="compare",
            height=AROUND_PX + RANK_PX * len(ranks or store.ranks[:MOST_RANKS]),
        )
    return place


def _ranks_of_both(first: int, stores: Sequence[TimelineStore]) -> list[int]:
    """Choose ranks that both runs have, outliers of the first run first."""
    common = set(stores[0].ranks).intersection(*(store.ranks for store in stores))
    before = wait(data.ask_document(first, EVERYTHING))
    return sorted(outliers_first(before, sorted(common))[:MOST_RANKS])


def _alone(_: Document) -> str:
    return (
        ""
        if served_runs.run_count() > 1
        else "One run is open. To open two: usp-prof dashboard traces/before traces/after"
    )


COMPARE = Page("Compare", "compare", draw, Room.COMPARE, _alone)
