"""Ranges of the numbers that a planning question contains: one check for options, Python functions and tables.

A number of 0 is not given: the question then has its default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from usp_prof.limits import COUNT, DEGREE, MAX_RANKS, Range
from usp_prof.model.errors import UsageError

SHARES = ("efficiency", "memory_share")
"""Fractions from 0 to 1."""
WHOLE = ("sequence", "devices", "batch", "node")
"""Whole numbers from 1; other numbers only need to be positive."""
_MOST = {"devices": MAX_RANKS, "node": MAX_RANKS, **dict.fromkeys(SHARES, 1)}
_KNOBS = {
    "zero": Range(0, 3),
    "etp": Range(0, MAX_RANKS),
    "recompute_layers": Range(0, MAX_RANKS),
    "offload_layers": Range(0, MAX_RANKS),
}


def range_of_knob(name: str) -> Range:
    """Return the values of a setting that is a number; most are 1 or more."""
    return _KNOBS.get(name, DEGREE)


def most_of(name: str) -> int:
    """Return the largest value of a number."""
    return _MOST.get(name, COUNT.high)


def check_numbers(numbers: Mapping[str, float], spelled: Callable[[str], str] = str) -> None:
    """Raise for numbers that no machine can have; `spelled` returns how the user writes a name."""
    for name, value in numbers.items():
        if not isinstance(value, (int, float)):
            raise UsageError(f"{spelled(name)} is a number, not {value!r}", hint="write it without quotes")
        if 0 <= value <= most_of(name):  # false for NaN, too
            continue
        if name in SHARES:
            allowed = "a share between 0 and 1"
        elif name in WHOLE:
            allowed = f"1 to {most_of(name)}"
        else:
            allowed = f"positive and at most {most_of(name)}"
        raise UsageError(f"{spelled(name)} is {allowed}, not {value:g}", hint="omit it to use its default")


def option(name: str) -> str:
    """Return a name as it is written on the command line."""
    return "--" + name.replace("_", "-")
