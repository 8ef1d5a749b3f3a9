"""What ran when, on every rank? The timeline, a search over it, and what was picked."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import streamlit as st

from dashboard import data, state
from dashboard.components.download import table
from dashboard.components.timeline import timeline
from dashboard.theme import category_colors
from dashboard.timeline.neighbours import call_of, launch_of, place
from dashboard.timeline.rows import CATEGORIES
from dashboard.timeline.search import compiled, search
from usp_prof.model.selection import Selection
from usp_prof.tables.export import beginning, export

TITLE = "Timeline"
PATH = "timeline"
FIRST_RANKS = 16
"""More ranks than this are shown when they are asked for."""


def draw() -> None:
    """Draw the page."""
    view = state.current()
    run = data.open_numbered(view.run)
    if not data.is_prepared(view.run):
        bar = st.progress(0.0, "preparing the timeline (once for each run)")
        data.timeline_store(view.run, lambda done, of: bar.progress(done / of, f"prepared {done} of {of} ranks"))
        bar.empty()
    ranks = view.ranks or run.tables.ranks
    shown = ranks[:FIRST_RANKS] if view.ranks is None else ranks
    left, middle, right = st.columns([4, 1.2, 1.6])
    pattern = left.text_input(
        "Search", st.query_params.get("find", ""), placeholder="a regular expression: nccl.*AllReduce", max_chars=120
    )
    state.keep("find", pattern)
    host = middle.toggle("Host threads", state.word("host", ("no", "yes")) == "yes")
    state.keep("host", "yes" if host else None)
    _legend(right)
    found = _search(view.run, pattern, shown)
    if len(shown) < len(ranks):
        st.caption(f"The first {len(shown)} of {len(ranks)} ranks; name others under *Ranks* at the left.")
    before = st.session_state.get("timeline")
    picked = before.get("picked") if before else None
    members, launch = _neighbours(view.run, picked)
    answer = timeline(
        f"run={view.run}", key="timeline", dark=state.is_dark(), ranks=list(shown), host=host,
        range=found or _range(), pattern=pattern if compiled(pattern) else "", height=600, members=members,
        launch=launch,
    )  # fmt: skip
    st.caption(
        "wheel: zoom · drag: pan · shift-drag: select · W A S D: zoom and pan · F: all · double-click: fit · "
        "click a row's name: pin it"
    )
    if answer.picked:
        _details(view.run, int(answer.picked["rank"]), int(answer.picked["event"]))
    if answer.selected_range:
        _contents(view.run, shown, answer.selected_range)


def _search(index: int, pattern: str, ranks: tuple[int, ...]) -> list[int] | None:
    """Count what matches and step through it; gives the range to show when a step was taken."""
    if not pattern:
        return None
    matcher = compiled(pattern)
    if matcher is None:
        st.caption("That is no regular expression yet.")
        return None
    matches = search(data.timeline_store(index), matcher, ranks)
    left, back, forth, _ = st.columns([2.2, 0.8, 0.8, 4])
    step = int(back.button("Previous", disabled=not len(matches))) * -1
    step += int(forth.button("Next", disabled=not len(matches)))
    key = ("match", index, pattern)
    at = st.session_state.get(key, -1)
    if step and len(matches):
        at = (max(at, 0 if step < 0 else -1) + step) % len(matches)
        st.session_state[key] = at
    place = f", number {at + 1:,} in view" if at >= 0 and len(matches) else ""
    left.caption(f"{len(matches):,} slices of {matches.names:,} names{place}")
    if not step or not len(matches):
        return None
    found = matches.at(at)
    margin = max(int(found.dur_ns), 1000) * 4
    return [found.start_ns - margin, found.start_ns + int(found.dur_ns) + margin]


def _neighbours(index: int, picked: dict[str, int] | None) -> tuple[list[dict[str, float]], dict[str, float] | None]:
    """Give the places of a picked slice's fellow members and of its launch."""
    if not picked:
        return [], None
    store, tables = data.timeline_store(index), data.open_numbered(index).tables
    rank, event = int(picked["rank"]), int(picked["event"])
    if rank not in tables.ranks:
        return [], None
    call, launch = call_of(tables, rank, event), launch_of(tables, rank, event)
    places = [place(store, *part) for part in call.parts] if call else []
    at = place(store, rank, launch) if launch is not None else None
    return [found.plain() for found in places if found], at.plain() if at else None


def _legend(place: Any) -> None:  # noqa: ANN401 - any Streamlit container
    colors = dict(zip(CATEGORIES, category_colors(dark=state.is_dark()), strict=True))
    named = ("compute", "dp", "tp", "cp", "pp", "ep", "world", "memcpy")
    box = "display:inline-block;width:10px;height:10px;margin:0 4px 0 8px"
    chips = "".join(f"<span style='{box};background:{colors[name]}'></span>{name}" for name in named)
    place.html(f"<div style='font-size:12px;padding-top:1.9rem'>{chips}</div>")


def _range() -> list[int] | None:
    match = re.fullmatch(r"(-?\d{1,15})-(\d{1,15})", st.query_params.get("range", ""))
    if not match or int(match[2]) <= int(match[1]):
        return None
    return [int(match[1]), int(match[2])]


def _details(index: int, rank: int, event: int) -> None:
    run = data.open_numbered(index)
    if rank not in run.tables.ranks:
        return
    events = run.tables.columns("events", rank)
    if not 0 <= event < len(events):
        return
    row = events.arrow.slice(event, 1).to_pylist()[0]
    st.markdown(f"**Rank {rank}, event {event}**")
    st.code(row["name"], language=None, wrap_lines=True)
    call = call_of(run.tables, rank, event)
    if call:
        st.markdown(
            f"{call.op} on **{call.axis}**, {len(call.parts)} members read, {call.bytes:,} bytes"
            + (f", rank {call.late_rank} arrived last" if call.late_rank >= 0 else "")
        )
    facts = {key: row[key] for key in ("category", "start_ns", "dur_ns", "process", "thread", "stream", "correlation")}
    left, right = st.columns(2)
    left.json(facts)
    try:
        right.json(json.loads(row["args"] or "{}"))
    except ValueError:
        right.code(row["args"], language=None, wrap_lines=True)


def _contents(index: int, ranks: tuple[int, ...], picked: list[int]) -> None:
    store, run = data.timeline_store(index), data.open_numbered(index)
    start, end = (int(bound) + store.origin_ns for bound in picked)
    listed = ",".join(str(int(rank)) for rank in ranks)
    st.markdown(f"**What ran in the {(end - start) / 1e6:.3f} ms selected**")
    frame = run.query(
        "SELECT name, kind, axis, count(*) AS calls, count(DISTINCT rank) AS ranks, "  # noqa: S608 - whole numbers only
        f"sum(least(start_ns + dur_ns, {end}) - greatest(start_ns, {start})) / 1e6 AS total_ms, "
        "max(dur_ns) / 1e3 AS longest_us "
        f"FROM activities WHERE start_ns < {end} AND start_ns + dur_ns > {start} AND rank IN ({listed}) "
        "GROUP BY ALL ORDER BY total_ms DESC LIMIT 200"
    ).df()
    table(frame, "selection")
    if st.button("Write this range for Perfetto"):
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "range.json.gz"
            window = (start - beginning(run.tables, ranks), end - beginning(run.tables, ranks))
            done = export(run.tables, target, Selection(ranks), window_ns=window)
            st.download_button(
                f"Download {done.events:,} events of {done.ranks} ranks", target.read_bytes(), "range.json.gz"
            )
