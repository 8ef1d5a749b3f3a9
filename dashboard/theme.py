"""Which colour has a slice? The charts' colours by role, and quieter ones for what the host does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboard.timeline.rows import CATEGORIES, HOST_CATEGORIES
from usp_prof.charts.theme import DARK, LIGHT, ink_on

if TYPE_CHECKING:
    from usp_prof.charts.theme import Theme

_HOST = {
    False: {"op": "#A9C6DD", "annotation": "#D3D3D3", "runtime": "#C6B8DE"},
    True: {"op": "#3F5F7D", "annotation": "#55555E", "runtime": "#5B4D75"},
}
_ROLES = {"compute": "compute", "memcpy": "memcpy", "memset": "memcpy", **{kind: f"action:{kind}" for kind in "FBIW"}}


def category_colors(*, dark: bool) -> list[str]:
    """Give the colour of each slice category, in the order of `CATEGORIES`."""
    theme, host = (DARK if dark else LIGHT), set(HOST_CATEGORIES.values())
    return [
        _HOST[dark][category] if category in host else theme.ink if category == "path" else _role(theme, category)
        for category in CATEGORIES
    ]


def _role(theme: Theme, category: str) -> str:
    return theme.color(_ROLES.get(category, f"comm:{category}"))


def category_inks(*, dark: bool) -> list[str]:
    """Give the text colour that reads well on each category's colour."""
    return [ink_on(color) for color in category_colors(dark=dark)]
