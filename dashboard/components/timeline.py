"""How does a page show the timeline? A canvas component that asks the server for tiles."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from dashboard.theme import category_colors, category_inks

if TYPE_CHECKING:
    from collections.abc import Callable

HTML = '<div class="usp-timeline"></div>'
CSS = """
.usp-timeline { position: relative; width: 100%; }
.usp-timeline canvas { display: block; outline: none; cursor: crosshair; }
.usp-timeline canvas:focus-visible { outline: 2px solid var(--st-primary-color); }
.usp-tip { position: absolute; display: none; pointer-events: none; max-width: 320px; padding: 4px 8px;
  white-space: pre-wrap; overflow-wrap: anywhere; font: 12px var(--st-font), sans-serif; border-radius: 4px;
  color: var(--st-text-color); background: var(--st-secondary-background-color);
  border: 1px solid var(--st-border-color); z-index: 5; }
"""


@cache
def _renderer() -> Callable[..., Any]:
    script = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
    return st.components.v2.component("usp_timeline", html=HTML, css=CSS, js=script)


def timeline(source: str, *, key: str, dark: bool, **options: Any) -> Any:  # noqa: ANN401 - Streamlit's own result
    """Show the timeline of the run that the query string `source` names; gives what was picked and selected.

    Options go to the canvas as they are: `ranks` (shown, in order), `host` (host threads too), `range` ([start, end]
    in ns from the run's origin), `matched` (numbers of names; others are dimmed), `members`, `launch`, `height`.
    """
    data = {"source": source, "colors": category_colors(dark=dark), "inks": category_inks(dark=dark), **options}
    return _renderer()(
        data=data,
        key=key,
        default={"picked": None, "selected_range": None},
        on_picked_change=lambda: None,
        on_selected_range_change=lambda: None,
    )
