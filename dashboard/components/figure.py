"""How does a page show a chart? A Bokeh figure as JSON, drawn by the BokehJS that this server holds."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from dashboard.network import LIBRARY

if TYPE_CHECKING:
    from collections.abc import Callable

    from dashboard.drawings import Drawing

HTML = '<div class="usp-figure"></div>'
CSS = ".usp-figure { width: 100%; }"


@cache
def _renderer() -> Callable[..., Any]:
    script = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
    return st.components.v2.component("usp_figure", html=HTML, css=CSS, js=script, isolate_styles=False)


def figure(drawing: Drawing, *, key: str) -> None:
    """Show a drawing; the same one is drawn once in the browser, whatever reruns."""
    data = {"item": drawing.item, "stamp": drawing.stamp, "height": drawing.height, "library": LIBRARY}
    _renderer()(data=data, key=key)
