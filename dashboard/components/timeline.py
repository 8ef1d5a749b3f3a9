"""The timeline as a Streamlit component."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import streamlit as st

from usp_prof.timeline.assets import CANVAS as TIMELINE_CANVAS
from usp_prof.timeline.assets import category_colors, category_inks
from usp_prof.timeline.assets import script as timeline_script
from usp_prof.timeline.assets import style as timeline_style

from .. import state


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
