"""Metrics: id, unit, direction, range and dimensions; read by the gate, JSON, the dashboard and comparisons.

Tables may change freely; metric ids are a contract. A value outside its metric's range is not shown: `sound` leaves it
out, and `Values.refused` keeps it, so that health can name the impossible input.
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
    """Direction in which a metric improves."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


class Unit(StrEnum):
    """Units of stored values; writers format them."""

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
"""Sums of floats may exceed a bound by this share of it."""


@dataclass(frozen=True, slots=True)
class Range:
    """Possible values of a metric; bounds included, infinity excluded."""

    low: float
    high: float = math.inf

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest value, rounding included; both finite."""
        low, high = self.low - _slack(self.low), self.high + _slack(self.high)
        return max(low, -sys.float_info.max), min(high, sys.float_info.max)

    def holds(self, value: float) -> bool:
        """Return whether a value is possible."""
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
    """A declared metric. `dims` lists the dimensions that its values may have (rank, step, axis, stage, cause, ...).

    `within` is the range of its values, if the unit does not determine it (fractions are between 0 and 1, all others
    not negative). `inputs` names what it is computed from, to be checked if it leaves the range.
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
        """Range of its values."""
        if self.within is not None:
            return self.within
        return SHARE if self.unit is Unit.FRACTION else NOT_NEGATIVE

    def if_possible(self, value: float) -> float:
        """Return a value shown in a table, or NaN if it is impossible."""
        return value if self.range.holds(value) else math.nan


@dataclass(frozen=True, slots=True)
class Value:
    """One measured value of a metric; without dimensions it is the overall value."""

    metric: Metric
    value: float | int
    dims: Dims = field(default_factory=lambda: NO_DIMS)


class Values(list[Value]):
    """Possible values. `refused` has those outside of their metric's range."""

    def __init__(self, valid: Iterable[Value] = (), refused: Iterable[Value] = ()) -> None:
        super().__init__(valid)
        self.refused = tuple(refused)


def sound(values: Iterable[Value]) -> Values:
    """Return the values without unknown (NaN) and impossible ones."""
    valid, refused = [], []
    bounds: dict[str, tuple[float, float]] = {}  # by metric, of which there are few
    for value in values:
        if value.metric.id not in bounds:
            bounds[value.metric.id] = value.metric.range.bounds
        low, high = bounds[value.metric.id]
        if low <= value.value <= high:
            valid.append(value)
        elif not math.isnan(value.value):
            refused.append(value)
    return Values(valid, refused)
