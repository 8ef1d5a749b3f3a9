"""Formats: numbers by unit, columns with one scale and the unit in their heading, and bars of characters.

Times are scaled by thousands (ns, us, ms, s), sizes by 1024 (KiB, MiB, ...), rates by thousands (GB/s, TFLOP/s).
Unknown values are shown as a dash, never as 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from usp_prof.model.metric import Unit

UNKNOWN = "-"
MICRO = "\u03bc"

Number = int | float
Cell = int | float | str | None
"""A table value; `None` is unknown."""


@dataclass(frozen=True, slots=True)
class _Scale:
    factor: float
    suffix: str


_DECIMAL = ("", "k", "M", "G", "T", "P", "E")


def _rates(suffix: str) -> tuple[_Scale, ...]:
    return tuple(_Scale(1000.0**power, prefix + suffix) for power, prefix in enumerate(_DECIMAL))


_SCALES: dict[Unit, tuple[_Scale, ...]] = {
    Unit.NS: (_Scale(1, "ns"), _Scale(1e3, f"{MICRO}s"), _Scale(1e6, "ms"), _Scale(1e9, "s")),
    Unit.BYTES: tuple(_Scale(1024.0**i, s) for i, s in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB"))),
    Unit.BYTES_PER_SECOND: _rates("B/s"),
    Unit.FLOP_PER_SECOND: _rates("FLOP/s"),
    Unit.FLOP: _rates("FLOP"),
    Unit.FRACTION: (_Scale(0.01, "%"),),
    Unit.PER_SECOND: _rates("/s"),
    Unit.COUNT: (_Scale(1, ""),),
    Unit.RATIO: (_Scale(1, "x"),),
}


def quantity(value: Number | None, unit: Unit) -> str:
    """Format one value with its unit: three significant digits, or all digits of a larger integer part."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    scale = _scale(abs(value), unit)
    scaled = value / scale.factor
    gap = "" if scale.suffix in {"", "%", "x"} else " "
    return f"{_digits(scaled, _decimals(scaled, unit, value))}{gap}{scale.suffix}"


def signed(value: Number | None, unit: Unit) -> str:
    """Format a difference with its sign."""
    text = quantity(value, unit)
    return f"+{text}" if value is not None and math.isfinite(value) and value > 0 else text


@dataclass(frozen=True, slots=True)
class ColumnScale:
    """Number format of a column: divisor `factor`, number of decimals, and the unit in the heading."""

    factor: float
    suffix: str
    decimals: int


def column_scale(values: Sequence[Number | None], unit: Unit) -> ColumnScale:
    """Return the scale at which all numbers of a column are readable."""
    sizes = [abs(value) for value in values if value is not None and math.isfinite(value)]
    largest = max(sizes, default=0)
    if not sizes or (not largest and unit is not Unit.FRACTION):
        return ColumnScale(1.0, "", 0)
    scale = _scale(largest, unit)
    are_integers = all(isinstance(value, int) for value in values if value is not None) and scale.factor == 1
    return ColumnScale(
        scale.factor, scale.suffix, 0 if are_integers else _column_decimals(largest / scale.factor, unit)
    )


def column(
    values: Sequence[Number | None], unit: Unit, scaled: Sequence[Number | None] | None = None
) -> tuple[str, list[str]]:
    """Format a column on one scale: the unit for its heading, and texts that align on the right.

    The scale is that of `scaled`, which may also have values of other columns.
    """
    scale = column_scale(values if scaled is None else scaled, unit)
    texts = [
        UNKNOWN if value is None or not math.isfinite(value) else _digits(value / scale.factor, scale.decimals)
        for value in values
    ]
    return scale.suffix, texts


def share(part: Number | None, total: Number | None) -> str:
    """Format a fraction as a percentage."""
    if part is None or not total:
        return UNKNOWN
    return quantity(part / total, Unit.FRACTION)


def _scale(size: float, unit: Unit) -> _Scale:
    scales = _SCALES[unit]
    # 999.6 would be rounded to 1000 of the smaller unit: use the larger unit slightly early.
    small_enough = [scale for scale in scales if size >= scale.factor * 0.9995]
    return small_enough[-1] if small_enough else scales[0]


def _decimals(scaled: float, unit: Unit, value: Number) -> int:
    if unit is Unit.FRACTION:
        return 1
    if not value:
        return 0  # 0 ns, not 0.00 ns
    if scaled == value and (isinstance(value, int) or (unit is Unit.COUNT and value == round(value))):
        return 0
    size = abs(scaled)
    return 2 if size < 9.995 else 1 if size < 99.95 else 0


def _column_decimals(largest: float, unit: Unit) -> int:
    """Return one more decimal than for a single value: the largest value sets the scale for much smaller ones."""
    if unit is Unit.FRACTION:
        return 1
    if largest >= 9999.5:
        return 0
    return 3 if largest < 9.9995 else 2 if largest < 99.995 else 1


def _digits(scaled: float, decimals: int) -> str:
    return f"{scaled:z,.{decimals}f}"  # z: no sign for values that round to zero


# Columns of a report's tables: one scale for all values, with the unit in the heading.


def column_texts(
    values: Sequence[Cell], unit: Unit | None, scaled: Sequence[Cell] | None = None
) -> tuple[str, list[str]]:
    """Format a column: numbers on the scale of `scaled` if it has a unit, texts and plain numbers unchanged."""
    if unit is not None and not any(isinstance(value, str) for value in values):
        return column(_numbers(values), unit, _numbers(values if scaled is None else scaled))
    return "", [_bare(value) for value in values]


def _numbers(values: Sequence[Cell]) -> list[Number | None]:
    return [value for value in values if not isinstance(value, str)]


def head_text(head: str, unit: str) -> str:
    """Return a column's heading with its unit."""
    return f"{head} {unit}".strip()


def is_number(values: Sequence[Cell]) -> bool:
    """Return whether a column is right-aligned."""
    return any(isinstance(value, (int, float)) for value in values)


def _bare(value: Cell) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:z.4g}" if isinstance(value, float) else str(value)


# Bars of characters: a cell count per part, and a fill that distinguishes parts without color.

_FILLS = {"compute": "\u2588", "comm": "\u2593\u259a\u2592\u259e\u2580\u2584", "memcpy": "=", "idle": "\u2591\u00b7:.'"}
_ASCII_FILLS = {"compute": "#", "comm": "%@&+*x", "memcpy": "=", "idle": "-.:,'"}
SOLID = "\u2588"


def cells(values: Sequence[float], width: int) -> list[int]:
    """Distribute `width` cells by largest remainder, so that they add up to the width exactly."""
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
    """Assign each role a character; roles of one family (`comm:tp`, `comm:dp`) alternate."""
    sets = _ASCII_FILLS if ascii_only else _FILLS
    used: dict[str, int] = {}
    chosen = []
    for role in roles:
        family = role.partition(":")[0]
        family_fills = sets.get(family, sets["idle"])
        place = used.get(family, 0)
        used[family] = place + 1
        chosen.append(family_fills[place % len(family_fills)])
    return chosen
