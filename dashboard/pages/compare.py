"""What is different between two runs? Metrics with their noise, and the step's parts that grew or shrank."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st

from dashboard import data, state
from dashboard.components.blocks import show
from dashboard.components.download import table
from dashboard.components.timeline import timeline
from dashboard.components.waiting import wait
from usp_prof.charts.inputs import Waterfall
from usp_prof.gate.comparison import Pair, direction
from usp_prof.model.metric import Unit
from usp_prof.report.document import Chart
from usp_prof.report.format import quantity, signed

TITLE = "Compare"
PATH = "compare"
MOST_RANKS = 4
SMALL = 0.01
"""Parts that changed by less than this share of the largest change are put together."""


def draw() -> None:
    """Draw the page."""
    if data.run_count() < 2:
        st.info("One run is open. To compare, start the dashboard with two or more.")
        st.code("usp-prof dashboard traces/before traces/after")
        return
    numbers = range(data.run_count())
    left, right = st.columns(2)
    names = [Path(path).name or path for path in data.paths()]
    first = left.selectbox("Before", numbers, state.number("before", 0, len(names) - 1) or 0, names.__getitem__)
    chosen = state.number("after", 0, len(names) - 1)
    second = right.selectbox("After", numbers, 1 if chosen is None else chosen, names.__getitem__)
    state.keep("before", first)
    state.keep("after", second)
    if first == second:
        st.info("Choose two different runs.")
        return
    pair = wait(data.ask_comparison(first, second)).pairs[0]
    _waterfall(pair)
    _metrics(pair)
    _work(pair)
    _timelines(first, second, names)
    for doubt in pair.doubts:
        st.caption(f"▲ {doubt}")
    for difference in pair.differences:
        st.caption(f"○ {difference}")


def _waterfall(pair: Pair) -> None:
    why = pair.why
    st.subheader("Why the step is longer or shorter", anchor="waterfall")
    st.markdown(
        f"step {quantity(why.step_before_ns, Unit.NS)} before, {quantity(why.step_after_ns, Unit.NS)} after: "
        f"**{signed(why.delta_ns, Unit.NS)}**"
    )
    rows = sorted(pair.waterfall, key=lambda part: -abs(part.delta_ns))
    show(Chart("", as_waterfall(pair)), "waterfall", state.is_dark())
    table(
        pd.DataFrame(
            [
                {
                    "part": part.name,
                    "before": quantity(part.before_ns, Unit.NS),
                    "after": quantity(part.after_ns, Unit.NS),
                    "difference": signed(part.delta_ns, Unit.NS),
                }
                for part in rows
            ]
        ),
        "waterfall",
    )


def as_waterfall(pair: Pair) -> Waterfall:
    """Set the parts out that changed; those too small to be seen are put together."""
    rows = sorted(pair.waterfall, key=lambda part: -abs(part.delta_ns))
    least = SMALL * max((abs(part.delta_ns) for part in rows), default=0.0)
    shown = [part for part in rows if abs(part.delta_ns) >= least and part.delta_ns]
    before = sum(part.before_ns for part in rows)
    rest = sum(part.delta_ns for part in rows if part not in shown)
    named = [(part.name, part.delta_ns) for part in shown] + ([("all else", rest)] if rest else [])
    return Waterfall("before", before, tuple(name for name, _ in named), tuple(delta for _, delta in named), "after")


def _timelines(first: int, second: int, names: list[str]) -> None:
    """Show both runs' timelines, aligned at the begin of a step; they move together."""
    stores = [wait(data.ask_timeline(index)) for index in (first, second)]
    most = min(len(store.steps) for store in stores)
    if not most:
        return
    st.subheader("The timelines, aligned by step", anchor="timelines")
    place = (state.number("step", 1, most) or 1) - 1
    if most > 1:
        place = st.number_input("Step of both, counted from the first recorded", 1, most, place + 1) - 1
        state.keep("step", place + 1)
    longest = max(store.steps[place].end_ns - store.steps[place].start_ns for store in stores)
    for index, store in zip((first, second), stores, strict=True):
        step = store.steps[place]
        st.markdown(f"**{state.plain(names[index])}**, step {step.number}")
        timeline(
            f"run={index}", key=f"aligned-{index}", dark=state.is_dark(), ranks=list(store.ranks)[:MOST_RANKS],
            kinds=["exposed"], jump=[step.start_ns, step.start_ns + longest], zero=step.start_ns, group="compare",
            height=330,
        )  # fmt: skip


def _metrics(pair: Pair) -> None:
    st.subheader("Metrics", anchor="metrics")
    plain = st.toggle("Each axis, cause and rank", value=False)
    rows = [
        {
            "metric": found.title,
            "of": found.key,
            "before": quantity(found.before, found.unit),
            "after": quantity(found.after, found.unit),
            "difference": direction(found) or str(found.reason),
        }
        for found in pair.judgements
        if plain or "[" not in found.key
    ]
    table(pd.DataFrame(rows), "metrics")


def _work(pair: Pair) -> None:
    if not pair.why.work:
        return
    st.subheader("Work that changed most, per step", anchor="work")
    rows = [
        {
            "what": change.sort,
            "name": change.name,
            "shapes": change.shape,
            "before": quantity(change.before_ns, Unit.NS),
            "after": quantity(change.after_ns, Unit.NS),
            "difference": signed(change.after_ns - change.before_ns, Unit.NS),
            "calls before": round(change.before_count, 1),
            "calls after": round(change.after_count, 1),
        }
        for change in pair.why.work
    ]
    table(pd.DataFrame(rows), "work")
