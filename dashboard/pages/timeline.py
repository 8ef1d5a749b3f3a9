"""What ran when, on every rank? The timeline, a search over it, and what was picked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import streamlit as st

from .. import data, routes, state
from ..components import findings
from ..components import slice as picked_slice
from ..components.download import data_table
from ..components.findings import MIDDLE
from ..components.timeline import category_colors, timeline
from ..engine import EVERYTHING, Unit, quantity
from ..state import Page, Room, View
from ..timeline.queries import call_of, contents, launch_of, matching, place, search
from ..timeline.rows import CATEGORIES
from ..work import wait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..timeline.store import TimelineStore

FIRST_RANKS = 16
"""More ranks than this are shown when they are asked for."""
KINDS = {
    "host": "Host threads", "exposed": "Exposed communication", "actions": "Pipeline actions", "path": "Critical path",
}  # fmt: skip
"""Rows that can be shown beside those of the device."""
ACTION = re.compile(r"[FBIW]\d* stage -?\d+")
ACTIONS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
HELP = (
    "wheel: zoom · drag: pan · shift-drag: select · alt-drag: zoom into a box · W A S D: zoom and pan · Z: zoom to the "
    "selection · F: all · double-click: fit a slice · click a row's name: pin it"
)


def draw() -> None:
    """Draw the page."""
    view = state.current()
    store = wait(data.ask_timeline(view.run))
    left, right = st.columns([3, 4])
    pattern = left.text_input(
        "Search", st.query_params.get("find", ""), placeholder="a regular expression: nccl.*AllReduce", max_chars=120
    )
    state.keep("find", pattern)
    kinds = _kinds(right, {row.kind for rank in store.ranks for row in store.rows(rank)})
    shown = _ranks(view)
    axes = {name.partition(" ")[2] for name in store.names if name.startswith("exposed ")}
    _legend(axes, {name[0] for name in store.names if ACTION.fullmatch(name)}, kinds)
    found = _search(view.run, pattern, shown, kinds)
    matched = (matching(store, pattern) or ()) if pattern else ()
    before = st.session_state.get("timeline")
    picked = before.get("picked") if before else None
    members, launch = _neighbours(view.run, picked)
    answer = timeline(
        f"run={view.run}", key="timeline", dark=state.is_dark(), ranks=list(shown), kinds=list(kinds),
        range=_range(store.span_ns) or about(store, view), jump=found, matched=sorted(matched), height=620, tall=True,
        members=members, launch=launch,
    )  # fmt: skip
    st.caption(HELP)
    if answer.picked:
        picked_slice.show(view.run, int(answer.picked["rank"]), int(answer.picked["event"]))
    if answer.selected_range:
        _contents(view.run, shown, kinds, answer.selected_range)


def _kinds(place: Any, there: set[str]) -> tuple[str, ...]:  # noqa: ANN401 - any Streamlit container
    """Let the reader choose which rows are shown."""
    offered = [kind for kind in KINDS if kind in there]
    asked = st.query_params.get("show", "exposed").split(",")
    chosen = place.pills(
        "Show", offered, selection_mode="multi", default=[kind for kind in offered if kind in asked],
        format_func=KINDS.__getitem__,
    )  # fmt: skip
    words = ",".join(chosen) or "none"
    state.keep("show", None if words == "exposed" else words)
    return tuple(chosen)


def _ranks(view: View) -> tuple[int, ...]:
    """Choose the ranks to show: those that were named, else the first, outliers before others."""
    if view.ranks is not None:
        return view.ranks
    ranks = data.open_numbered(view.run).tables.ranks
    if len(ranks) <= FIRST_RANKS:
        return ranks
    document = wait(data.ask_document(view.run, EVERYTHING))
    strange = findings.outlier_ranks(document)
    said = f"not like the others, and first: {len(strange)}; " if strange else ""
    st.caption(f"{FIRST_RANKS} of {len(ranks)} ranks, {said}name others under *Ranks* at the left.")
    return findings.outliers_first(document, ranks)[:FIRST_RANKS]


def _search(index: int, pattern: str, ranks: tuple[int, ...], kinds: tuple[str, ...]) -> list[int] | None:
    """Count what matches and step through it; gives the range to show once a step was taken."""
    if not pattern:
        return None
    wanted = matching(data.timeline_store(index), pattern)
    if wanted is None:
        st.caption("That is no regular expression yet.")
        return None
    matches = search(data.timeline_store(index), wanted, ranks, {"device", *kinds})
    left, back, forth, _ = st.columns([2.2, 0.8, 0.8, 4])
    step = int(back.button("Previous", disabled=not len(matches))) * -1
    step += int(forth.button("Next", disabled=not len(matches)))
    key = f"match {index} {pattern}"
    at = st.session_state.get(key, -1)
    if step and len(matches):
        at = (max(at, 0 if step < 0 else -1) + step) % len(matches)
        st.session_state[key] = at
    shown = f", number {at + 1:,} in view" if at >= 0 and len(matches) else ""
    left.caption(f"{len(matches):,} slices of {matches.names:,} names{shown}")
    if at < 0 or at >= len(matches):
        return None
    found = matches.at(at)
    margin = max(int(found.dur_ns) // 2, 2000)
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


def _legend(axes: set[str], actions: set[str], kinds: tuple[str, ...]) -> None:
    """Name the colours that are in view."""
    colors = dict(zip(CATEGORIES, category_colors(dark=state.is_dark()), strict=True))
    groups = {"": {"compute": "compute", "memcpy": "copies"}, "communication": {a: a for a in CATEGORIES if a in axes}}
    if "host" in kinds:
        groups["host"] = {"op": "op", "annotation": "annotation", "runtime": "runtime call"}
    if "actions" in kinds:
        groups["actions"] = {kind: name for kind, name in ACTIONS.items() if kind in actions}
    if "path" in kinds:
        groups[""] |= {"path": "critical path"}
    box = "display:inline-block;width:10px;height:10px;margin:0 5px 0 0"
    said = ""
    for title, named in groups.items():
        chips = "".join(
            f"<span style='margin-right:12px'><span style='{box};background:{colors[key]}'></span>{name}</span>"
            for key, name in named.items()
        )
        head = f"<span style='opacity:.65;margin-right:8px'>{title}</span>" if title else ""
        said += f"<span style='margin-right:10px;white-space:nowrap'>{head}{chips}</span> " if named else ""
    st.html(f"<div style='font-size:12px;line-height:1.6'>{said}</div>")


def _range(span_ns: int) -> list[int] | None:
    """Read the range from the address, as far as it lies about the run."""
    match = re.fullmatch(r"(-?\d{1,15})-(\d{1,15})", st.query_params.get("range", ""))
    if not match or int(match[2]) <= int(match[1]):
        return None
    start, end = max(int(match[1]), -span_ns // 2), min(int(match[2]), span_ns + span_ns // 2)
    return [start, end] if start < end else None


def about(store: TimelineStore, view: View) -> list[int] | None:
    """Give the range that a link names, by times or by a step, or that of the selected steps, with a little room."""
    at = st.query_params.get("at", "")
    times = re.fullmatch(r"(\d{1,19})-(\d{1,19})", at)
    if times:
        start, end = (int(time) - store.origin_ns for time in times.groups())
        room = max((end - start) // 2, 2000)
        inside = 0 <= start <= end <= store.span_ns
        return [max(start - room, 0), min(end + room, store.span_ns)] if inside else None
    numbers = [step.number for step in store.steps]
    wanted: Sequence[int] = ()
    if at:
        wanted = numbers[len(numbers) // 2 :][:1] if at == MIDDLE else [each for each in numbers if str(each) == at]
    elif view.first_step is not None or view.last_step is not None:
        wanted = [number for number in numbers if view.selection.takes_step(number)]
    chosen = [step for step in store.steps if step.number in wanted]
    if not chosen:
        return None
    start, end = min(step.start_ns for step in chosen), max(step.end_ns for step in chosen)
    room = (end - start) // (20 * len(chosen))
    return [start - room, end + room]


def _contents(index: int, ranks: tuple[int, ...], kinds: tuple[str, ...], picked: list[int]) -> None:
    """List what ran in the selected range, and offer it to Perfetto."""
    start, end = int(picked[0]), int(picked[1])
    if end <= start:
        return
    st.markdown(f"**What ran in the {quantity(end - start, Unit.NS)} selected**")
    data_table(contents(data.timeline_store(index), ranks, {"device", *kinds}, start, end), "selection")
    address = routes.trace_address(index, ranks, start, end)
    origin = re.sub(r"^(https?://[^/]+).*$", r"\1", str(st.context.url or ""))
    left, right, _ = st.columns([1.4, 1.6, 4])
    left.link_button("Download for Perfetto", f"{origin}{address}")
    if routes.perfetto_pages() is not None:
        right.link_button("Open this range in Perfetto", routes.perfetto_link(origin, address))
    else:
        right.caption("`pip install 'usp-prof[perfetto]'` opens it here")


TIMELINE = Page("Timeline", "timeline", draw, Room.TIMELINE)
