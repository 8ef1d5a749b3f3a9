"""How does the schedule run, and what does its bubble cost beside the ideal?"""

from __future__ import annotations

from dashboard.components.sections import draw_sections

TITLE = "Pipeline"
PATH = "pipeline"
SECTIONS = ("pipeline",)


def draw() -> None:
    """Draw the page."""
    draw_sections(SECTIONS, TITLE)
