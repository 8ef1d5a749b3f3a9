"""Figures: values of metrics by dimensions, the parts of a step made of them, and the context that sections get."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof.model.topology import Axis

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from usp_prof.analyses.result import Result
    from usp_prof.model.finding import Finding, IdealStep
    from usp_prof.model.health import HealthRow
    from usp_prof.model.metric import Metric, Value
    from usp_prof.model.selection import Selection
    from usp_prof.report.document import RunFacts
    from usp_prof.tables.table_set import TableSet


Number = int | float
Key = int | str
_ByDims = dict[tuple[str, ...], dict[tuple[Key, ...], Number]]


class Figures:
    """Metric values, looked up by metric and by the dimensions they carry. Values that are not finite are not known."""

    def __init__(self, values: Iterable[Value]) -> None:
        self._values: dict[str, list[Value]] = defaultdict(list)
        self._known: dict[str, _ByDims] = {}  # of the metrics that were asked for: few of many
        for value in values:
            self._values[value.metric.id].append(value)

    def _of(self, metric: str) -> _ByDims:
        if metric not in self._known:
            self._known[metric] = _by_dims(self._values.get(metric, ()))
        return self._known[metric]

    def whole(self, metric: str) -> Number | None:
        """Give the value over everything."""
        return self._of(metric).get((), {}).get(())

    def at(self, metric: str, **dims: Key) -> Number | None:
        """Give the value at exactly these dimensions."""
        names = tuple(sorted(dims))
        return self._of(metric).get(names, {}).get(tuple(dims[name] for name in names))

    def along(self, metric: str, dim: str, **fixed: Key) -> dict[Key, Number]:
        """Give the values along one dimension, the others fixed, in order."""
        names = tuple(sorted({dim, *fixed}))
        place = names.index(dim)
        wanted = [(i, fixed[name]) for i, name in enumerate(names) if name != dim]
        values = {
            key[place]: value
            for key, value in self._of(metric).get(names, {}).items()
            if all(key[i] == want for i, want in wanted)
        }
        return dict(sorted(values.items(), key=lambda item: (isinstance(item[0], str), item[0])))

    def grid(self, metric: str, first: str, second: str) -> dict[tuple[Key, Key], Number]:
        """Give the values over two dimensions, keyed in the order asked for."""
        names = tuple(sorted((first, second)))
        swap = names != (first, second)
        values = self._of(metric).get(names, {})
        return {(key[1], key[0]) if swap else (key[0], key[1]): value for key, value in values.items()}

    def total(self, metric: str, *dims: str) -> Number:
        """Add up the values that carry exactly these dimensions, such as calls of every kind."""
        return sum(self._of(metric).get(tuple(sorted(dims)), {}).values())

    def has(self, metric: str) -> bool:
        """Say whether anything is known of a metric."""
        return bool(self._of(metric))


def _by_dims(values: Iterable[Value]) -> _ByDims:
    """Group values by the names of their dimensions, and key them by what these are."""
    groups: _ByDims = {}
    for value in values:
        if math.isfinite(value.value):
            dims = value.dims
            names = tuple(sorted(dims))
            groups.setdefault(names, {})[tuple([dims[name] for name in names])] = value.value
    return groups


# Parts of a step: their order on screens and their names.

_AXES = [str(axis) for axis in Axis]
_CAUSES = ("bubble", "host", "input", "sync", "other")


def parts(figures: Figures, **dims: Key) -> list[tuple[str, str, Number]]:
    """Give label, role and time of each part of the step at these dimensions, parts of no time left out."""
    exposed = figures.along("exposed_comm_time", "axis", **dims)
    idle = figures.along("idle_time", "cause", **dims)
    listed: list[tuple[str, str, Number | None]] = [
        ("compute", "compute", figures.at("compute_time", **dims)),
        *((f"exposed {axis}", f"comm:{axis}", exposed[axis]) for axis in axes_in_order(exposed)),
        ("memcpy", "memcpy", figures.at("memcpy_time", **dims)),
        *((_idle_label(cause), f"idle:{cause}", idle[cause]) for cause in _in_order(idle, _CAUSES)),
    ]
    return [(label, role, value) for label, role, value in listed if value]


def axes_in_order(axes: Iterable[Key]) -> list[Key]:
    """Sort axes as screens show them."""
    return _in_order(axes, _AXES)


def label_of(role: str) -> str:
    """Name a part by its role: `comm:tp` is exposed tp, `idle:host` idle: host."""
    family, _, which = role.partition(":")
    if family == "comm":
        return f"exposed {which}"
    return _idle_label(which) if family == "idle" else role


def _in_order(names: Iterable[Key], known: Sequence[str]) -> list[Key]:
    place = {name: number for number, name in enumerate(known)}
    return sorted(names, key=lambda name: (place.get(str(name), len(place)), str(name)))


def _idle_label(cause: Key) -> str:
    # "Bubble" alone is the schedule's: a share of its window, in which a stage also waits inside other parts.
    return "idle: pipeline" if cause == "bubble" else f"idle: {cause}"


# Context of a section: tables, results of the analyses, and their values by dimensions.


@dataclass(frozen=True, slots=True)
class Context:
    """Everything that is known of a run when its report is put together."""

    run: RunFacts
    tables: TableSet
    selection: Selection
    results: Mapping[str, Result]
    metrics: Mapping[str, Metric]
    figures: Figures
    findings: tuple[Finding, ...]
    ideal: IdealStep | None
    """The step with all ranks alike, where findings were looked for."""
    health: tuple[HealthRow, ...]
