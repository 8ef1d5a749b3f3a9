"""How does a page show parts of the report? The document of the selection, and those of its sections that are asked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import streamlit as st

from dashboard import data, state
from dashboard.components.blocks import section
from dashboard.components.waiting import wait

if TYPE_CHECKING:
    from usp_prof.report.document import Section


def draw_sections(wanted: tuple[str, ...], title: str, *, without: Section | None = None) -> None:
    """Show the wanted sections of the report on the current selection, less the blocks that stand in `without`."""
    view = state.current()
    document = wait(data.ask_document(view.run, view.selection))
    parts = [part for part in document.sections if part.id in wanted]
    shown = without.blocks if without else ()
    for part in sorted(parts, key=lambda part: wanted.index(part.id)):
        fresh = tuple(block for block in part.blocks if block not in shown)
        section(replace(part, blocks=fresh), dark=state.is_dark())
    if not parts:
        st.info(f"This run has nothing to show under {title}. Under Overview, *Health* says what the traces lack.")
