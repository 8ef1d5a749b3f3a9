"""Which number is each row within its group, and which rows share a key? Grouping without loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def group_codes(*keys: NDArray[Any]) -> NDArray[np.int64]:
    """Give the distinct combinations of several integer columns numbers, in sorted order of the columns."""
    if not len(keys[0]):
        return np.zeros(0, np.int64)
    codes = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        distinct, code = np.unique(key, return_inverse=True)
        codes = np.unique(codes * len(distinct) + code, return_inverse=True)[1].astype(np.int64)
    return codes


def numbered(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Give the distinct values in order, and the place of each value among them, like `np.unique`.

    Where the values lie close together, as codes do, they are ticked off in a list instead of being sorted.
    """
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if high - low > max(4 * len(values), 1 << 10):
        distinct, place = np.unique(values, return_inverse=True)
        return distinct, place.astype(np.int64, copy=False)
    offset = values - low if low else values
    there = np.zeros(high - low + 1, bool)
    there[offset] = True
    distinct = np.flatnonzero(there)
    if len(distinct) == len(there):
        return (distinct + low).astype(values.dtype), np.asarray(offset, np.int64)
    return (distinct + low).astype(values.dtype), (np.cumsum(there) - 1)[offset]


def sorted_rows(first: NDArray[Any], then: NDArray[Any]) -> NDArray[np.int64]:
    """Give the rows sorted by one key and, where it is equal, by another (ties of both: as given).

    For a first key that is nearly in order already and rarely equal, as times in traces are.
    """
    order = np.argsort(first, kind="stable")
    ordered = first[order]
    alike = ordered[1:] == ordered[:-1]
    if alike.any():
        tied = np.flatnonzero(np.r_[False, alike] | np.r_[alike, False])
        rows = order[tied]
        order[tied] = rows[np.lexsort((then[rows], first[rows]))]
    return order


def occurrence(codes: NDArray[np.int64], order: NDArray[Any]) -> NDArray[np.int64]:
    """Count, within each code and by `order` (ties: as given), how many rows come before each row."""
    rows = np.lexsort((np.arange(len(codes)), order, codes))
    ordered = codes[rows]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]]) if len(codes) else np.zeros(0, bool)
    begin = np.maximum.accumulate(np.where(first, np.arange(len(codes)), 0)) if len(codes) else np.zeros(0, np.int64)
    number = np.empty(len(codes), np.int64)
    number[rows] = np.arange(len(codes)) - begin
    return number


def occurrence_from_end(codes: NDArray[np.int64], order: NDArray[Any]) -> NDArray[np.int64]:
    """Count, within each code and by `order`, how many rows come after each row."""
    if not len(codes):
        return np.zeros(0, np.int64)
    return np.bincount(codes)[codes] - 1 - occurrence(codes, order)


def per_code(codes: NDArray[np.int64], values: NDArray[Any], reduce: np.ufunc, count: int) -> NDArray[Any]:
    """Reduce (np.maximum, np.minimum, np.add) the values of each code 0..count-1; every code must occur."""
    rows = np.argsort(codes, kind="stable")
    first = np.searchsorted(codes[rows], np.arange(count))
    return np.asarray(reduce.reduceat(values[rows], first)) if count else values[:0]


def rows_by_code(codes: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
    """Give for each code its rows, in order: one sort for all codes instead of one look at all rows for each."""
    order = np.argsort(codes, kind="stable") if (codes[1:] < codes[:-1]).any() else np.arange(len(codes))
    present, begin = np.unique(codes[order], return_index=True)
    return dict(zip(present.tolist(), np.split(order, begin[1:]), strict=True)) if len(codes) else {}
