"""What is a metric? An id, a unit, a direction and dimensions: what the gate, the JSON and comparisons read.

Tables may change freely; metric ids are a contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

Dims = Mapping[str, int | str]
NO_DIMS: Dims = MappingProxyType({})


class Better(StrEnum):
    """In which direction a metric improves."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


class Unit(StrEnum):
    """The units that figures are kept in; writers format them."""

    NS = "ns"
    FRACTION = "fraction"
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes/s"
    FLOP_PER_SECOND = "flop/s"
    FLOP = "flop"
    PER_SECOND = "1/s"
    COUNT = "count"
    RATIO = "ratio"


@dataclass(frozen=True, slots=True)
class Metric:
    """A declared metric. `dims` lists the dimensions its values may carry (rank, step, axis, stage, cause, ...)."""

    id: str
    unit: Unit
    better: Better
    title: str
    doc: str
    dims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Value:
    """One measured value of a metric; without dimensions it is the whole."""

    metric: Metric
    value: float | int
    dims: Dims = field(default_factory=lambda: NO_DIMS)
