"""Themes: colors for light and dark backgrounds; hues by Okabe and Ito.

A role is the meaning of a mark: `compute`, `comm:<axis>`, `memcpy`, `idle:<cause>`, `action:<kind>`. Each meaning has
the same color in every chart. Both themes share the hues; only backgrounds, text colors and grays differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HUES: dict[str, str] = {
    "compute": "#0072B2",
    "comm": "#D55E00",
    "comm:tp": "#D55E00",
    "comm:dp": "#E69F00",
    "comm:dp_shard": "#FFC766",
    "comm:dp_replicate": "#B87700",
    "comm:pp": "#CC79A7",
    "comm:cp": "#009E73",
    "comm:ep": "#F0E442",
    "comm:world": "#8A5A2B",
    "comm:unknown": "#A8763E",
    "memcpy": "#56B4E9",
    "action:F": "#0072B2",
    "action:B": "#009E73",
    "action:I": "#56B4E9",
    "action:W": "#E69F00",
    "measured": "#0072B2",
    "reference": "#D55E00",
}

PATTERNS: dict[str, str] = {
    "idle:host": "/",
    "idle:input": ".",
    "idle:sync": "x",
    "idle:bubble": "-",
    "unrecorded": "x",
}
"""Hatches that distinguish the grays of idle time."""


@dataclass(frozen=True, slots=True)
class Theme:
    """Colors and fonts of charts."""

    name: str
    background: str
    panel: str
    ink: str
    muted: str
    grid: str
    accent: str
    slow: str
    fast: str
    grays: Mapping[str, str]
    font: str = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"

    def color(self, role: str) -> str:
        """Return a role's color; roles without their own use that of their family (`comm:x` that of `comm`)."""
        family = role.partition(":")[0]
        for key in (role, family):
            if key in HUES:
                return HUES[key]
            if key in self.grays:
                return self.grays[key]
        return self.muted


LIGHT = Theme(
    name="light",
    background="#FFFFFF",
    panel="#F6F7F9",
    ink="#1B1F24",
    muted="#646C76",
    grid="#E3E6EA",
    accent="#0072B2",
    slow="#B5430A",
    fast="#00658F",
    grays={
        "idle": "#DADEE3",
        "idle:bubble": "#B5BDC6",
        "idle:host": "#C3CAD2",
        "idle:input": "#CED4DB",
        "idle:sync": "#D9DEE3",
        "idle:other": "#E4E7EB",
        "unrecorded": "#F4F5F7",
    },
)

DARK = Theme(
    name="dark",
    background="#14171B",
    panel="#1C2026",
    ink="#E6E9ED",
    muted="#98A1AC",
    grid="#2D333B",
    accent="#56B4E9",
    slow="#F0803C",
    fast="#4FB3E8",
    grays={
        "idle": "#343A42",
        "idle:bubble": "#545D68",
        "idle:host": "#49515B",
        "idle:input": "#3F464F",
        "idle:sync": "#363D45",
        "idle:other": "#2B3037",
        "unrecorded": "#20252B",
    },
)

_DARKEST, _LIGHTEST = "#111111", "#FFFFFF"
_EVEN = 0.179
"""Luminance at which black and white are equally readable."""


def ink_on(color: str) -> str:
    """Return black or white, whichever is more readable on a color."""
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    luminance = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return _DARKEST if luminance > _EVEN else _LIGHTEST


def mix(first: str, second: str, share: float) -> str:
    """Mix two colors; `share` is that of the second."""
    pairs = zip(_channels(first), _channels(second), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in pairs)


def _channels(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


THEMES: dict[str, Theme] = {"light": LIGHT, "dark": DARK}
