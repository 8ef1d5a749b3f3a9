"""How does a figure per (rank, step) become metric values? The cell, the rank's mean, the mean of the ranks' means.

Means (not medians) so that the parts of a step still add up to it on every level.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.algebra.order import distinct, numbered
from usp_prof.model.metric import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from usp_prof.model.metric import Dims, Metric


def rank_means(rank: NDArray[np.int64], figure: NDArray[np.int64]) -> tuple[list[int], NDArray[np.float64]]:
    """Give each rank's mean over its steps."""
    ranks, row = numbered(rank)
    sums = np.bincount(row, weights=np.asarray(figure, float), minlength=len(ranks))
    return ranks.tolist(), sums / np.bincount(row, minlength=len(ranks))


def spread(
    metric: Metric,
    rank: NDArray[np.int64],
    step: NDArray[np.int64],
    figure: NDArray[np.int64],
    **dims: int | str,
) -> list[Value]:
    """Give a time as the whole, per rank and per (rank, step), each with the further dimensions."""
    if not len(rank):
        return []
    told = zip(_levels(rank, figure), _places(rank, step, dims), strict=True)
    return [Value(metric, value, place) for value, place in told]


def spread_ratio(
    metric: Metric,
    rank: NDArray[np.int64],
    step: NDArray[np.int64],
    part: NDArray[np.int64],
    base: NDArray[np.int64],
    **dims: int | str,
) -> list[Value]:
    """Give a fraction on the same levels, as the ratio of the sums there; nothing where the base is zero."""
    if not len(rank):
        return []
    told = zip(_levels(rank, part), _levels(rank, base), _places(rank, step, dims), strict=True)
    return [Value(metric, own / whole, place) for own, whole, place in told if whole]


def _levels(rank: NDArray[np.int64], figure: NDArray[np.int64]) -> list[float | int]:
    """Give a figure as the whole, per rank and per row."""
    means = rank_means(rank, figure)[1]
    return [float(means.mean()), *means.tolist(), *figure.tolist()]


def _places(rank: NDArray[np.int64], step: NDArray[np.int64], dims: Dims) -> list[Dims]:
    """Give the dimensions of the same levels, each with the further ones."""
    by_rank = [{"rank": each, **dims} for each in distinct(rank).tolist()]
    return [
        dims,
        *by_rank,
        *({"rank": r, "step": s, **dims} for r, s in zip(rank.tolist(), step.tolist(), strict=True)),
    ]


def in_order(values: Sequence[Value]) -> list[Value]:
    """Sort values by metric as declared first, then by dimensions, the whole first."""
    groups: dict[str, dict[int, list[Value]]] = {}  # values are many, metrics and sets of dimensions few
    for value in values:
        groups.setdefault(value.metric.id, {}).setdefault(len(value.dims), []).append(value)
    return [value for sizes in groups.values() for _, group in sorted(sizes.items()) for value in _by_dims(group)]


def _by_dims(group: list[Value]) -> list[Value]:
    """Sort values of equally many dimensions: by name and value of the first, then of the second; an axis is last."""
    orders = {names: sorted(names, key=lambda n: (n == "axis", n)) for names in {tuple(v.dims) for v in group}}
    if len({tuple(order) for order in orders.values()}) == 1:
        order = next(iter(orders.values()))
        if not order:
            return group
        pick = itemgetter(*order)
        picked = [pick(value.dims) for value in group]
        if all(len(set(map(type, column))) == 1 for column in (zip(*picked, strict=True) if order[1:] else [picked])):
            ranked = sorted(range(len(group)), key=picked.__getitem__)
            return [group[place] for place in ranked]

    def key(value: Value) -> tuple[tuple[str, bool, int, str], ...]:
        dims = value.dims
        return tuple((name, isinstance(dims[name], str), *_split(dims[name])) for name in orders[tuple(dims)])

    return sorted(group, key=key)


def _split(dim: int | str) -> tuple[int, str]:
    return (0, dim) if isinstance(dim, str) else (dim, "")
