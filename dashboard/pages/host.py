"""Does the host keep the device busy?"""

from __future__ import annotations

from dashboard.components.sections import draw_sections

TITLE = "Host"
PATH = "host"
SECTIONS = ("host",)


def draw() -> None:
    """Draw the page."""
    draw_sections(SECTIONS, TITLE)
