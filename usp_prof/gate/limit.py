"""How much worse is still allowed? `2%` is relative to the baseline, `1pp` counts points of a fraction, `5` units."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from usp_prof.model.errors import UsageError


class Scale(StrEnum):
    """What a difference is measured in."""

    RELATIVE = "relative"
    ABSOLUTE = "absolute"


@dataclass(frozen=True, slots=True)
class Limit:
    """An amount of change, as a fraction of the baseline or in the metric's own unit."""

    amount: float
    scale: Scale

    def __str__(self) -> str:
        return f"{self.amount:.4g}" if self.scale is Scale.ABSOLUTE else f"{self.amount * 100:.4g} %"

    def times(self, factor: float) -> Limit:
        """Give a wider or narrower limit of the same scale."""
        return Limit(self.amount * factor, self.scale)


def parse_limit(text: str) -> Limit:
    """Read a limit; `UsageError` for anything else."""
    word = text.strip()
    if word.endswith("pp"):
        return Limit(_number(word[:-2], text) / 100, Scale.ABSOLUTE)
    if word.endswith("%"):
        return Limit(_number(word[:-1], text) / 100, Scale.RELATIVE)
    return Limit(_number(word, text), Scale.ABSOLUTE)


def _number(word: str, text: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise UsageError(f"{text!r} is no limit", hint="write 2% (of the baseline), 1pp (points) or a plain number")
    return value
