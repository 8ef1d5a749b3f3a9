"""Which op is it, as far as a model of its time needs it? A matrix product with its FLOP, attention, or another."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from usp_prof.model.hardware import Precision, precision

_PRODUCTS = {
    "aten::mm": 0, "aten::bmm": 0, "aten::matmul": 0, "aten::addmm": 1, "aten::addmm_": 1, "aten::baddbmm": 1,
    "aten::_scaled_mm": 0, "aten::_grouped_mm": 0, "aten::linear": 0, "aten::_addmm_activation": 1,
}  # fmt: skip
"""Matrix products, with the place of their left factor."""
_ATTENTION = re.compile(r"attention|flash|sdpa", re.IGNORECASE)


class Family(StrEnum):
    """What kind of work an op is."""

    PRODUCT = "product"
    ATTENTION = "attention"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Shape:
    """An op with its shapes; `flop` is 0 where no formula is known."""

    name: str
    family: Family
    flop: float
    sizes: frozenset[int]
    """All sizes in its inputs."""
    precision: Precision | None
    rows: int = 0
    """Of a product: its rows."""


def shape_of(name: str, dims: str, types: str) -> Shape:
    """Read an op's shapes; what cannot be read is an op of another family."""
    tensors = _list(dims)
    kinds = _list(types)
    kind = next((found for text in kinds if isinstance(text, str) and (found := precision(text))), None)
    sizes = frozenset(size for tensor in tensors for size in _sizes(tensor))
    if name in _PRODUCTS:
        flop, rows = _product(name, tensors)
        return Shape(name, Family.PRODUCT, flop, sizes, kind, rows)
    return Shape(name, Family.ATTENTION if _ATTENTION.search(name) else Family.OTHER, 0.0, sizes, kind)


def _product(name: str, tensors: list[object]) -> tuple[float, int]:
    left = _PRODUCTS[name]
    if len(tensors) < left + 2:
        return 0.0, 0
    one, other = (_sizes(tensor) for tensor in tensors[left : left + 2])
    if len(one) < 2 or len(other) < 2:
        return 0.0, 0
    columns = other[0] if name == "aten::linear" else other[-1]
    return 2.0 * prod(one) * columns, prod(one[:-1])


def _sizes(tensor: object) -> list[int]:
    if not isinstance(tensor, list):
        return []
    return [int(size) for size in tensor if isinstance(size, int)]


def _list(text: str) -> list[object]:
    try:
        found = json.loads(text) if text else []
    except ValueError:
        return []
    return found if isinstance(found, list) else []
