"""What is the value of a metric for this rank, step, axis? The values of all analyses, looked up by dimensions."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.model.metric import Value

Number = int | float
Key = int | str


class Figures:
    """Metric values, grouped by metric and by the dimensions they carry. Values that are not finite are not known."""

    def __init__(self, values: Iterable[Value]) -> None:
        self._groups: dict[tuple[str, tuple[str, ...]], dict[tuple[Key, ...], Number]] = defaultdict(dict)
        orders: dict[tuple[str, ...], tuple[str, ...]] = {}  # values are many, sets of dimensions few
        for value in values:
            if not math.isfinite(value.value):
                continue
            dims = value.dims
            told = tuple(dims)
            names = orders.get(told) or orders.setdefault(told, tuple(sorted(told)))
            self._groups[value.metric.id, names][tuple([dims[name] for name in names])] = value.value

    def whole(self, metric: str) -> Number | None:
        """Give the value over everything."""
        return self._groups.get((metric, ()), {}).get(())

    def at(self, metric: str, **dims: Key) -> Number | None:
        """Give the value at exactly these dimensions."""
        names = tuple(sorted(dims))
        return self._groups.get((metric, names), {}).get(tuple(dims[name] for name in names))

    def along(self, metric: str, dim: str, **fixed: Key) -> dict[Key, Number]:
        """Give the values along one dimension, the others fixed, in order."""
        names = tuple(sorted({dim, *fixed}))
        place = names.index(dim)
        wanted = [(i, fixed[name]) for i, name in enumerate(names) if name != dim]
        found = {
            key[place]: value
            for key, value in self._groups.get((metric, names), {}).items()
            if all(key[i] == want for i, want in wanted)
        }
        return dict(sorted(found.items(), key=lambda item: (isinstance(item[0], str), item[0])))

    def grid(self, metric: str, first: str, second: str) -> dict[tuple[Key, Key], Number]:
        """Give the values over two dimensions, keyed in the order asked for."""
        names = tuple(sorted((first, second)))
        swap = names != (first, second)
        found = self._groups.get((metric, names), {})
        return {(key[1], key[0]) if swap else (key[0], key[1]): value for key, value in found.items()}

    def has(self, metric: str) -> bool:
        """Say whether anything is known of a metric."""
        return any(key[0] == metric and found for key, found in self._groups.items())
