"""Results of analyses: the protocol that all follow, their DataFrames, and metric values by rank and step."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from usp_prof.columns.rows import distinct, numbered
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.metric import Value, Values, sound

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from usp_prof.columns.arrays import Floats, Ints
    from usp_prof.model.metric import Dims, Metric

    Listing = Mapping[str, Sequence[Any] | NDArray[Any]]
    "Plain columns of one length: what a report shows without loading pandas, and what a DataFrame is made of."


class Result(Protocol):
    """An analysis' answer. `notes` holds what could not be known, as health rows."""

    @property
    def notes(self) -> Sequence[HealthRow]:
        """What could not be known, and why."""
        ...

    def values(self) -> Values:
        """Give the metric values that can be, sorted by dimension."""
        ...

    def to_pandas(self) -> pd.DataFrame:
        """Give the answer as one table."""
        ...


IMPOSSIBLE = "impossible_figure"


def impossible(values: Values) -> tuple[HealthRow, ...]:
    """Say of each metric with values that cannot be how many there are, and which input is to be doubted."""
    refused: dict[str, list[Value]] = {}
    for value in values.refused:
        refused.setdefault(value.metric.id, []).append(value)
    return tuple(_row(alike) for _, alike in sorted(refused.items()))


def _row(alike: Sequence[Value]) -> HealthRow:
    worst = max(alike, key=lambda value: abs(value.value))
    metric = worst.metric
    place = ", ".join(f"{name} {value}" for name, value in sorted(worst.dims.items()))
    figure = f"{metric.id} of {worst.value:.3g}" + (f" ({place})" if place else "")
    cause = f"impossible input: {metric.inputs}" if metric.inputs else "one of the times or sizes it is made of is"
    cause += "" if metric.inputs else " impossible"
    detail = f"{figure} is outside {metric.range} and not shown; {cause}"
    ranks = {int(value.dims["rank"]) for value in alike if "rank" in value.dims}
    rank = ranks.pop() if len(ranks) == 1 else -1
    return HealthRow(IMPOSSIBLE, Severity.ERROR, rank, len(alike), detail)


# DataFrames. pandas is loaded at first use: who asks for no DataFrame does not wait for it.


def frame(columns: Mapping[str, NDArray[Any] | Sequence[object]]) -> pd.DataFrame:
    """Make a DataFrame; pandas is loaded here, at first use."""
    import pandas as pd  # noqa: PLC0415 - slow to import, and only who asks for a DataFrame needs it

    # pandas takes a list without rows for numbers; texts come in lists.
    empty = pd.Series([], dtype=object)
    typed = {name: values if hasattr(values, "dtype") or len(values) else empty for name, values in columns.items()}
    return pd.DataFrame(typed)


def stacked(frames: Sequence[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """Set frames below each other; without any, a frame with the columns and no rows."""
    import pandas as pd  # noqa: PLC0415 - as above

    return pd.concat(list(frames), ignore_index=True) if frames else pd.DataFrame({name: [] for name in columns})


# Metric values of a figure per (rank, step): the cell, the rank's mean over steps, the mean of the ranks' means.
# Means (not medians) so that the parts of a step still add up to it on every level.


def rank_means(rank: Ints, figure: Ints) -> tuple[list[int], Floats]:
    """Give each rank's mean over its steps."""
    ranks, row = numbered(rank)
    sums = np.bincount(row, weights=np.asarray(figure, float), minlength=len(ranks))
    return ranks.tolist(), sums / np.bincount(row, minlength=len(ranks))


def spread(
    metric: Metric,
    rank: Ints,
    step: Ints,
    figure: Ints,
    **dims: int | str,
) -> list[Value]:
    """Give a time as the whole, per rank and per (rank, step), each with the further dimensions."""
    if not len(rank):
        return []
    return [
        Value(metric, value, place)
        for value, place in zip(_levels(rank, figure), _places(rank, step, dims), strict=True)
    ]


def spread_ratio(
    metric: Metric,
    rank: Ints,
    step: Ints,
    part: Ints,
    base: Ints,
    **dims: int | str,
) -> list[Value]:
    """Give a fraction on the same levels, as the ratio of the sums there; nothing where the base is zero."""
    if not len(rank):
        return []
    levels = zip(_levels(rank, part), _levels(rank, base), _places(rank, step, dims), strict=True)
    return [Value(metric, own / whole, place) for own, whole, place in levels if whole]


def _levels(rank: Ints, figure: Ints) -> list[float | int]:
    """Give a figure as the whole, per rank and per row."""
    means = rank_means(rank, figure)[1]
    return [float(means.mean()), *means.tolist(), *figure.tolist()]


def _places(rank: Ints, step: Ints, dims: Dims) -> list[Dims]:
    """Give the dimensions of the same levels, each with the further ones."""
    by_rank = [{"rank": number, **dims} for number in distinct(rank).tolist()]
    return [
        dims,
        *by_rank,
        *({"rank": r, "step": s, **dims} for r, s in zip(rank.tolist(), step.tolist(), strict=True)),
    ]


def in_order(values: Sequence[Value]) -> Values:
    """Keep the values that can be; sort them by metric as declared first, then by dimensions, the whole first.

    Every analysis ends here, so that no figure outside its declared range leaves one.
    """
    kept = sound(values)
    groups: dict[str, dict[int, list[Value]]] = {}  # values are many, metrics and sets of dimensions few
    for value in kept:
        groups.setdefault(value.metric.id, {}).setdefault(len(value.dims), []).append(value)
    ordered = [value for sizes in groups.values() for _, group in sorted(sizes.items()) for value in _by_dims(group)]
    return Values(ordered, kept.refused)


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
