"""What should be changed, and what would that be worth?"""

from __future__ import annotations

from dashboard.components.sections import draw_sections

TITLE = "Suggestions"
PATH = "suggestions"
SECTIONS = ("findings",)


def draw() -> None:
    """Draw the page."""
    draw_sections(SECTIONS, TITLE)
