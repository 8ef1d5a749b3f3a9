"""How much memory is in use, when and for what?"""

from __future__ import annotations

from dashboard.components.sections import draw_sections

TITLE = "Memory"
PATH = "memory"
SECTIONS = ("memory",)


def draw() -> None:
    """Draw the page."""
    draw_sections(SECTIONS, TITLE)
