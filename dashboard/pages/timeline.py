"""What ran when, on every rank? The timeline, a search over it, and what was picked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import streamlit as st

from .. import data, routes, state
from ..answers import verdicts
from ..components import findings
from ..components import slice as picked_slice
from ..components.blocks import verdict
from ..components.findings import MIDDLE
from ..components.rank_wall import choose_ranks, mesh_heads, mesh_order, rank_wall
from ..components.timeline import (
    chips,
    legend,
    linked_area,
    linked_folds,
    linked_range,
    linked_rows,
    linked_slice,
    notes,
    timeline,
)
from ..engine import EVERYTHING
from ..state import Page, Room, View
from ..timeline.queries import MOST_PATTERN, Place, matching, neighbours, search
from ..timeline.rows import CATEGORIES
from ..work import wait

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..engine import Document, Key
    from ..timeline.store import TimelineStore

MOST_RANK = 999_999
FIRST_RANKS = 16
"""More ranks than this are shown when they are asked for."""
WALLED = 8
"""From so many ranks on, all of them stand beside the timeline as a wall."""
KINDS = {
    "host": "Host threads", "exposed": "Exposed", "contended": "Contended", "actions": "Actions",
    "path": "Critical path", "counters": "Counters",
}  # fmt: skip
"""Rows that can be shown beside those of the device."""
ACTION = re.compile(r"[FBIW]\d* stage -?\d+")
ACTIONS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
HELP = (
    "wheel, W S: zoom · drag, A D: pan · ↑ ↓ PgUp PgDn: scroll · shift-drag: select an area · alt-drag: zoom into a "
    "box · Z: zoom to the selection · F: all · C: fold all ranks · / or Ctrl-K: go to a rank, name, finding or page · "
    "double-click: fit a slice · click a rank: fold it · click a row's name: pin it · strip on top: the whole run"
)
BY_RANK = "rank"
MOMENT_ROOM_NS = 1_000_000
"""What is shown on either side of a link to a moment."""
PLACES = frozenset({"ranks", "only", "at", "range", "pins", "folds", "picked", "area", "find"})
"""Words of an address that say where to look."""


def draw() -> None:
    """Draw the page."""
    view = state.current()
    store = wait(data.ask_timeline(view.run))
    document = wait(data.ask_document(view.run, EVERYTHING))
    verdict(verdicts.timeline(document))
    left, middle, right = st.columns([2.2, 5.2, 1.2], vertical_alignment="bottom")
    pattern = left.text_input(
        "Search",
        st.query_params.get("find", ""),
        placeholder="a regular expression: nccl.*AllReduce",
        max_chars=MOST_PATTERN,
    )
    state.keep("find", pattern)
    kinds = _kinds(middle, {row.kind for rank in store.ranks for row in store.rows(rank)})
    shown, labels = _grouped(right, view, _ranks(view))
    axes = {name.partition(" ")[2] for name in store.names if name.startswith("exposed ")}
    _legend(axes, {name[0] for name in store.names if ACTION.fullmatch(name)}, kinds)
    found = _search(view.run, pattern, shown, kinds)
    matched = (matching(store, pattern) or ()) if pattern else ()
    before = st.session_state.get("timeline")
    linked = linked_slice(store)
    picked = (before or {}).get("picked") or linked
    around = neighbours(store, data.open_numbered(view.run).tables, picked)
    found = picked_slice.chosen_member(picked, around.members) or found
    focus = {"rank": found.rank, "row": found.row} if found else opened_at(linked, before) or _focus(store, document)
    asked = about(store, view)
    place = st.container()
    if len(store.ranks) >= WALLED:
        beside, place = st.columns([1, 5], gap="small")
        with beside:
            _minimap(view, shown)
    with place:
        answer = timeline(
            data.source(view.run), key="timeline", dark=state.is_dark(), ranks=list(shown), kinds=list(kinds),
            range=linked_range(store.span_ns) or asked, at=asked, jump=found and framed(found), focus=focus,
            labels=labels, matched=sorted(matched), height=420, tall=True,
            members=[each.plain() for each in around.members],
            flows=[[each.plain() for each in flow] for flow in around.flows], notes=notes(),
            pinned=linked_rows(store), folded=linked_folds(), picked=linked, area=linked_area(store),
            perfetto=routes.perfetto_pages() is not None,
        )  # fmt: skip
    st.caption(HELP)
    picked = answer.picked or linked
    if picked:
        picked_slice.show(view.run, int(picked["rank"]), int(picked["event"]))


def _minimap(view: View, shown: Sequence[int]) -> None:
    """Show all ranks beside the timeline; those that are dragged over are shown on it."""
    ranks, layout = data.timeline_store(view.run).ranks, data.open_numbered(view.run).tables.topology
    order = mesh_order(list(ranks), layout)
    rank_wall(
        view.run, order, key="wall-timeline", height=520, heads=mesh_heads(order, layout), chosen=shown,
        on_chosen=lambda: choose_ranks("wall-timeline"),
    )  # fmt: skip


def framed(found: Place) -> list[int]:
    """Return the range that shows a slice with a little room."""
    margin = max(int(found.dur_ns) // 2, 2000)
    return [found.start_ns - margin, found.start_ns + int(found.dur_ns) + margin]


def opened_at(linked: Mapping[str, float] | None, before: object) -> dict[str, int] | None:
    """Return the row of the slice that a link names, to scroll to as it opens; a later pick moves nothing."""
    if linked is None or before is not None:
        return None
    return {"rank": int(linked["rank"]), "row": int(linked["index"])}


def _focus(store: TimelineStore, document: Document) -> dict[str, int] | None:
    """Read from the address which rank to scroll to; where it names no place, the one that the sentence names."""
    rank: Key | None = state.number("focus", 0, MOST_RANK)
    if rank is None and not PLACES & st.query_params.keys():
        rank = verdicts.late_rank(document)
    return {"rank": rank} if isinstance(rank, int) and rank in store.ranks else None


def _grouped(place: Any, view: View, ranks: tuple[int, ...]) -> tuple[tuple[int, ...], dict[int, str]]:  # noqa: ANN401 - any container
    """Let the reader sort ranks along an axis; gives their order, and what each is called then."""
    layout = data.open_numbered(view.run).tables.topology
    offered = (BY_RANK, *(axis for axis in layout.axes if layout.coordinates))
    by = state.word("by", offered)
    if len(offered) > 1:
        by = place.selectbox("Group by", offered, offered.index(by))
    state.keep("by", by if by != BY_RANK else None)
    if by == BY_RANK:
        return ranks, {}
    at = {rank: layout.coordinates.get(rank, {}).get(by, -1) for rank in ranks}
    labels = {rank: f"{by} {at[rank]}: {rank}" for rank in ranks if at[rank] >= 0}
    return tuple(sorted(ranks, key=lambda rank: (at[rank], rank))), labels


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
    """Choose the ranks to show: those that a link or the wall names, the selected ones, else the outliers first.

    Ranks that are shown here alone (`only`) are no selection: other pages keep all of them.
    """
    ranks = data.open_numbered(view.run).tables.ranks
    only = state.parse_ranks(st.query_params.get("only", ""), ranks)
    if only is not None:
        left, right = st.columns([5, 1], vertical_alignment="center")
        named = f"{'Rank' if len(only) == 1 else 'Ranks'} {state.format_ranks(only)} of {len(ranks)}"
        left.caption(f"{named} {'is' if len(only) == 1 else 'are'} shown here.")
        if not right.button("Show the others", width="stretch"):
            return only
        state.keep("only", None)
        st.rerun()
    if view.ranks is not None:
        return view.ranks
    if len(ranks) <= FIRST_RANKS:
        return ranks
    document = wait(data.ask_document(view.run, EVERYTHING))
    strange = findings.outlier_ranks(document)
    first = "the one that is not like the others first" if len(strange) == 1 else "those not like the others first"
    order = f", {first}" if strange else ""
    st.caption(f"Showing {FIRST_RANKS} of {len(ranks)} ranks{order}. Enter others under *Ranks* in the sidebar.")
    return findings.outliers_first(document, ranks)[:FIRST_RANKS]


def _search(index: int, pattern: str, ranks: tuple[int, ...], kinds: tuple[str, ...]) -> Place | None:
    """Count what matches and step through it; gives the slice to show once a step was taken."""
    if not pattern:
        return None
    wanted = matching(data.timeline_store(index), pattern)
    if wanted is None:
        st.caption("This is not a valid regular expression.")
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
    return matches.at(at) if 0 <= at < len(matches) else None


def _legend(axes: set[str], actions: set[str], kinds: tuple[str, ...]) -> None:
    """Name the colours that are in view."""
    communication = {axis: axis for axis in CATEGORIES if axis in axes}
    groups = {"": {"compute": "compute", "memcpy": "copies"}, "communication": communication}
    if "host" in kinds:
        groups["host"] = {"op": "op", "annotation": "annotation", "runtime": "runtime call"}
    if "actions" in kinds:
        groups["actions"] = {kind: name for kind, name in ACTIONS.items() if kind in actions}
    if "path" in kinds:
        groups[""] |= {"path": "critical path"}
    if "counters" in kinds:
        groups[""] |= {"counter": "counter"}
    legend("".join(chips(named, title) for title, named in groups.items()))


def about(store: TimelineStore, view: View) -> list[int] | None:
    """Return the range that a link names, by times or by a step, or that of the selected steps, with a little room."""
    at = st.query_params.get("at", "")
    times = re.fullmatch(r"(\d{1,19})-(\d{1,19})", at)
    if times:
        start, end = (int(time) - store.origin_ns for time in times.groups())
        # A moment says nothing of how much about it is worth seeing: a millisecond, less of a short run.
        room = max((end - start) // 2, 2000) if end > start else min(MOMENT_ROOM_NS, store.span_ns // 50)
        inside = 0 <= start <= end <= store.span_ns
        return [max(start - room, 0), min(end + room, store.span_ns)] if inside else None
    numbers = [step.number for step in store.steps]
    wanted: Sequence[int] = ()
    if at == MIDDLE:
        wanted = numbers[len(numbers) // 2 :][:1]
    elif at:
        wanted = [number for number in numbers if str(number) == at]
    elif view.first_step is not None or view.last_step is not None:
        wanted = [number for number in numbers if view.selection.takes_step(number)]
    chosen = [step for step in store.steps if step.number in wanted]
    if not chosen:
        return None
    start, end = min(step.start_ns for step in chosen), max(step.end_ns for step in chosen)
    room = (end - start) // (20 * len(chosen))
    return [start - room, end + room]


TIMELINE = Page("Timeline", "timeline", draw, Room.TIMELINE)
