"""How well is the device used, by kernel, op and shape?"""

from __future__ import annotations

from dashboard.components.sections import draw_sections

TITLE = "Kernels"
PATH = "kernels"
SECTIONS = ("mfu", "kernels")


def draw() -> None:
    """Draw the page."""
    draw_sections(SECTIONS, TITLE)
