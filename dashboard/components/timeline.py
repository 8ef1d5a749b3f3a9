"""The timeline as a Streamlit component, and the legend of its colors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import streamlit as st

from usp_prof.timeline.assets import CANVAS as TIMELINE_CANVAS
from usp_prof.timeline.assets import category_colors, category_inks
from usp_prof.timeline.assets import script as timeline_script
from usp_prof.timeline.assets import style as timeline_style
from usp_prof.timeline.rows import CATEGORIES

from .. import state


def chips(label_of_category: Mapping[str, str], title: str = "") -> str:
    """Write a legend in HTML: the color and the name of each category."""
    colors = dict(zip(CATEGORIES, category_colors(dark=state.is_dark()), strict=True))
    box = "display:inline-block;width:10px;height:10px;margin:0 5px 0 0"
    boxes = "".join(
        f"<span style='margin-right:12px'><span style='{box};background:{colors[key]}'></span>{name}</span>"
        for key, name in label_of_category.items()
    )
    head = f"<span style='opacity:.65;margin-right:8px'>{title}</span>" if title else ""
    return f"<span style='margin-right:10px;white-space:nowrap'>{head}{boxes}</span> " if label_of_category else ""


def legend(chips_: str) -> None:
    """Show a legend."""
    st.html(f"<div style='font-size:12px;line-height:1.6'>{chips_}</div>")


@cache
def _renderer() -> Callable[..., Any]:
    script = timeline_script(*TIMELINE_CANVAS, "source_server", "wall", "play", "component")
    return st.components.v2.component(
        "usp_timeline", html='<div class="usp-timeline"></div>', css=timeline_style(), js=script
    )


def timeline(source: str, *, key: str, **options: Any) -> None:  # noqa: ANN401 - plain values for the client
    """Show the timeline of the run that the query string `source` names.

    The client keeps its own state and address; nothing that happens in it reruns the page. Options that it reads:
    `ranks` (shown, in order), `kinds` (of rows besides those of the device), `range`, `at` and `jump` (start and end in
    ns from the run's origin; another `at` or `jump` than before moves there), `focus` (a rank to scroll to), `axes` and
    `coordinates` (of ranks, for grouping), `labels` (of ranks), `wall` (order of the rank wall), `perfetto` (whether
    Perfetto's pages are installed), `height`, and `tall` (fills the window).
    `fixed` and `group` timelines have no bar, dock or link; those of one group move together. `compact` folds all
    ranks.
    `play` (a query) shows a step that morphs from recorded to predicted; with `still` only as recorded.
    """
    dark = state.is_dark()
    data = {"source": source, "colors": category_colors(dark=dark), "inks": category_inks(dark=dark), **options}
    _renderer()(data=data, key=key)
