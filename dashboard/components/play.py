"""Play the fix: a step morphs from recorded to predicted; beneath it the same step of a repaired run, as measured."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import streamlit as st

from usp_prof.model.metric import Unit
from usp_prof.report.document import Document
from usp_prof.report.format import quantity
from usp_prof.timeline.store import JobStep
from usp_prof.whatif.predict import Prediction

from .. import data, served_runs, state
from ..state import View
from ..work import wait
from .blocks import folded
from .choices import choose_word
from .findings import outliers_first
from .timeline import timeline

MOST_RANKS = 16
ROW_PX, AROUND_PX = 24, 70
NOTHING = "nothing"


def offer_play(view: View, document: Document, prediction: Prediction) -> None:
    """Offer to watch a prediction."""
    folded("play", "Play the fix: from recorded to predicted", lambda: _play(view, document, prediction))


def _play(view: View, document: Document, prediction: Prediction) -> None:
    if prediction.rescheduled is not None:
        st.caption("Another order of pipeline actions cannot be played; *Pipeline* draws it as a schedule.")
        return
    store = wait(data.ask_timeline(view.run))
    step = played_step(store.steps, view)
    if step is None:
        st.caption("No recorded step can be played.")
        return
    replayed = set(prediction.replayed.tables.ranks)
    chosen = [rank for rank in outliers_first(document, view.ranks or tuple(store.ranks)) if rank in replayed]
    if not chosen:
        st.caption("These ranks were not replayed; other ranks represent them.")
        return
    ranks = sorted(chosen[:MOST_RANKS])
    edits = " ".join(str(edit) for edit in prediction.edits)
    note = f" ({len(ranks)} of {len(store.ranks)}, with the outliers)" if len(ranks) < len(store.ranks) else ""
    st.markdown(f"**Step {step.number}**, one row per rank{note}: compute above communication, blank while idle")
    length = step.end_ns - step.start_ns
    range_ns = [-length // 50, length + length // 10]  # ranks do not end together: some work ends after the step
    _morph(view.run, step, ranks, key="play", range_ns=range_ns, edits=edits)
    _measured(view, ranks, range_ns)


def played_step(steps: Sequence[JobStep], view: View) -> JobStep | None:
    """Return the longest selected step; the first of several is skipped because it waits for earlier work."""
    chosen = [step for step in steps if view.selection.takes_step(step.number)]
    settled = chosen[1:] if len(chosen) > 2 else chosen
    return max(settled, key=lambda step: step.end_ns - step.start_ns, default=None)


def _morph(
    run: int, step: JobStep, ranks: Sequence[int], *, key: str, range_ns: Sequence[int], edits: str = ""
) -> None:
    rank_list = "-".join(str(rank) for rank in ranks)
    played = f"{served_runs.source(run)}&t0={step.start_ns}&t1={step.end_ns}&ranks={rank_list}&edits={quote(edits)}"
    height = len(ranks) * ROW_PX + AROUND_PX
    timeline(
        served_runs.source(run), key=key, ranks=list(ranks), kinds=[], fixed=True,
        still=not edits, range=list(range_ns), play=played, height=height,
    )  # fmt: skip


def _measured(view: View, ranks: Sequence[int], range_ns: Sequence[int]) -> None:
    """Show the same step of another run on the same scale, such as the run recorded after the fix."""
    runs = [run for run in range(served_runs.run_count()) if run != view.run]
    if not runs:
        st.caption("Open a repaired run as well (`usp-prof dashboard BEFORE AFTER`) to compare with its measured step.")
        return
    index_of_key = {served_runs.key(run): run for run in runs}
    offered = (NOTHING, *index_of_key)
    names = {NOTHING: "nothing", **{key: served_runs.name(run) for key, run in index_of_key.items()}}
    chosen = choose_word("Measured run", "beside", offered, format_func=names.__getitem__)
    if chosen == NOTHING:
        return
    index = index_of_key[chosen]
    store = wait(data.ask_timeline(index))
    step, shared_ranks = played_step(store.steps, view), [rank for rank in ranks if rank in store.ranks]
    if step is None or not shared_ranks:
        st.caption("That run has no such step or ranks.")
        return
    length = quantity(step.end_ns - step.start_ns, Unit.NS)
    st.markdown(f"**{state.plain(names[chosen])}**, step {step.number} as measured: {length}")
    _morph(index, step, shared_ranks, key="play-measured", range_ns=range_ns)
