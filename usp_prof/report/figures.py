"""Figures: metric values by dimension, the parts of a step, and the context of sections."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof.model.finding import Finding, IdealStep
from usp_prof.model.health import HealthRow
from usp_prof.model.metric import Metric, Value, Values
from usp_prof.model.topology import Axis
from usp_prof.report.run_facts import RunFacts

if TYPE_CHECKING:
    from usp_prof.analyses.result import Result
    from usp_prof.model.selection import Selection
    from usp_prof.tables.table_set import TableSet


Number = int | float
Key = int | str
_ByDims = dict[tuple[str, ...], dict[tuple[Key, ...], Number]]


class Figures:
    """Metric values by metric and dimensions. Values that are not finite are unknown."""

    def __init__(self, values: Iterable[Value]) -> None:
        self._values: dict[str, list[Value]] = defaultdict(list)
        self._by_dims_of_metric: dict[str, _ByDims] = {}  # by metric, for those looked up
        for value in values:
            self._values[value.metric.id].append(value)

    def _values_by_dims(self, metric: str) -> _ByDims:
        if metric not in self._by_dims_of_metric:
            self._by_dims_of_metric[metric] = _by_dims(self._values.get(metric, ()))
        return self._by_dims_of_metric[metric]

    def overall(self, metric: str) -> Number | None:
        """Return the overall value."""
        return self._values_by_dims(metric).get((), {}).get(())

    @property
    def cover_a_window(self) -> bool:
        """Whether steps are unknown, so that figures cover the recorded window."""
        return self.has("window_time") and not self.has("step_time")

    @property
    def rank_step_ns(self) -> Number:
        """The mean step of a rank, or its window if steps are unknown; 0 if neither is known."""
        return self.overall("step_time") or self.overall("window_time") or 0

    def at(self, metric: str, **dims: Key) -> Number | None:
        """Return the value at exactly these dimensions."""
        names = tuple(sorted(dims))
        return self._values_by_dims(metric).get(names, {}).get(tuple(dims[name] for name in names))

    def along(self, metric: str, dim: str, **fixed: Key) -> dict[Key, Number]:
        """Return the values along one dimension, the others fixed, in order."""
        names = tuple(sorted({dim, *fixed}))
        place = names.index(dim)
        wanted = [(i, fixed[name]) for i, name in enumerate(names) if name != dim]
        values = {
            key[place]: value
            for key, value in self._values_by_dims(metric).get(names, {}).items()
            if all(key[i] == want for i, want in wanted)
        }
        return dict(sorted(values.items(), key=lambda item: (isinstance(item[0], str), item[0])))

    def grid(self, metric: str, first: str, second: str) -> dict[tuple[Key, Key], Number]:
        """Return the values over two dimensions, keyed in the given order."""
        names = tuple(sorted((first, second)))
        swap = names != (first, second)
        values = self._values_by_dims(metric).get(names, {})
        return {(key[1], key[0]) if swap else (key[0], key[1]): value for key, value in values.items()}

    def total(self, metric: str, *dims: str) -> Number:
        """Sum the values with exactly these dimensions, such as calls of every kind."""
        return sum(self._values_by_dims(metric).get(tuple(sorted(dims)), {}).values())

    def has(self, metric: str) -> bool:
        """Return whether a metric has any value."""
        return bool(self._values_by_dims(metric))


def _by_dims(values: Iterable[Value]) -> _ByDims:
    """Group values by the names of their dimensions, keyed by the dimension values."""
    groups: _ByDims = {}
    for value in values:
        if math.isfinite(value.value):
            dims = value.dims
            names = tuple(sorted(dims))
            groups.setdefault(names, {})[tuple([dims[name] for name in names])] = value.value
    return groups


# Parts of a step: their order on screens and their names.

_AXES = [str(axis) for axis in Axis]
UNRECORDED = "not recorded"
_CAUSES = ("bubble", "host", "input", "sync", "other")


def parts(figures: Figures, **dims: Key) -> list[tuple[str, str, Number]]:
    """Return label, role and time of each part of the step at these dimensions, without empty parts."""
    exposed = figures.along("exposed_comm_time", "axis", **dims)
    idle = figures.along("idle_time", "cause", **dims)
    all_parts: list[tuple[str, str, Number | None]] = [
        ("compute", "compute", figures.at("compute_time", **dims)),
        *((label_of(f"comm:{axis}"), f"comm:{axis}", exposed[axis]) for axis in axes_in_order(exposed)),
        ("memcpy", "memcpy", figures.at("memcpy_time", **dims)),
        (UNRECORDED, "unrecorded", figures.at("unrecorded_time", **dims)),
        *((_idle_label(cause), f"idle:{cause}", idle[cause]) for cause in _in_order(idle, _CAUSES)),
    ]
    return [(label, role, value) for label, role, value in all_parts if value]


def axes_in_order(axes: Iterable[Key]) -> list[Key]:
    """Sort axes in the order of screens."""
    return _in_order(axes, _AXES)


def axis_words(axis: Key) -> str:
    """Return the name of an axis in a sentence."""
    return "an unknown axis" if axis == Axis.UNKNOWN else str(axis)


def label_of(role: str) -> str:
    """Return the name of a part by its role: `comm:tp` is exposed tp, `idle:host` is idle: host."""
    family, _, which = role.partition(":")
    if family == "comm":
        return "exposed, unknown axis" if which == Axis.UNKNOWN else f"exposed {which}"
    if family == "idle":
        return _idle_label(which)
    return UNRECORDED if role == "unrecorded" else role


def _in_order(names: Iterable[Key], order: Sequence[str]) -> list[Key]:
    place = {name: number for number, name in enumerate(order)}
    return sorted(names, key=lambda name: (place.get(str(name), len(place)), str(name)))


def _idle_label(cause: Key) -> str:
    # "Bubble" alone is the share of the schedule's window; this is only the idle part of it.
    return "idle: pipeline" if cause == "bubble" else f"idle: {cause}"


# Context of a section: tables, results of the analyses, and their values by dimensions.


@dataclass(frozen=True, slots=True)
class Context:
    """Everything known about a run when its report is built."""

    run: RunFacts
    tables: TableSet
    selection: Selection
    results: Mapping[str, Result]
    values: Mapping[str, Values]
    """Metric values of each analysis, computed once."""
    metrics: Mapping[str, Metric]
    figures: Figures
    findings: tuple[Finding, ...]
    ideal: IdealStep | None
    """The step with all ranks like their peers, if findings were searched."""
    unrecorded_step_ns: float
    """The mean step without the cost of recording; 0 if unknown or not notable."""
    health: tuple[HealthRow, ...]
