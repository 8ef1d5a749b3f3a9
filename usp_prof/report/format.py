"""Formats: numbers by unit, columns on one scale with the unit in their head, and bars in characters.

Times go by thousands (ns, us, ms, s), sizes by 1024 (KiB, MiB, ...), rates by thousands (GB/s, TFLOP/s), as each is
customary. A value that is not known is a dash, never a zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof.model.metric import Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.report.document import Cell


UNKNOWN = "-"
MICRO = "\u03bc"

Number = int | float


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
    Unit.PER_SECOND: (_Scale(1, "/s"),),
    Unit.COUNT: (_Scale(1, ""),),
    Unit.RATIO: (_Scale(1, "x"),),
}


def quantity(value: Number | None, unit: Unit) -> str:
    """Write one value with its unit: three significant digits, more where the whole part has more."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    scale = _scale(abs(value), unit)
    scaled = value / scale.factor
    gap = "" if scale.suffix in {"", "%", "x"} else " "
    return f"{_digits(scaled, _decimals(scaled, unit, value))}{gap}{scale.suffix}"


def signed(value: Number | None, unit: Unit) -> str:
    """Write a difference, with its sign."""
    text = quantity(value, unit)
    return f"+{text}" if value is not None and math.isfinite(value) and value > 0 else text


@dataclass(frozen=True, slots=True)
class ColumnScale:
    """How the numbers of a column are written: divided by `factor`, with so many decimals, the unit in the head."""

    factor: float
    suffix: str
    decimals: int


def column_scale(values: Sequence[Number | None], unit: Unit) -> ColumnScale:
    """Choose the scale on which all numbers of a column can be read."""
    known = [abs(value) for value in values if value is not None and math.isfinite(value)]
    largest = max(known, default=0)
    if not known or (not largest and unit is not Unit.FRACTION):
        return ColumnScale(1.0, "", 0)
    scale = _scale(largest, unit)
    whole = all(isinstance(value, int) for value in values if value is not None) and scale.factor == 1
    return ColumnScale(scale.factor, scale.suffix, 0 if whole else _column_decimals(largest / scale.factor, unit))


def column(values: Sequence[Number | None], unit: Unit) -> tuple[str, list[str]]:
    """Write a column on one scale: the unit for its head, and texts that line up when set flush right."""
    scale = column_scale(values, unit)
    texts = [
        UNKNOWN if value is None or not math.isfinite(value) else _digits(value / scale.factor, scale.decimals)
        for value in values
    ]
    return scale.suffix, texts


def share(part: Number | None, whole: Number | None) -> str:
    """Write a part of a whole in per cent."""
    if part is None or not whole:
        return UNKNOWN
    return quantity(part / whole, Unit.FRACTION)


def _scale(size: float, unit: Unit) -> _Scale:
    scales = _SCALES[unit]
    # 999.6 would be written as 1000 of the smaller unit: step up a little early.
    fitting = [scale for scale in scales if size >= scale.factor * 0.9995]
    return fitting[-1] if fitting else scales[0]


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
    """Keep one digit more than alone: the largest of a column sets the scale for much smaller ones."""
    if unit is Unit.FRACTION:
        return 1
    if largest >= 9999.5:
        return 0
    return 3 if largest < 9.9995 else 2 if largest < 99.995 else 1


def _digits(scaled: float, decimals: int) -> str:
    return f"{scaled:z,.{decimals}f}"  # z: no sign before what rounds to zero


# Columns of a report's tables: one scale for all values, with the unit in the head.


def column_texts(values: Sequence[Cell], unit: Unit | None) -> tuple[str, list[str]]:
    """Write a column: numbers on one scale when it has a unit, texts and bare numbers as they are."""
    if unit is not None and not any(isinstance(value, str) for value in values):
        return column([value for value in values if not isinstance(value, str)], unit)
    return "", [_bare(value) for value in values]


def head_text(head: str, unit: str) -> str:
    """Write a column's head with its unit."""
    return f"{head} {unit}".strip()


def is_number(values: Sequence[Cell]) -> bool:
    """Return whether a column is set flush right."""
    return any(isinstance(value, (int, float)) for value in values)


def _bare(value: Cell) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:z.4g}" if isinstance(value, float) else str(value)


# Bars in characters: a cell count for each part, and a fill that tells parts apart without colour.

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
    """Assign each role a character; roles of one family (`comm:tp`, `comm:dp`) use different ones in turn."""
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
