"""How does a page show a chart? A Bokeh figure as JSON, drawn by the BokehJS that this server holds."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

if TYPE_CHECKING:
    from collections.abc import Callable

HTML = '<div class="usp-figure"></div>'
CSS = ".usp-figure { width: 100%; }"


@cache
def _renderer() -> Callable[..., Any]:
    script = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
    return st.components.v2.component("usp_figure", html=HTML, css=CSS, js=script, isolate_styles=False)


def figure(model: Any, *, key: str) -> None:  # noqa: ANN401 - any Bokeh layout
    """Draw a Bokeh figure or layout; the same figure object is drawn once, whatever reruns."""
    from bokeh.embed import json_item  # noqa: PLC0415 - Bokeh loads when the first chart does

    text = json.dumps(json_item(model), separators=(",", ":"))
    stamp = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
    _renderer()(data={"item": text, "stamp": stamp, "height": getattr(model, "height", None) or 0}, key=key)
