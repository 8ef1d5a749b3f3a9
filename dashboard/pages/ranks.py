"""Which rank is late or slow, and how far apart are the clocks?"""

from __future__ import annotations

from dashboard.components.sections import draw_sections

TITLE = "Ranks"
PATH = "ranks"
SECTIONS = ("stragglers", "step_time", "critical_path", "clock")


def draw() -> None:
    """Draw the page."""
    draw_sections(SECTIONS, TITLE)
