"""Limits: the range of each value that is read, and how much of anything is read at all. Standard library only.

A value outside its range is left out where it enters, and a row of health (`odd_values`) names it. What would take the
machine's memory is refused with the name of the field. docs/reference/limits.md lists all of it, each with its test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard


@dataclass(frozen=True, slots=True)
class Range:
    """Whole numbers from `low` to `high`, both included."""

    low: int
    high: int

    def holds(self, value: object) -> TypeGuard[int]:
        """Return whether a value is a whole number of this range; truth values are none."""
        return type(value) is int and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low} to {self.high}"


MAX_RANKS = 1 << 20
"""A million devices: ten times the largest cluster there is."""

RANK = Range(0, MAX_RANKS - 1)
WORLD_SIZE = Range(1, MAX_RANKS)
DEGREE = Range(1, MAX_RANKS)
STAGE = Range(0, 1 << 14)
LOCAL_DEVICE = Range(0, (1 << 10) - 1)
"""A process's own number of a device, in memory snapshots."""
CHUNKS = Range(1, 1 << 10)
"""Virtual stages of a pipeline rank."""
MICRO_BATCHES = Range(0, 1 << 20)
COUNT = Range(-1, 1 << 53)
"""Sizes, tokens, parameters: -1 is absent, and a double holds every one exactly."""
CHANGE = Range(-(1 << 53), 1 << 53)
"""Bytes taken or, negative, given back."""
NUMBER = Range(-(1 << 62), 1 << 62)
"""Numbers that only name something: steps, correlations, addresses."""
GRID = (Range(0, (1 << 31) - 1), Range(0, 1 << 16), Range(0, 1 << 16))
"""Blocks along x, y and z, as devices take them: the product fits into 64 bits."""
BLOCK = (Range(0, 1 << 16),) * 3
EPOCH_NS = Range(0, 1 << 62)

MAX_WINDOW_NS = 1 << 53
"""104 days. An event that lies farther from its trace's middle than this has no usable time."""
MAX_DEPTH = 100
"""JSON lists and objects inside one another, beyond which text is not read."""
PASSES = Range(1, 1 << 14)
"""Micro-batches of a step that is predicted or made up: their order is worked out one by one."""
MAX_ACTIONS = 1 << 20
"""Pipeline actions of a step over all ranks, of an order that is worked out."""
MAX_MADE_UP_RANKS = 1 << 14
MAX_MADE_UP_EVENTS = 1 << 26
MAX_WATCHDOG_CALLS = 1 << 17
"""Calls of a thread that looks after calls in flight, of a rank that is made up."""
MAX_DESCRIPTION_BYTES = 256 << 20
"""Models, policies, baselines, declarations."""
MAX_UNPACKED_FREELY = 256 << 20
MAX_UNPACKING = 1000
"""Times its size that a packed file may unpack to, beyond `MAX_UNPACKED_FREELY` bytes; traces reach 30."""
MAX_DIGITS = 19


def whole(text: str, within: Range = NUMBER) -> int | None:
    """Read a whole number; `None` where the text is none, or outside the range."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()) or len(digits.lstrip("0")) > MAX_DIGITS:
        return None
    number = int(("-" if text.startswith("-") else "") + (digits.lstrip("0") or "0"))
    return number if within.holds(number) else None
