"""Cost of an op: the input of a formula (recorded shapes) and its result (FLOP and bytes)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Any

from usp_prof.model.hardware import Precision, element_bytes, precision
from usp_prof.tables.events.arguments import recorded_list


class Family(StrEnum):
    """Kind of work that an op does."""

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
    """An op's recorded inputs: dims (for a list of tensors: a list of dims), types, and scalar values as text.

    `lists` is the element type of tensor lists, which profilers do not record; empty if unknown.
    """

    dims: list[Any]
    types: list[str]
    values: list[str]
    lists: str = ""

    def tensor(self, place: int) -> list[int]:
        """Return a tensor's dims; raise ValueError if the input is not a tensor."""
        dims = self.dims[place]
        if not dims or isinstance(dims[0], list):
            raise ValueError("no tensor there")
        return [int(size) for size in dims]

    def size(self, place: int) -> int:
        """Return the bytes of one tensor."""
        return prod(self.tensor(place)) * self.element(place)

    def element(self, place: int) -> int:
        """Return the bytes of one element; raise ValueError if the type is unknown."""
        width = element_bytes(self.types[place]) if place < len(self.types) else 0
        if not width:
            raise ValueError("unknown element type")
        return width

    def precision(self, place: int) -> Precision | None:
        """Return the precision of one tensor's type."""
        return precision(self.types[place]) if place < len(self.types) else None

    def flag(self, place: int) -> bool:
        """Return a recorded Boolean; raise ValueError if none was recorded."""
        value = self.values[place].lower()
        if value not in {"true", "false", "1", "0"}:
            raise ValueError("no truth value there")
        return value in {"true", "1"}

    def numbers(self, place: int) -> list[int]:
        """Return a recorded list of integers."""
        return [int(number) for number in json.loads(self.values[place])]


Formula = Callable[[Shapes], Cost | None]


def parse(dims: str, types: str, values: str, lists: str = "") -> Shapes:
    """Parse an op's recorded inputs. Damaged text counts as not recorded."""
    return Shapes(
        recorded_list(dims), [str(t) for t in recorded_list(types)], [str(v) for v in recorded_list(values)], lists
    )
