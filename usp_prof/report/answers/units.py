"""Figures of checks and comparisons for people: values, changes and intervals with units, and the bare table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from usp_prof.gate.judgement import Scale
from usp_prof.model.metric import Unit

if TYPE_CHECKING:
    from usp_prof.gate.judgement import Judgement


_WIDEST = 10.0
"""A relative change beyond ten times is written as beyond it."""
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_NAMES = {
    Unit.BYTES_PER_SECOND: "B/s",
    Unit.FLOP_PER_SECOND: "FLOP/s",
    Unit.PER_SECOND: "/s",
    Unit.FLOP: "FLOP",
}
_BINARY = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def figure(value: float, unit: Unit) -> str:
    """Write a value with its unit."""
    if not math.isfinite(value):
        return "-"
    if unit is Unit.NS:
        return duration(value)
    if unit is Unit.FRACTION:
        return f"{value * 100:.2f} %"
    if unit is Unit.BYTES:
        return next((f"{value / size:.2f} {name}" for size, name in _BINARY if abs(value) >= size), f"{value:.0f} B")
    return _decimal(value, unit)


def _decimal(value: float, unit: Unit) -> str:
    name = _NAMES.get(unit, "")
    if unit is Unit.COUNT and value == int(value):
        return f"{int(value)}"
    for size, prefix in _PREFIXES:
        if abs(value) >= size and name:
            return f"{value / size:.3g} {prefix}{name}"
    return f"{value:.4g} {name}".rstrip()


def duration(value_ns: float) -> str:
    """Write a time: three digits in the unit that fits."""
    for size, name in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if abs(value_ns) >= size:
            return f"{value_ns / size:.4g} {name}"
    return f"{value_ns:.0f} ns"


def signed_duration(value_ns: float) -> str:
    """Write a change of time with its sign."""
    return ("+" if value_ns >= 0 else "-") + duration(abs(value_ns))


def change(found: Judgement) -> str:
    """Write a change: in per cent of the baseline, in points of a fraction, or in the unit."""
    return signed(found.change, found)


def interval(found: Judgement) -> str:
    """Write the interval of a change, no wider than a figure says anything: few steps leave it open."""
    if not (math.isfinite(found.low) and math.isfinite(found.high)):
        return "-"
    if found.scale is Scale.RELATIVE:
        beyond = "> " if found.high > _WIDEST else ""
        return f"{_bound(found.low)} .. {beyond}{_bound(min(found.high, _WIDEST))} %"
    if found.unit is Unit.FRACTION:
        return f"{_bound(max(found.low, -1.0))} .. {_bound(min(found.high, 1.0))} pp"
    return f"{signed(found.low, found)} .. {signed(found.high, found)}"


def _bound(value: float) -> str:
    """Write one end of an interval in hundredths: two places where it is narrow, none where it is wide."""
    places = 2 if abs(value) < 0.1 else 1 if abs(value) < 0.9995 else 0
    return f"{value * 100:+.{places}f}"


def signed(value: float, found: Judgement) -> str:
    """Write one amount of change in the judgement's scale."""
    if not math.isfinite(value):
        return "-"
    if found.scale is Scale.RELATIVE:
        return f"{value * 100:+.2f} %"
    if found.unit is Unit.FRACTION:
        return f"{value * 100:+.2f} pp"
    return ("+" if value >= 0 else "-") + figure(abs(value), found.unit)


# What do the gate's tables look like on a terminal? No lines, and close together where it is narrow.


_ROOMY = 100
"""From this width on there is room for two blanks between columns."""


def metric_cell(key: str, width: int) -> Text:
    """Write a metric's name; where it is narrow, its dimensions go to a line of their own."""
    return Text(key if width >= _ROOMY else key.replace("[", "\n["))


def bare_table(width: int, title: str = "") -> Table:
    """Give an empty table without lines for a terminal of this width."""
    return Table(
        box=None,
        pad_edge=False,
        collapse_padding=width < _ROOMY,
        header_style="bold",
        title=title or None,
        title_justify="left",
    )
