"""Limits: the valid range of each value that is read, and the maximum amount of input. Standard library only.

A value outside its range is dropped on input and reported in a health row (`odd_values`). Input that would exhaust
memory is rejected with the name of the field. docs/reference/limits.md lists all limits with their tests.
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
        """Return whether a value is an integer in this range; booleans are not."""
        return type(value) is int and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low} to {self.high}"


MAX_RANKS = 1 << 20
"""A million devices: ten times the largest existing cluster."""

RANK = Range(0, MAX_RANKS - 1)
WORLD_SIZE = Range(1, MAX_RANKS)
DEGREE = Range(1, MAX_RANKS)
STAGE = Range(0, 1 << 14)
LOCAL_DEVICE = Range(0, (1 << 10) - 1)
"""Device number within a process, in memory snapshots."""
CHUNKS = Range(1, 1 << 10)
"""Virtual stages of a pipeline rank."""
MICRO_BATCHES = Range(0, 1 << 20)
COUNT = Range(-1, 1 << 53)
"""Sizes, tokens, parameters: -1 means absent, and a double represents each exactly."""
AMOUNT = Range(1, 1 << 53)
"""Options of the command line: sizes, tokens and numbers of things."""
CHANGE = Range(-(1 << 53), 1 << 53)
"""Allocated bytes; negative if freed."""
NUMBER = Range(-(1 << 62), 1 << 62)
"""Numbers that are only identifiers: steps, correlations, addresses."""
GRID = (Range(0, (1 << 31) - 1), Range(0, 1 << 16), Range(0, 1 << 16))
"""Blocks along x, y and z, within the limits of devices: the product fits in 64 bits."""
BLOCK = (Range(0, 1 << 16),) * 3
EPOCH_NS = Range(0, 1 << 62)

MAX_WINDOW_NS = 1 << 53
"""104 days. The time of an event farther than this from the middle of its trace is not usable."""
MAX_DEPTH = 100
"""Maximum nesting depth of JSON lists and objects."""
PASSES = Range(1, 1 << 14)
"""Micro-batches per predicted or synthetic step: their order is computed one by one."""
MAX_ACTIONS = 1 << 20
"""Pipeline actions per step over all ranks, if their order is computed."""
MAX_SYNTHETIC_RANKS = 1 << 14
MAX_SYNTHETIC_EVENTS = 1 << 26
MAX_WATCHDOG_CALLS = 1 << 17
"""Watchdog calls per synthetic rank; the watchdog thread monitors calls in flight."""
MAX_DESCRIPTION_BYTES = 256 << 20
"""Maximum size of a model, policy, baseline or declaration file."""
MAX_UNPACKED_FREELY = 256 << 20
MAX_UNPACKING = 1000
"""Maximum compression ratio of a file that unpacks to more than `MAX_UNPACKED_FREELY` bytes; traces reach 30."""
MAX_DIGITS = 19


def parse_integer(text: str, within: Range = NUMBER) -> int | None:
    """Parse an integer; return `None` if the text is not one, or if it is outside the range."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()) or len(digits.lstrip("0")) > MAX_DIGITS:
        return None
    number = int(("-" if text.startswith("-") else "") + (digits.lstrip("0") or "0"))
    return number if within.holds(number) else None
