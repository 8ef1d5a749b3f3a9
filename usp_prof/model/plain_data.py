"""Plain data against declared types: JSON that a person wrote becomes a dataclass, or an error that names the field."""

from __future__ import annotations

import math
from typing import TypeVar

import msgspec

from usp_prof import limits

T = TypeVar("T")

ERRORS = (TypeError, ValueError, KeyError, AttributeError, OverflowError, msgspec.ValidationError, RecursionError)
"""What data of another shape raises where it is taken apart."""


def checked(kind: type[T], data: object) -> T:
    """Give data as a dataclass with every field of its declared type; raises one of `ERRORS`.

    Numbers are finite, and whole ones such that a double holds them exactly.
    """
    check_numbers(data)
    return msgspec.convert(data, kind)


def check_numbers(data: object, where: str = "") -> None:
    """Raise `ValueError` where a number, however deep, is not finite or too large to count anything."""
    if isinstance(data, dict):
        for key, inner in data.items():
            check_numbers(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(data, (list, tuple)):
        for place, inner in enumerate(data):
            check_numbers(inner, f"{where}[{place}]")
    elif isinstance(data, float) and not math.isfinite(data):
        raise ValueError(f"{where} is {data}, no finite number")
    elif isinstance(data, int) and not isinstance(data, bool) and not limits.CHANGE.holds(data):
        raise ValueError(f"{where} is {str(data)[:24]}, outside of {limits.CHANGE}")


def is_later(data: object, format_name: str, version: int) -> bool:
    """Say whether decoded JSON is a file of a format of ours, in a later version than this one."""
    if not isinstance(data, dict) or data.get("format") != format_name:
        return False
    written = data.get("version")
    return isinstance(written, int) and written > version
