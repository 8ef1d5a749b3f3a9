"""Parts of matched calls: which part of which rank belongs to which call, and how long it waited and transferred."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from usp_prof.columns.arrays import Ints
from usp_prof.columns.rows import distinct

Rows = Mapping[str, NDArray[Any]]
"""Columns of parts, by name."""


_TYPES = {"call": np.int32, "part": np.int32, "wait_ns": np.int64, "transfer_ns": np.int64, "delivered_ns": np.int64}
COLUMNS = tuple(_TYPES)
"""Columns of one rank's parts; with narrow types, a part takes 32 bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Parts of a run's matched calls, sorted by rank and call."""

    ranks: list[int]
    """Ranks that have parts, in order."""
    _first_row: Ints
    """Row of the first part, by index of the rank; the last entry is the number of parts."""
    _columns: Rows

    @classmethod
    def by_rank(cls, rank: Ints, columns: Rows) -> Parts:
        """Store the parts of calls; rows are sorted by call."""
        order = np.argsort(rank, kind="stable")
        ranks = distinct(rank)
        first_row = np.append(np.searchsorted(rank[order], ranks), len(rank))
        stored = {name: columns[name][order].astype(kind) for name, kind in _TYPES.items()}
        return cls(ranks.tolist(), first_row, stored)

    def __len__(self) -> int:
        """Return the number of parts."""
        return int(self._first_row[-1])

    def of_each_call(self) -> Ints:
        """Return the number of parts of each call."""
        return np.bincount(self._columns["call"])

    def of_rank(self, rank: int, *names: str) -> Rows:
        """Return columns of one rank's parts, sorted by call."""
        low, high = np.searchsorted(self.ranks, (rank, rank + 1)).tolist()
        rows = slice(int(self._first_row[low]), int(self._first_row[high]))
        return {name: self._columns[name][rows].astype(np.int64) for name in names}

    def by_call(self, *names: str, extra_columns: Iterable[Rows] = ()) -> Rows:
        """Return columns of all parts, sorted by call and rank.

        Columns that are not in `COLUMNS` come from `extra_columns`, which yields those of each rank in `ranks`, in
        order, with one entry per row of its `collectives`.
        """
        rank = np.repeat(np.array(self.ranks, np.int64), np.diff(self._first_row))
        columns = {name: [values] for name, values in self._columns.items()} | {"rank": [rank]}
        for number, of_rank in zip(self.ranks, extra_columns, strict=False):
            part = self.of_rank(number, "part")["part"]
            for name, values in of_rank.items():
                columns.setdefault(name, []).append(values[part])
        order = np.argsort(self._columns["call"], kind="stable")
        nothing = np.zeros(0, np.int64)
        return {name: np.concatenate([nothing, *columns.get(name, ())])[order] for name in ("rank", *names)}

    def members_of(self, call: int) -> list[tuple[int, int]]:
        """Return the members of a call as pairs of rank and row in its `collectives`."""
        rows = np.flatnonzero(self._columns["call"] == call)
        place = np.searchsorted(self._first_row, rows, side="right") - 1
        return [
            (self.ranks[at], part)
            for at, part in zip(place.tolist(), self._columns["part"][rows].tolist(), strict=True)
        ]
