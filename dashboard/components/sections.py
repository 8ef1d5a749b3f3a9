"""How does a page show parts of the report? The document of the selection, and those of its sections that are asked."""

from __future__ import annotations

import streamlit as st

from dashboard import data, state
from dashboard.components.blocks import section


def draw_sections(wanted: tuple[str, ...], title: str) -> None:
    """Show the wanted sections of the report on the current selection."""
    view = state.current()
    with st.spinner("analysing", show_time=True):
        document = data.document(view.run, view.selection)
    parts = [part for part in document.sections if part.id in wanted]
    for part in sorted(parts, key=lambda part: wanted.index(part.id)):
        section(part, dark=state.is_dark())
    if not parts:
        st.info(f"This run has nothing to show under {title}. Under Overview, *Health* says what the traces lack.")
