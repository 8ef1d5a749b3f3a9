"""Figures: the value of a metric for a rank, step or axis, looked up by dimensions."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.model.metric import Value

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
        found = {
            key[place]: value
            for key, value in self._of(metric).get(names, {}).items()
            if all(key[i] == want for i, want in wanted)
        }
        return dict(sorted(found.items(), key=lambda item: (isinstance(item[0], str), item[0])))

    def grid(self, metric: str, first: str, second: str) -> dict[tuple[Key, Key], Number]:
        """Give the values over two dimensions, keyed in the order asked for."""
        names = tuple(sorted((first, second)))
        swap = names != (first, second)
        found = self._of(metric).get(names, {})
        return {(key[1], key[0]) if swap else (key[0], key[1]): value for key, value in found.items()}

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
