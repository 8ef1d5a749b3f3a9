"""Script, style and colors of the timeline in the browser, shared by the dashboard and the HTML report."""

from __future__ import annotations

from importlib.resources import files

from usp_prof.charts.theme import DARK, LIGHT, ink_on
from usp_prof.timeline.rows import CATEGORIES, HOST_CATEGORIES

CANVAS = ("timeline", "tiles", "paint", "hand", "bar", "dock", "address")
"""The client's files, without a source of tiles."""
_HOST = {
    False: {"op": "#A9C6DD", "annotation": "#D3D3D3", "runtime": "#C6B8DE"},
    True: {"op": "#3F5F7D", "annotation": "#55555E", "runtime": "#5B4D75"},
}
_ROLES = {"compute": "compute", "memcpy": "memcpy", "memset": "memcpy", "counter": "counter"}
_ROLES |= {kind: f"action:{kind}" for kind in "FBIW"}


def script(*names: str) -> str:
    """Return the client's files of these names as one script."""
    return "\n".join(_read(f"{name}.js") for name in names)


def style() -> str:
    """Return the client's style sheet."""
    return _read("timeline.css")


def _read(name: str) -> str:
    return files("usp_prof.timeline").joinpath("client", name).read_text(encoding="utf-8")


def category_colors(*, dark: bool) -> list[str]:
    """Return the color of each slice category, in the order of `CATEGORIES`."""
    theme, host = (DARK if dark else LIGHT), set(HOST_CATEGORIES.values())

    def color(category: str) -> str:
        if category in host:
            return _HOST[dark][category]
        return theme.ink if category == "path" else theme.color(_ROLES.get(category, f"comm:{category}"))

    return [color(category) for category in CATEGORIES]


def category_inks(*, dark: bool) -> list[str]:
    """Return the text color for each category's color."""
    return [ink_on(color) for color in category_colors(dark=dark)]
