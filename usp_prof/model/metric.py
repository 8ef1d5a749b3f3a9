"""Metrics: id, unit, direction, range and dimensions; what the gate, the JSON, the dashboard and comparisons read.

Tables may change freely; metric ids are a contract. A figure outside its metric's range is not a figure: `sound`
leaves it out, and `Values.refused` keeps it, so that health can say which input is impossible.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
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


_ROUNDING = 1e-9
"""Sums of floats may leave a range by this much of its bound."""


@dataclass(frozen=True, slots=True)
class Range:
    """What a metric's values can be; both ends included, infinity never."""

    low: float
    high: float = math.inf

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest value, rounding included; both finite."""
        low, high = self.low - _slack(self.low), self.high + _slack(self.high)
        return max(low, -sys.float_info.max), min(high, sys.float_info.max)

    def holds(self, value: float) -> bool:
        """Return whether a value can be."""
        low, high = self.bounds
        return low <= value <= high

    def __str__(self) -> str:
        if math.isinf(self.low):
            return "any"
        return f"at least {self.low:g}" if math.isinf(self.high) else f"{self.low:g} to {self.high:g}"


def _slack(bound: float) -> float:
    return _ROUNDING * abs(bound) if math.isfinite(bound) else 0.0


NOT_NEGATIVE, SHARE, FROM_ONE, SIGNED = Range(0.0), Range(0.0, 1.0), Range(1.0), Range(-math.inf)


@dataclass(frozen=True, slots=True)
class Metric:
    """A declared metric. `dims` lists the dimensions its values may carry (rank, step, axis, stage, cause, ...).

    `within` is the range of its values where its unit does not tell (a fraction lies between 0 and 1, all else is not
    negative); `inputs` names what it is made of, to be doubted when it leaves the range.
    """

    id: str
    unit: Unit
    better: Better
    title: str
    doc: str
    dims: tuple[str, ...] = ()
    within: Range | None = None
    inputs: str = ""

    @property
    def range(self) -> Range:
        """What its values can be."""
        if self.within is not None:
            return self.within
        return SHARE if self.unit is Unit.FRACTION else NOT_NEGATIVE

    def known(self, value: float) -> float:
        """Give a figure that is shown in a table, NaN where it cannot be."""
        return value if self.range.holds(value) else math.nan


@dataclass(frozen=True, slots=True)
class Value:
    """One measured value of a metric; without dimensions it is the whole."""

    metric: Metric
    value: float | int
    dims: Dims = field(default_factory=lambda: NO_DIMS)


class Values(list[Value]):
    """Values that can be. `refused` holds those that were left out, since they lie outside their metric's range."""

    def __init__(self, kept: Iterable[Value] = (), refused: Iterable[Value] = ()) -> None:
        super().__init__(kept)
        self.refused = tuple(refused)


def sound(values: Iterable[Value]) -> Values:
    """Leave out what is not known (NaN) and what cannot be."""
    kept, refused = [], []
    bounds: dict[str, tuple[float, float]] = {}  # by metric, of which there are few
    for value in values:
        if value.metric.id not in bounds:
            bounds[value.metric.id] = value.metric.range.bounds
        low, high = bounds[value.metric.id]
        if low <= value.value <= high:
            kept.append(value)
        elif not math.isnan(value.value):
            refused.append(value)
    return Values(kept, refused)
