"""Operations on rows without loops: values by code, rows by key or time, groups of equal keys, places in a group.

A *code* is the index of a value in a list (of texts, of groups): `values[code]`; -1 means none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from usp_prof.columns.arrays import Flags, Ints


def lookup(values: Iterable[Any] | NDArray[Any], codes: NDArray[Any], *, missing: str | float) -> NDArray[Any]:
    """Return for each row the value of its code; -1 and the code after the last value return `missing`.

    Texts are returned as objects.

        lookup([5, 7], [1, 0, -1], missing=0) == [7, 5, 0]
    """
    if isinstance(values, np.ndarray):
        return np.asarray(np.append(values, missing)[codes])
    # `missing` is the last value: -1 indexes it from the end.
    by_code = np.array([*values, missing], dtype=object if isinstance(missing, str) else None)
    return np.asarray(by_code[codes])


def rows_of(keys: NDArray[Any], wanted: NDArray[Any]) -> Ints:
    """Return for each wanted key the first row of `keys` that has it, or -1. Negative keys mean none.

    rows_of([7, 3, 7], [7, 5, -1]) == [0, -1, -1]
    """
    if not len(keys) or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    low, high = int(keys.min()), int(keys.max())
    if high - low > 8 * (len(keys) + len(wanted)) + (1 << 10):
        order = np.argsort(keys, kind="stable")
        place = np.searchsorted(keys[order], wanted)
        row = order[np.minimum(place, len(keys) - 1)]
        return np.where((keys[row] == wanted) & (wanted >= 0), row, -1)
    # Keys in a small range, such as event numbers, index a table; its last entry represents every other key.
    row_of_key = np.full(high - low + 2, -1, np.int64)
    # From last to first, so that the first row of a key remains.
    row_of_key[keys[::-1] - low] = np.arange(len(keys) - 1, -1, -1)
    is_in_range = (wanted >= max(low, 0)) & (wanted <= high)
    return row_of_key.take(np.where(is_in_range, wanted - low, high - low + 1))


def last_by(moments: Ints, rows: Ints, by: Ints) -> Ints:
    """Return for each time in `by` the one of `rows` whose time is the last at or before it, or -1.

    `moments` has an entry for every row, in any order. For example, the work that ended last when other work started:

        last_by(end, rows_of_device, by=start[waiting])
    """
    ordered = sorted_by(moments, rows)
    place = np.searchsorted(moments[ordered], by, side="right") - 1
    return lookup(ordered, place, missing=-1)


def range_at(begin: Ints, end: Ints, moments: Ints) -> Ints:
    """Return for each time the range that started last, if the time is inside it; otherwise -1. Sorted by start.

    range_at([0, 10], [5, 20], [3, 7, 10]) == [0, -1, 1]
    """
    place = np.searchsorted(begin, moments, side="right") - 1
    ends = lookup(end, place, missing=np.iinfo(np.int64).min)
    return np.where(moments < ends, place, -1)


def text_codes(texts: Iterable[str]) -> tuple[Ints, list[str]]:
    """Return the code of each text, and the distinct texts in order of first appearance.

    text_codes(["b", "a", "b"]) == ([0, 1, 0], ["b", "a"])
    """
    code_of: dict[str, int] = {}
    codes = [code_of.setdefault(text, len(code_of)) for text in texts]
    return np.array(codes, np.int64), list(code_of)


def stacked_codes(columns: Iterable[tuple[NDArray[Any], Sequence[str]]]) -> tuple[Ints, list[str]]:
    """Concatenate text columns, with codes that mean the same text in all of them; -1 stays -1.

    stacked_codes([([0, 1], ["a", "b"]), ([0], ["b"])]) == ([0, 1, 1], ["a", "b"])
    """
    code_of: dict[str, int] = {}
    stacked = [
        lookup([code_of.setdefault(text, len(code_of)) for text in texts], codes, missing=-1)
        for codes, texts in columns
    ]
    return np.concatenate(stacked), list(code_of)


def by_appearance(codes: Ints, texts: Sequence[str]) -> tuple[Ints, list[str]]:
    """Renumber the texts that occur, in order of first appearance; unused texts are dropped.

    by_appearance([2, 0, 2], ["a", "b", "c"]) == ([0, 1, 0], ["c", "a"])
    """
    # First row of each old code, or len(codes) if unused; then its new code.
    first_row = np.full(len(texts), len(codes), np.int64)
    first_row[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    used = np.argsort(first_row, kind="stable")[: np.count_nonzero(first_row < len(codes))]
    new_code = np.empty(len(texts), np.int64)
    new_code[used] = np.arange(len(used))
    return new_code[codes], [texts[code] for code in used.tolist()]


def group_codes(*keys: NDArray[Any]) -> Ints:
    """Assign numbers from 0 to the distinct combinations of several integer columns, in sorted order of the columns.

    group_codes([1, 0, 1], [5, 5, 4]) == [2, 0, 1]
    """
    if not len(keys[0]):
        return np.zeros(0, np.int64)
    codes = numbered(keys[0])[1]
    for key in keys[1:]:
        values, code = numbered(key)
        codes = numbered(codes * len(values) + code)[1]
    return codes


def combinations(*columns: NDArray[Any]) -> tuple[list[list[int]], Ints]:
    """Return the distinct combinations of several integer columns, sorted, and the index of each row's combination.

    combinations([1, 0, 1], [5, 5, 4]) == ([[0, 5], [1, 4], [1, 5]], [2, 0, 1])
    """
    place = group_codes(*columns)
    return np.stack(columns, axis=1)[first_rows(place)].tolist(), place


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the sorted distinct values; `np.unique` hashes them first, which takes several times as long."""
    ordered = np.sort(values)
    return np.asarray(ordered[first_of_run(ordered)]) if len(ordered) else ordered


def first_rows(codes: NDArray[Any]) -> Ints:
    """Return for each distinct value, sorted, the first row that has it."""
    values, place = numbered(codes)
    first = np.empty(len(values), np.int64)
    # From last to first, so that the first row of a value remains.
    first[place[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return first


def numbered(values: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    """Return the sorted distinct values, and the index of each value among them, like `np.unique`.

    Values in a small range, such as codes, are marked in a table instead of sorted.
    """
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if high - low > max(4 * len(values), 1 << 10):
        unique_values, place = np.unique(values, return_inverse=True)
        return unique_values, place.astype(np.int64, copy=False)
    offset = values.astype(np.int64, copy=False)
    offset = offset - low if low else offset
    # Whether each value from the lowest to the highest occurs.
    occurs = np.zeros(high - low + 1, bool)
    occurs[offset] = True
    unique_values = (np.flatnonzero(occurs) + low).astype(values.dtype)
    if len(unique_values) == len(occurs):
        return unique_values, offset
    return unique_values, (np.cumsum(occurs) - 1).take(offset)


def first_of_run(*keys: NDArray[Any]) -> Flags:
    """Mark the rows that start a run of equal rows: some key differs from the previous row.

    first_of_run([7, 7, 5], [1, 1, 1]) == [True, False, True]
    """
    begins = np.ones(len(keys[0]), dtype=bool)
    begins[1:] = keys[0][1:] != keys[0][:-1]
    for key in keys[1:]:
        begins[1:] |= key[1:] != key[:-1]
    return begins


def last_of_run(*keys: NDArray[Any]) -> Flags:
    """Mark the rows that end a run of equal rows: some key differs from the next row.

    last_of_run([7, 7, 5]) == [False, True, True]
    """
    ends = np.ones(len(keys[0]), dtype=bool)
    ends[:-1] = first_of_run(*keys)[1:]
    return ends


def latest_of_each(codes: NDArray[Any], times: NDArray[Any], count: int) -> Ints:
    """Return for each code 0..count-1, all of which occur, the row of its largest time (of equal ones: the last).

    latest_of_each([0, 1, 0], [5, 9, 7], 2) == [2, 1]
    """
    order = np.lexsort((times, codes))
    past_last = np.searchsorted(codes[order], np.arange(count), side="right")
    return np.asarray(order[past_last - 1], np.int64)


def sorted_by(keys: NDArray[Any], rows: Ints) -> Ints:
    """Return these rows sorted by their keys (ties: as given); `keys` has an entry for every row.

    sorted_by([9, 3, 5], [0, 2]) == [2, 0]
    """
    return rows[np.argsort(keys[rows], kind="stable")]


def sorted_rows(first: NDArray[Any], *then: NDArray[Any]) -> Ints:
    """Return the rows sorted by one key and, for equal keys, by the others in turn (ties of all: as given).

    Use it for a first key that is nearly sorted and rarely equal, such as times in traces.
    """
    order = np.argsort(first, kind="stable")
    ordered = first[order]
    as_before = ordered[1:] == ordered[:-1]
    if as_before.any():
        # Only rows that share their first key with a neighbor are sorted by the others.
        tied = np.flatnonzero(np.r_[False, as_before] | np.r_[as_before, False])
        rows = order[tied]
        order[tied] = rows[np.lexsort([key[rows] for key in (*reversed(then), first)])]
    return order


def sorted_within(codes: NDArray[Any], times: NDArray[Any]) -> Ints:
    """Return the rows sorted by code and, within each, by time (ties of both: as given).

    Use it for times in a few sorted runs; small numbers of codes are sorted in one pass.
    """
    by_time = np.argsort(times, kind="stable")
    low, high = (int(codes.min()), int(codes.max())) if len(codes) else (0, 0)
    ordered = codes.take(by_time)
    # NumPy sorts 16 bits by counting: one pass, and stable, so that rows of one code stay in order of time.
    narrow = (ordered - low).astype(np.uint16) if high - low < 1 << 16 else ordered
    return by_time[np.argsort(narrow, kind="stable")]


def occurrence(codes: Ints, order: NDArray[Any] | None = None) -> Ints:
    """Return for each row the number of earlier rows with its code, by `order` (ties, and without it: as given).

    occurrence([7, 8, 7, 7]) == [0, 0, 1, 2]
    """
    if not len(codes):
        return np.zeros(0, np.int64)
    place = np.arange(len(codes))
    rows = np.lexsort((place, place if order is None else order, codes))
    # Start of each row's code, in sorted order.
    begin_of_code = np.maximum.accumulate(np.where(first_of_run(codes[rows]), place, 0))
    number = np.empty(len(codes), np.int64)
    number[rows] = place - begin_of_code
    return number


def occurrence_from_end(codes: Ints, order: NDArray[Any]) -> Ints:
    """Return for each row the number of later rows with its code, by `order`."""
    if not len(codes):
        return np.zeros(0, np.int64)
    return np.bincount(codes)[codes] - 1 - occurrence(codes, order)


def per_code(codes: Ints, values: NDArray[Any], reduce: np.ufunc, count: int) -> NDArray[Any]:
    """Reduce the values of each code 0..count-1 (np.maximum, np.minimum, np.add); every code must occur."""
    if (codes[1:] < codes[:-1]).any():
        rows = np.argsort(codes, kind="stable")
        codes, values = codes[rows], values[rows]
    first = np.searchsorted(codes, np.arange(count))
    return np.asarray(reduce.reduceat(values, first)) if count else values[:0]


def is_uniform(codes: Ints, values: NDArray[Any], count: int) -> Flags:
    """Return for each code 0..count-1, all of which occur, whether all of its values are equal.

    is_uniform([0, 1, 0], [5, 5, 7], 2) == [False, True]
    """
    low, high = (per_code(codes, values, reduce, count) for reduce in (np.minimum, np.maximum))
    return np.asarray(low == high)


def totals(codes: Ints, values: Ints, count: int) -> Ints:
    """Return the exact sum of the values of each code 0..count-1; -1 adds to the last one.

    totals([0, 2, 0], [5, 1, 7], 3) == [12, 0, 1]
    """
    total = np.zeros(count, np.int64)
    np.add.at(total, codes, values)
    return total


def middles(codes: Ints, values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the two middle values of each code from 0 on, all of which occur; they are equal for an odd number.

    middles([0, 1, 0, 0, 1], [5, 1, 9, 7, 3]) == ([7, 1], [7, 3])
    """
    ordered, count = values[np.lexsort((values, codes))], np.bincount(codes)
    begin = np.cumsum(count) - count
    return ordered[begin + (count - 1) // 2], ordered[begin + count // 2]


def rows_by_code(codes: Ints) -> dict[int, Ints]:
    """Return for each code its rows, in order: one sort for all codes instead of one scan per code."""
    if not len(codes):
        return {}
    order = np.argsort(codes, kind="stable") if (codes[1:] < codes[:-1]).any() else np.arange(len(codes))
    ordered = codes[order]
    begin = np.flatnonzero(first_of_run(ordered))
    return dict(zip(ordered[begin].tolist(), np.split(order, begin[1:]), strict=True))


def lowest_reached(first: Ints, second: Ints, label: Ints) -> Ints:
    """Return for each thing the lowest label that pairs of things lead to: things with one label are connected.

    Both of a pair take the lower label until nothing changes: pairs 0-2, 2-3 of five return 0, 1, 0, 0, 4.
    """
    while True:
        lower = label.copy()
        low = np.minimum(label[first], label[second])
        np.minimum.at(lower, label[first], low)
        np.minimum.at(lower, label[second], low)
        while (lower[lower] != lower).any():  # a label that got a lower one passes it on
            lower = lower[lower]
        if (lower == label).all():
            return label
        label = lower
