"""Bars in characters: a cell count for each part, and a fill that tells parts apart without colour."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_FILLS = {"compute": "\u2588", "comm": "\u2593\u259a\u2592\u259e\u2580\u2584", "memcpy": "=", "idle": "\u2591\u00b7:.'"}
_ASCII_FILLS = {"compute": "#", "comm": "%@&+*x", "memcpy": "=", "idle": "-.:,'"}
SOLID = "\u2588"


def cells(values: Sequence[float], width: int) -> list[int]:
    """Share out `width` cells by largest remainder, so that they add up to the width exactly."""
    total = sum(values)
    if total <= 0:
        return [0] * len(values)
    exact = [value / total * width for value in values]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(values)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: width - sum(counts)]:
        counts[i] += 1
    return counts


def fills(roles: Sequence[str], *, ascii_only: bool) -> list[str]:
    """Give each role a character; roles of one family (`comm:tp`, `comm:dp`) take different ones in turn."""
    sets = _ASCII_FILLS if ascii_only else _FILLS
    used: dict[str, int] = {}
    chosen = []
    for role in roles:
        family = role.partition(":")[0]
        known = sets.get(family, sets["idle"])
        place = used.get(family, 0)
        used[family] = place + 1
        chosen.append(known[place % len(known)])
    return chosen
