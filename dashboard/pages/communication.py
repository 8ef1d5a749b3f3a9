"""What is communicated, on which axis, how fast, and who waits for whom?"""

from __future__ import annotations

from dashboard.components.sections import draw_sections

TITLE = "Communication"
PATH = "communication"
SECTIONS = ("overlap", "collectives", "moe", "cp")


def draw() -> None:
    """Draw the page."""
    draw_sections(SECTIONS, TITLE)
