"""Stalls of all ranks: when each rank waited for others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from usp_prof.columns.intervals import Intervals
from usp_prof.tables.matching.shelves import Shelf

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from usp_prof.tables.matching.shelves import Folder, InFile


class Stalls:
    """Stalls of all ranks, in files if the parts of calls are in files, since each part can have a stall."""

    def __init__(self, folder: Folder | None) -> None:
        self._folder, self._shelf = folder, Shelf(folder.path if folder else None)
        self._rows_of_rank: dict[int, slice] = {}
        self._count = 0
        self._columns: dict[str, NDArray[Any] | InFile] = {}

    def put(self, rank: int, stalled: Intervals) -> None:
        """Append the stalls of one rank."""
        self._rows_of_rank[rank] = slice(self._count, self._count + len(stalled))
        self._count += len(stalled)
        self._shelf.put({"start": stalled.start, "end": stalled.end})
        self._columns = {}

    def of_rank(self, rank: int) -> Intervals:
        """Return the stalls of one rank."""
        self._columns = self._columns or self._shelf.columns()
        rows = self._rows_of_rank[rank]
        return Intervals(self._columns["start"][rows], self._columns["end"][rows])

    def only(self, ranks: Iterable[int]) -> Stalls:
        """Return the stalls of some ranks, in memory."""
        selected = Stalls(None)
        for rank in ranks:
            selected.put(rank, self.of_rank(rank))
        return selected
