"""SVG marks: frame, legend, texts, lines and round numbers used by all drawings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from math import floor, log10

from usp_prof.charts.theme import LIGHT

WIDTH = 960
CHARACTER = 6.2
"""Approximate pixels per character at 11 px, for placing texts."""
BROAD_CHARACTER = 7.8
"""Pixels per character of a short wide word, such as memcpy, in the widest font."""


def framed(parts: Sequence[str], height: float) -> str:
    """Combine parts into one drawing of the full width."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'style="max-width:100%;height:auto;background:{LIGHT.background}" font-family="{escape(LIGHT.font)}" '
        f'font-size="11" role="img">{"".join(parts)}</svg>'
    )


def legend_row(entries: Iterable[tuple[str, str]], left: float) -> str:
    """Draw labels with the color of their role, as many as fit on a line."""
    parts: list[str] = []
    x = left
    for label, role in entries:
        width = 24 + BROAD_CHARACTER * len(label)
        if x + width > WIDTH and parts:
            break  # tooltips of the marks show the rest
        parts.append(f'<rect x="{x:.0f}" y="9" width="10" height="10" fill="{LIGHT.color(role)}"/>')
        parts.append(text_at(x + 14, 18, label, LIGHT.ink, "start"))
        x += width
    return "".join(parts)


def text_at(x: float, y: float, text: str, color: str, anchor: str) -> str:
    """Draw a text that starts, ends or is centered at a point."""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}">{escape(text)}</text>'


def line(x0: float, y0: float, x1: float, y1: float, color: str) -> str:
    """Draw a straight line."""
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{color}"/>'


def ticks(end: float) -> list[float]:
    """Return about six round numbers from 0 to the end: for 47 these are 0, 10, 20, 30 and 40."""
    rough = end / 6
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [step * place for place in range(floor(end / step) + 1)]


def time_text(ns: float) -> str:
    """Format a time in its unit, with three digits."""
    for factor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "\u03bcs")):
        if ns >= factor:
            return f"{ns / factor:.3g} {unit}"
    return f"{ns:.3g} ns" if ns else "0"


def fraction_text(value: float) -> str:
    """Format a fraction in percent."""
    return f"{value:.1%}"


def number_text(value: float) -> str:
    """Format a number with a prefix, with three digits."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "
