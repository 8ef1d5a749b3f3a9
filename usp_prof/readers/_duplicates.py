"""Which events stand in the file twice? Those that are alike in every field, arguments included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CODED = ("phase", "category", "name", "process", "thread")
_ODD = np.uint64(0x9E3779B97F4A7C15)


def repeated(columns: dict[str, Any], keep: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], int]:
    """Take repeats out of `keep`; the first of them stays. Gives the rows to keep and the number taken out."""
    key = _mixed(columns)
    ordered = np.sort(key)
    twins = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twins):
        return keep, 0
    suspects = np.flatnonzero(np.isin(key, twins) & keep)
    args = columns["args"].take(suspects).to_pylist()
    fields = [columns[name].indices.to_numpy()[suspects].tolist() for name in _CODED]
    times = [columns[name][suspects].tolist() for name in ("start_ns", "dur_ns")]
    seen: set[tuple[object, ...]] = set()
    again = []
    for row, *values in zip(suspects.tolist(), *fields, *times, args, strict=True):
        alike = tuple(values)
        if alike in seen:
            again.append(row)
        seen.add(alike)
    keep[again] = False
    return keep, len(again)


def _mixed(columns: dict[str, Any]) -> NDArray[np.uint64]:
    """Hash the cheap fields of each event; unlike events rarely meet, and are compared when they do."""
    key: NDArray[np.uint64] = columns["start_ns"].astype(np.uint64)
    key = key * _ODD
    for name in ("dur_ns", "correlation", "external_id"):
        key ^= columns[name].astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
        key *= _ODD
    for name in ("name", "thread", "process"):
        key ^= columns[name].indices.to_numpy().astype(np.uint64) + np.uint64(0x165667B19E3779F9)
        key *= _ODD
    return key
