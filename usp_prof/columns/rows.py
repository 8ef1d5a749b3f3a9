"""Rows without loops: values by code, rows by key, groups of equal keys, and places within a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


def lookup(values: Iterable[Any] | NDArray[Any], codes: NDArray[Any], *, missing: str | float) -> NDArray[Any]:
    """Give each row the value of its code; -1, and the code behind the last value, give `missing`.

    Texts come as objects. So a property of a name is found once for each distinct name, not for each row:

        codes, names = launches.codes("name")
        allocates = lookup([name in ALLOCATORS for name in names], codes, missing=False)
    """
    if isinstance(values, np.ndarray):
        return np.asarray(np.append(values, missing)[codes])
    # `missing` is the last value: -1 indexes it from the end.
    by_code = np.array([*values, missing], dtype=object if isinstance(missing, str) else None)
    return np.asarray(by_code[codes])


def rows_of(keys: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.int64]:
    """Give for each wanted key the row of `keys` that has it first; -1 where none has. Negative keys mean none.

    rows_of([7, 3, 7], [7, 5, -1]) == [0, -1, -1]
    """
    if not len(keys) or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    low, high = int(keys.min()), int(keys.max())
    if high - low > 8 * (len(keys) + len(wanted)) + (1 << 10):
        order = np.argsort(keys, kind="stable")
        row = order[np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)]
        return np.where((keys[row] == wanted) & (wanted >= 0), row, -1)
    # Keys that lie close together, as event numbers do, index a list; its last entry stands for every other key.
    row_of_key = np.full(high - low + 2, -1, np.int64)
    row_of_key[keys[::-1] - low] = np.arange(len(keys) - 1, -1, -1)
    known = (wanted >= max(low, 0)) & (wanted <= high)
    return row_of_key.take(np.where(known, wanted - low, high - low + 1))


def group_codes(*keys: NDArray[Any]) -> NDArray[np.int64]:
    """Give the distinct combinations of several integer columns numbers, in sorted order of the columns."""
    if not len(keys[0]):
        return np.zeros(0, np.int64)
    codes = numbered(keys[0])[1]
    for key in keys[1:]:
        known, code = numbered(key)
        codes = numbered(codes * len(known) + code)[1]
    return codes


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Give the distinct values in order; `np.unique` hashes them first, which takes several times as long."""
    ordered = np.sort(values)
    return np.asarray(ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]])


def first_rows(codes: NDArray[Any]) -> NDArray[np.int64]:
    """Give for each distinct value, in order, the row that has it first."""
    known, place = numbered(codes)
    first = np.empty(len(known), np.int64)
    first[place[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return first


def numbered(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Give the distinct values in order, and the place of each value among them, like `np.unique`.

    Where the values lie close together, as codes do, they are ticked off in a list instead of being sorted.
    """
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if high - low > max(4 * len(values), 1 << 10):
        found, place = np.unique(values, return_inverse=True)
        return found, place.astype(np.int64, copy=False)
    offset = values.astype(np.int64, copy=False)
    offset = offset - low if low else offset
    there = np.zeros(high - low + 1, bool)
    there[offset] = True
    found = np.flatnonzero(there)
    if len(found) == len(there):
        return (found + low).astype(values.dtype), offset
    return (found + low).astype(values.dtype), (np.cumsum(there) - 1).take(offset)


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


def sorted_within(codes: NDArray[Any], times: NDArray[Any]) -> NDArray[np.int64]:
    """Give the rows sorted by code and, within each, by time (ties of both: as given).

    For times that come in few sorted runs; codes that are not many are sorted in one pass.
    """
    by_time = np.argsort(times, kind="stable")
    low, high = (int(codes.min()), int(codes.max())) if len(codes) else (0, 0)
    ordered = codes.take(by_time)
    narrow = (ordered - low).astype(np.uint16) if high - low < 1 << 16 else ordered
    return by_time[np.argsort(narrow, kind="stable")]


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
    if (codes[1:] < codes[:-1]).any():
        rows = np.argsort(codes, kind="stable")
        codes, values = codes[rows], values[rows]
    first = np.searchsorted(codes, np.arange(count))
    return np.asarray(reduce.reduceat(values, first)) if count else values[:0]


def rows_by_code(codes: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
    """Give for each code its rows, in order: one sort for all codes instead of one look at all rows for each."""
    if not len(codes):
        return {}
    order = np.argsort(codes, kind="stable") if (codes[1:] < codes[:-1]).any() else np.arange(len(codes))
    ordered = codes[order]
    begin = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    return dict(zip(ordered[begin].tolist(), np.split(order, begin[1:]), strict=True))
