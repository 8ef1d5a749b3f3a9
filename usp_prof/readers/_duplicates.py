"""Which events stand in the file twice? Those that are alike in every field, arguments included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from usp_prof.readers.argument_texts import alike, taken
from usp_prof.readers.arrays import numbers_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CODED = ("phase", "category", "name", "process", "thread")
_TIMES = ("start_ns", "dur_ns")
_ODD = np.uint64(0x9E3779B97F4A7C15)


def repeated(columns: dict[str, Any], keep: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], int]:
    """Take repeats out of `keep`; the first of them stays. Gives the rows to keep and the number taken out."""
    key = _mixed(columns)
    ordered = np.sort(key)
    twins = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twins):
        return keep, 0
    suspects = np.flatnonzero(np.isin(key, twins) & keep)
    again = _repeats(columns, key, suspects)
    keep[again] = False
    return keep, len(again)


def _repeats(columns: dict[str, Any], key: NDArray[np.uint64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give those of the rows that repeat another: each is held against the first with its key, the rest one by one."""
    rows = rows[np.lexsort((rows, key[rows]))]
    leads = np.r_[True, key[rows][1:] != key[rows][:-1]] if len(rows) else np.zeros(0, bool)
    lead = rows[np.maximum.accumulate(np.where(leads, np.arange(len(rows)), 0))]
    row, lead = rows[~leads], lead[~leads]
    same = np.ones(len(row), bool)
    for name in _CODED:
        codes = numbers_of(columns[name].indices)
        same &= codes[row] == codes[lead]
    for name in _TIMES:
        same &= columns[name][row] == columns[name][lead]
    same[same] = alike(columns["args"], row[same], lead[same])
    return np.sort(np.r_[row[same], _one_by_one(columns, row[~same])])


def _one_by_one(columns: dict[str, Any], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give those of a few rows that repeat another of them."""
    if not len(rows):
        return rows
    fields = [numbers_of(columns[name].indices)[rows].tolist() for name in _CODED]
    times = [columns[name][rows].tolist() for name in _TIMES]
    seen: set[tuple[object, ...]] = set()
    again = []
    for row, *values in zip(rows.tolist(), *fields, *times, taken(columns["args"], rows).to_pylist(), strict=True):
        if tuple(values) in seen:
            again.append(row)
        seen.add(tuple(values))
    return np.array(again, np.int64)


def _mixed(columns: dict[str, Any]) -> NDArray[np.uint64]:
    """Hash the cheap fields of each event; unlike events rarely meet, and are compared when they do."""
    key: NDArray[np.uint64] = columns["start_ns"].astype(np.uint64)
    key = key * _ODD
    for name in ("dur_ns", "correlation", "external_id"):
        key ^= columns[name].astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
        key *= _ODD
    for name in ("name", "thread", "process"):
        key ^= numbers_of(columns[name].indices).astype(np.uint64) + np.uint64(0x165667B19E3779F9)
        key *= _ODD
    return key
