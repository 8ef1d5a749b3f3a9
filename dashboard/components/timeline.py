"""The timeline's canvas: a component that asks the server for tiles, and the colours of its slices."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from .. import state
from ..engine import DARK, LIGHT, ink_on
from ..timeline.rows import CATEGORIES, HOST_CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..engine import Theme


# Colours of slices: those of the charts by role, and quieter ones for what the host does.


_HOST = {
    False: {"op": "#A9C6DD", "annotation": "#D3D3D3", "runtime": "#C6B8DE"},
    True: {"op": "#3F5F7D", "annotation": "#55555E", "runtime": "#5B4D75"},
}
_ROLES = {"compute": "compute", "memcpy": "memcpy", "memset": "memcpy", "counter": "counter"}
_ROLES |= {kind: f"action:{kind}" for kind in "FBIW"}


def category_colors(*, dark: bool) -> list[str]:
    """Give the colour of each slice category, in the order of `CATEGORIES`."""
    theme, host = (DARK if dark else LIGHT), set(HOST_CATEGORIES.values())
    return [
        _HOST[dark][category] if category in host else theme.ink if category == "path" else _role(theme, category)
        for category in CATEGORIES
    ]


def _role(theme: Theme, category: str) -> str:
    return theme.color(_ROLES.get(category, f"comm:{category}"))


def category_inks(*, dark: bool) -> list[str]:
    """Give the text colour that reads well on each category's colour."""
    return [ink_on(color) for color in category_colors(dark=dark)]


def chips(named: Mapping[str, str], title: str = "") -> str:
    """Write a legend in HTML: each category's colour and what it is called."""
    colors = dict(zip(CATEGORIES, category_colors(dark=state.is_dark()), strict=True))
    box = "display:inline-block;width:10px;height:10px;margin:0 5px 0 0"
    said = "".join(
        f"<span style='margin-right:12px'><span style='{box};background:{colors[key]}'></span>{name}</span>"
        for key, name in named.items()
    )
    head = f"<span style='opacity:.65;margin-right:8px'>{title}</span>" if title else ""
    return f"<span style='margin-right:10px;white-space:nowrap'>{head}{said}</span> " if named else ""


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
"""


SCRIPTS = (
    "timeline.js", "timeline_address.js", "timeline_hand.js", "timeline_paint.js", "timeline_play.js",
    "timeline_tiles.js",
)  # fmt: skip
"""One script in the browser: what is in view, its link, what the hand does, the painting, the morph, the tiles."""


@cache
def _renderer() -> Callable[..., Any]:
    folder = Path(__file__).parent
    script = "\n".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return st.components.v2.component("usp_timeline", html=HTML, css=CSS, js=script)


def timeline(source: str, *, key: str, dark: bool, **options: Any) -> Any:  # noqa: ANN401 - Streamlit's own result
    """Show the timeline of the run that the query string `source` names; gives what was picked and selected.

    Options go to the canvas as they are: `ranks` (shown, in order), `kinds` (of rows beside those of the device),
    `range`, `at` and `jump` ([start, end] in ns from the run's origin; another `at` or `jump` than before moves there),
    `focus` (a rank and row to scroll to), `matched` (numbers of names; others are dimmed), `members` and `flows` (where
    arrows go), `labels` (of ranks), `notes`, `compact` (ranks are folded), `height`. What a link opens with, and the
    canvas writes into the address from then on: `pinned` (rows as `rank.row`), `folded` (ranks, or "all") and `picked`
    (a slice). `play` (a query) shows a step morphing from recorded to predicted; with `still` only as recorded.
    """
    data = {"source": source, "colors": category_colors(dark=dark), "inks": category_inks(dark=dark), **options}
    return _renderer()(
        data=data,
        key=key,
        default={"picked": None, "selected_range": None},
        on_picked_change=lambda: None,
        on_selected_range_change=lambda: None,
    )
