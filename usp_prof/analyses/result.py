"""Results of analyses: their common base, DataFrames, and metric values per rank and step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from usp_prof.columns.arrays import Floats, Ints
from usp_prof.columns.rows import distinct, numbered
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.metric import Dims, Metric, Value, Values, sound

if TYPE_CHECKING:
    import pandas as pd
    from _typeshed import DataclassInstance

Place = TypeVar("Place", int, str)
DataFrame: TypeAlias = "pd.DataFrame"
"""Type of a pandas table, for annotations without importing pandas, which is slow."""
Listing = Mapping[str, Sequence[Any] | NDArray[Any]]
"Plain columns of equal length. Reports show them without loading pandas; DataFrames are built from them."


class Result(Protocol):
    """Base of the results of analyses. `notes` holds health rows about figures that are unknown."""

    __slots__ = ()

    @property
    def notes(self) -> Sequence[HealthRow]:
        """Figures that are unknown, and why."""

    def values(self) -> Values:
        """Return the metric values within their declared ranges, sorted by dimension."""

    def listing(self) -> Listing:
        """Return the result as one table of plain columns."""

    def to_pandas(self) -> DataFrame:
        """Return the same table as a DataFrame."""
        return frame(self.listing())


IMPOSSIBLE = "impossible_figure"


def impossible(values: Values) -> tuple[HealthRow, ...]:
    """Return one health row per metric with values outside its range: their count, the worst, and the likely input."""
    refused: dict[str, list[Value]] = {}
    for value in values.refused:
        refused.setdefault(value.metric.id, []).append(value)
    return tuple(_row(refused_values) for _, refused_values in sorted(refused.items()))


def _row(refused_values: Sequence[Value]) -> HealthRow:
    worst = max(refused_values, key=lambda value: abs(value.value))
    metric = worst.metric
    place = ", ".join(f"{name} {value}" for name, value in sorted(worst.dims.items()))
    figure = f"{metric.id} of {worst.value:.3g}" + (f" ({place})" if place else "")
    cause = f"impossible input: {metric.inputs}" if metric.inputs else "one of its times or sizes is impossible"
    detail = f"{figure} is outside {metric.range} and not shown; {cause}"
    ranks = {int(value.dims["rank"]) for value in refused_values if "rank" in value.dims}
    rank = ranks.pop() if len(ranks) == 1 else -1
    return HealthRow(IMPOSSIBLE, Severity.ERROR, rank, len(refused_values), detail)


# Columns and DataFrames. pandas is loaded at first use, so that callers without DataFrames do not pay for the import.


def columns_of(rows: Sequence[object], *names: str, **attributes: str) -> dict[str, list[Any]]:
    """Return attributes of rows as columns: `names` unchanged, `attributes` under the name of their keyword."""
    attribute_of_column = dict(zip(names, names, strict=True)) | attributes
    return {column: [getattr(row, name) for row in rows] for column, name in attribute_of_column.items()}


def fields_of(rows: Sequence[object], kind: type[DataclassInstance]) -> dict[str, list[Any]]:
    """Return all fields of rows of one dataclass as columns."""
    return columns_of(rows, *kind.__dataclass_fields__)


def frame(columns: Mapping[str, NDArray[Any] | Sequence[object]], *, or_unknown: Sequence[str] = ()) -> DataFrame:
    """Build a DataFrame, with NaN for -1 in the columns `or_unknown`; pandas is imported here, at first use."""
    import pandas as pd  # noqa: PLC0415 - slow to import, and only DataFrames need it

    # pandas gives an empty list a numeric type, but the columns that come as lists hold text.
    empty = pd.Series([], dtype=object)
    typed = {name: values if hasattr(values, "dtype") or len(values) else empty for name, values in columns.items()}
    built = pd.DataFrame(typed)
    for name in or_unknown:
        built[name] = built[name].where(built[name] != -1)
    return built


# Metric values of a figure per (rank, step): each row, the rank's mean over steps, and the mean of the ranks' means.
# They are means (not medians) so that the parts of a step add up to the step at every level.


def rank_means(rank: Ints, figure: Ints) -> tuple[list[int], Floats]:
    """Return the ranks, and each rank's mean over its steps."""
    ranks, row = numbered(rank)
    sums = np.bincount(row, weights=np.asarray(figure, float), minlength=len(ranks))
    return ranks.tolist(), sums / np.bincount(row, minlength=len(ranks))


def spread(metric: Metric, rank: Ints, step: Ints, figure: Ints, **dims: int | str) -> list[Value]:
    """Return the values of a time: overall, per rank and per (rank, step). `dims` are added to every value."""
    if not len(rank):
        return []
    levels = zip(_levels(rank, figure), _places(rank, step, dims), strict=True)
    return [Value(metric, value, place) for value, place in levels]


def spread_ratio(metric: Metric, rank: Ints, step: Ints, part: Ints, base: Ints, **dims: int | str) -> list[Value]:
    """Return the values of a fraction at these levels: the ratio of the means. Levels with a zero base are skipped."""
    if not len(rank):
        return []
    levels = zip(_levels(rank, part), _levels(rank, base), _places(rank, step, dims), strict=True)
    return [Value(metric, own / total, place) for own, total, place in levels if total]


def per_rank(metric: Metric, dim: str, figures: Mapping[tuple[Any, int], float]) -> list[Value]:
    """Return the values of a figure by (`dim`, rank), and their means over ranks."""
    values = [Value(metric, figure, {dim: place, "rank": rank}) for (place, rank), figure in figures.items()]
    return values + [Value(metric, mean, {dim: place}) for place, mean in means_over_ranks(figures).items()]


def means_over_ranks(figures: Mapping[tuple[Place, int], float]) -> dict[Place, float]:
    """Return the mean over ranks of a figure by (place, rank), by place."""
    of_place: dict[Place, list[float]] = {}
    for (place, _), figure in figures.items():
        of_place.setdefault(place, []).append(figure)
    return {place: float(np.mean(values)) for place, values in of_place.items()}


def _levels(rank: Ints, figure: Ints) -> list[float | int]:
    """Return a figure overall, per rank and per row."""
    means = rank_means(rank, figure)[1]
    return [float(means.mean()), *means.tolist(), *figure.tolist()]


def _places(rank: Ints, step: Ints, dims: Dims) -> list[Dims]:
    """Return the dimensions of these levels, each with `dims` added."""
    by_rank = [{"rank": number, **dims} for number in distinct(rank).tolist()]
    by_step = [{"rank": r, "step": s, **dims} for r, s in zip(rank.tolist(), step.tolist(), strict=True)]
    return [dims, *by_rank, *by_step]


def in_order(values: Sequence[Value]) -> Values:
    """Drop values outside their range. Sort the rest by metric in declared order, then by dimensions, overall first.

    Every analysis ends here, so no figure outside its declared range leaves an analysis.
    """
    sound_values = sound(values)
    groups: dict[str, dict[int, list[Value]]] = {}  # there are many values, but few metrics and sets of dimensions
    for value in sound_values:
        groups.setdefault(value.metric.id, {}).setdefault(len(value.dims), []).append(value)
    ordered = [value for sizes in groups.values() for _, group in sorted(sizes.items()) for value in _by_dims(group)]
    return Values(ordered, sound_values.refused)


def _by_dims(group: list[Value]) -> list[Value]:
    """Sort values with equally many dimensions by name and value of each dimension; an axis comes last."""
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
