"""The timeline's canvas: a component that asks the server for tiles, the colours of its slices, and its links."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from .. import state
from ..engine import DARK, LIGHT, ink_on
from ..timeline.queries import place
from ..timeline.rows import CATEGORIES, HOST_CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..engine import Theme
    from ..timeline.store import TimelineStore


# Colours of slices: those of the charts by role, and quieter ones for what the host does.


_HOST = {
    False: {"op": "#A9C6DD", "annotation": "#D3D3D3", "runtime": "#C6B8DE"},
    True: {"op": "#3F5F7D", "annotation": "#55555E", "runtime": "#5B4D75"},
}
_ROLES = {"compute": "compute", "memcpy": "memcpy", "memset": "memcpy", "counter": "counter"}
_ROLES |= {kind: f"action:{kind}" for kind in "FBIW"}


def category_colors(*, dark: bool) -> list[str]:
    """Return the colour of each slice category, in the order of `CATEGORIES`."""
    theme, host = (DARK if dark else LIGHT), set(HOST_CATEGORIES.values())
    return [
        _HOST[dark][category] if category in host else theme.ink if category == "path" else _role(theme, category)
        for category in CATEGORIES
    ]


def _role(theme: Theme, category: str) -> str:
    return theme.color(_ROLES.get(category, f"comm:{category}"))


def category_inks(*, dark: bool) -> list[str]:
    """Return the text colour that reads well on each category's colour."""
    return [ink_on(color) for color in category_colors(dark=dark)]


def chips(named: Mapping[str, str], title: str = "") -> str:
    """Write a legend in HTML: each category's colour and what it is called."""
    colors = dict(zip(CATEGORIES, category_colors(dark=state.is_dark()), strict=True))
    box = "display:inline-block;width:10px;height:10px;margin:0 5px 0 0"
    boxes = "".join(
        f"<span style='margin-right:12px'><span style='{box};background:{colors[key]}'></span>{name}</span>"
        for key, name in named.items()
    )
    head = f"<span style='opacity:.65;margin-right:8px'>{title}</span>" if title else ""
    return f"<span style='margin-right:10px;white-space:nowrap'>{head}{boxes}</span> " if named else ""


def legend(chips_: str) -> None:
    """Show a legend."""
    st.html(f"<div style='font-size:12px;line-height:1.6'>{chips_}</div>")


HTML = '<div class="usp-timeline"></div>'
CSS = """
.usp-timeline { position: relative; width: 100%; }
.usp-timeline canvas { display: block; outline: none; cursor: crosshair; }
.usp-timeline canvas:focus-visible { outline: 2px solid var(--st-primary-color); }
.usp-tip { position: absolute; display: none; pointer-events: none; max-width: 320px; padding: 4px 8px;
  white-space: pre-wrap; overflow-wrap: anywhere; font: 12px var(--st-font), sans-serif; border-radius: 4px;
  color: var(--st-text-color); background: var(--st-secondary-background-color);
  border: 1px solid var(--st-border-color); z-index: 5; }
.usp-play { display: flex; gap: 12px; align-items: center; padding: 6px 0 0 180px;
  font: 13px var(--st-font), sans-serif; color: var(--st-text-color); }
.usp-play button { font: inherit; color: inherit; background: var(--st-secondary-background-color); cursor: pointer;
  border: 1px solid var(--st-border-color); border-radius: 4px; padding: 4px 12px; }
.usp-play input { flex: 1; max-width: 420px; accent-color: var(--st-primary-color); }
.usp-area { font: 13px var(--st-font), sans-serif; color: var(--st-text-color);
  border-top: 2px solid var(--st-border-color); }
.usp-area-head { display: flex; flex-wrap: wrap; gap: 6px 16px; align-items: center; padding: 6px 0; }
.usp-area-head strong { flex: 1 1 auto; }
.usp-area a { color: var(--st-link-color); }
.usp-area button { font: inherit; color: inherit; background: none; border: 0; padding: 0 4px; cursor: pointer; }
.usp-area input { font: inherit; color: inherit; width: 13em; background: var(--st-secondary-background-color);
  border: 1px solid var(--st-border-color); border-radius: 4px; padding: 2px 8px; }
.usp-area-tables { display: flex; gap: 24px; }
.usp-area-kinds { flex: 1 1 0; min-width: 0; max-height: 236px; overflow: auto; }
.usp-area-names { flex: 2.4 1 0; min-width: 0; max-height: 236px; overflow: auto; }
.usp-area table { border-collapse: collapse; width: 100%; }
.usp-area-names table { table-layout: fixed; }
.usp-area-names th:first-child { width: 40%; }
.usp-area-names th:nth-child(2) { width: 17%; }
.usp-area th { position: sticky; top: 0; text-align: left; background: var(--st-background-color); }
.usp-area th button { font-weight: 600; padding: 0; text-align: inherit; }
.usp-area :is(td, th) { padding: 1px 10px 1px 0; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.usp-area tbody tr:hover { background: var(--st-secondary-background-color); }
.usp-area .number { text-align: right; font-variant-numeric: tabular-nums; }
.usp-area td i { display: inline-block; width: 10px; height: 10px; margin-right: 6px; }
"""


SCRIPTS = (
    "timeline.js", "timeline_address.js", "timeline_area.js", "timeline_hand.js", "timeline_paint.js",
    "timeline_play.js", "timeline_tiles.js",
)  # fmt: skip
"""One script in the browser: what is in view, its link, the area selected, the hand, the painting, morph and tiles."""


@cache
def _renderer() -> Callable[..., Any]:
    folder = Path(__file__).parent
    script = "\n".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return st.components.v2.component("usp_timeline", html=HTML, css=CSS, js=script)


def timeline(source: str, *, key: str, dark: bool, **options: Any) -> Any:  # noqa: ANN401 - Streamlit's own result
    """Show the timeline of the run that the query string `source` names; gives what was picked.

    Options go to the canvas as they are: `ranks` (shown, in order), `kinds` (of rows beside those of the device),
    `range`, `at` and `jump` ([start, end] in ns from the run's origin; another `at` or `jump` than before moves there),
    `focus` (a rank and row to scroll to), `matched` (numbers of names; others are dimmed), `members` and `flows` (where
    arrows go), `labels` (of ranks), `compact` (ranks are folded), `height`, `perfetto` (whether its pages are here).
    What a link opens with, and the canvas writes into the address from then on: `pinned` (rows as `rank.row`), `folded`
    (ranks, or "all"), `picked` (a slice), `area` (a range and rows) and `notes`.

    `play` (a query) shows a step morphing from recorded to predicted; with `still` only as recorded.
    """
    data = {"source": source, "colors": category_colors(dark=dark), "inks": category_inks(dark=dark), **options}
    return _renderer()(
        data=data,
        key=key,
        default={"picked": None},
        on_picked_change=lambda: None,
    )


# What a link to the timeline holds: range, pinned rows, folded ranks, the picked slice, the selected area and notes.
# All of it is read from the address and checked like any other input; the canvas itself writes it there
# (timeline_address.js).


MOST_NOTES = 20
MOST_LETTERS = 2000


def linked_range(span_ns: int) -> list[int] | None:
    """Read the range from the address, as far as it lies about the run."""
    match = re.fullmatch(r"(-?\d{1,15})-(\d{1,15})", st.query_params.get("range", ""))
    if not match or int(match[2]) <= int(match[1]):
        return None
    start, end = max(int(match[1]), -span_ns // 2), min(int(match[2]), span_ns + span_ns // 2)
    return [start, end] if start < end else None


def linked_rows(store: TimelineStore) -> list[str]:
    """Read the pinned rows from the address, `rank.row` with dashes between; rows that there are not are left out."""
    return _rows_there(store, st.query_params.get("pins", "")[:MOST_LETTERS])


def _rows_there(store: TimelineStore, text: str) -> list[str]:
    found = re.findall(r"(?a)\b(\d{1,6})\.(\d{1,5})\b", text)
    there = [(int(rank), int(row)) for rank, row in found if int(rank) in store.ranks]
    return [f"{rank}.{row}" for rank, row in there if row < len(store.rows(rank))]


def linked_folds() -> list[object]:
    """Read the folded ranks from the address: "all", or numbers with dashes between."""
    folds = st.query_params.get("folds", "")[:MOST_LETTERS].split("-")
    return ["all"] if "all" in folds else [int(rank) for rank in folds if re.fullmatch(r"(?a)\d{1,6}", rank)]


def linked_slice(store: TimelineStore) -> dict[str, float] | None:
    """Read the picked slice from the address, `rank.event`; gives where it lies."""
    match = re.fullmatch(r"(?a)(\d{1,6})\.(\d{1,9})", st.query_params.get("picked", ""))
    found = place(store, int(match[1]), int(match[2])) if match else None
    if match is None or found is None:
        return None
    slot = {"start_ns": found.start_ns, "dur_ns": found.dur_ns, "index": found.row}
    return {"rank": found.rank, "event": int(match[2])} | slot


def linked_area(store: TimelineStore) -> dict[str, object] | None:
    """Read the selected area from the address, `start-end`, then a colon and its rows unless it is of all rows."""
    match = re.fullmatch(r"(?a)(\d{1,15})-(\d{1,15})(?::([\d.-]+))?", st.query_params.get("area", ""))
    if not match or not int(match[1]) < min(int(match[2]), store.span_ns):
        return None
    rows = _rows_there(store, match[3] or "")
    return {"range": [int(match[1]), int(match[2])], "rows": rows} if rows or not match[3] else None


def notes() -> list[dict[str, object]]:
    """Read the notes from the address: `at_ns:text`, one after the other with a bar between."""
    found = []
    for each in st.query_params.get("notes", "")[:MOST_LETTERS].split("|"):
        at, colon, text = each.partition(":")
        if colon and re.fullmatch(r"\d{1,15}", at) and text:
            found.append({"at_ns": int(at), "text": text})
    return found[:MOST_NOTES]
