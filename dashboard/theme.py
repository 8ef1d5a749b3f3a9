"""Which colours are meant by what, in light and in dark? Okabe and Ito's palette, safe for the colour-blind."""

from __future__ import annotations

from dashboard.timeline.rows import CATEGORIES

_BASE = {
    "compute": "#0072B2", "memcpy": "#CC79A7", "memset": "#B8639B", "op": "#8FB8DE", "annotation": "#C9C9C9",
    "runtime": "#B9A7D6", "dp": "#D55E00", "dp_replicate": "#B34700", "dp_shard": "#D55E00", "tp": "#E69F00",
    "cp": "#009E73", "pp": "#F0E442", "ep": "#56B4E9", "world": "#999999", "unknown": "#7F7F7F",
}  # fmt: skip
_DARK = {"op": "#4A6E91", "annotation": "#5C5C66", "runtime": "#6A5A87", "compute": "#3E9BD4"}
_DARK_INK = "#111111"
_LIGHT_INK = "#FFFFFF"


def category_colors(*, dark: bool) -> list[str]:
    """Give the colour of each slice category, in the order of `CATEGORIES`."""
    colors = _BASE | (_DARK if dark else {})
    return [colors[category] for category in CATEGORIES]


def category_inks(*, dark: bool) -> list[str]:
    """Give the text colour that reads well on each category's colour."""
    return [_LIGHT_INK if _luminance(color) < 0.45 else _DARK_INK for color in category_colors(dark=dark)]


def _luminance(color: str) -> float:
    red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
