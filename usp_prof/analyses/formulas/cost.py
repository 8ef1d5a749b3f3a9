"""Cost of an op: what a formula takes (recorded shapes) and gives (FLOP and bytes)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Any

from usp_prof.model.hardware import Precision, element_bytes, precision


class Family(StrEnum):
    """What kind of work an op is."""

    PRODUCT = "matrix product"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    NORM = "normalisation"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    FUSED = "fused"
    NOTHING = "views and allocation"


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOP of matrix arithmetic, bytes that must cross the memory bus at least once, and the precision."""

    family: Family
    flop: float
    bytes: float
    precision: Precision | None


@dataclass(frozen=True, slots=True)
class Shapes:
    """An op's inputs as recorded: dims (of a list of tensors: a list of dims), types, and scalar values as text.

    `lists` is the type of the tensors in lists, for which profilers record none; empty where it is not known.
    """

    dims: list[Any]
    types: list[str]
    values: list[str]
    lists: str = ""

    def tensor(self, place: int) -> list[int]:
        """Give one tensor's dims; raise where the place holds none."""
        dims = self.dims[place]
        if not dims or isinstance(dims[0], list):
            raise ValueError("no tensor there")
        return [int(size) for size in dims]

    def size(self, place: int) -> int:
        """Give the bytes of one tensor."""
        return prod(self.tensor(place)) * self.element(place)

    def element(self, place: int) -> int:
        """Give the bytes of one element; raise for a type that is not known."""
        width = element_bytes(self.types[place]) if place < len(self.types) else 0
        if not width:
            raise ValueError("unknown element type")
        return width

    def precision(self, place: int) -> Precision | None:
        """Give the precision of one tensor's type."""
        return precision(self.types[place]) if place < len(self.types) else None

    def flag(self, place: int) -> bool:
        """Give a recorded truth value; raise where none was recorded."""
        value = self.values[place].lower()
        if value not in {"true", "false", "1", "0"}:
            raise ValueError("no truth value there")
        return value in {"true", "1"}

    def numbers(self, place: int) -> list[int]:
        """Give a recorded list of whole numbers."""
        return [int(number) for number in json.loads(self.values[place])]


Formula = Callable[[Shapes], Cost | None]


def parse(dims: str, types: str, values: str, lists: str = "") -> Shapes:
    """Read an op's recorded inputs; what is damaged counts as not recorded."""
    return Shapes(_list(dims), [str(t) for t in _list(types)], [str(v) for v in _list(values)], lists)


def _list(text: str) -> list[Any]:
    try:
        items = json.loads(text) if text else []
    except ValueError:
        return []
    return items if isinstance(items, list) else []
