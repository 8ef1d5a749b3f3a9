"""Parts of matched calls: in memory, or in files if the table would be too large for memory.

Readers iterate by rank (`of`) or by block (`each_block`). A block holds whole calls, so reductions across ranks happen
there, on columns that were computed rank by rank:

    ranks    0, 1, 2, 3 ...     start_ns = columns("collectives", rank)["start_ns"][part]
    blocks   tp@0,1 and dp@0,2; tp@2,3 and dp@1,3; ...     last_ns = the largest start_ns of each call
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from usp_prof.columns.rows import distinct
from usp_prof.tables.matching.shelves import Shelf, made_in, shelves_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from usp_prof.columns.arrays import Ints
    from usp_prof.tables.matching.shelves import Folder, InFile

    Rows = Mapping[str, NDArray[Any]]
    """Columns of parts, by name."""


MOST_HELD = 4 << 20
"""Maximum number of parts kept in memory; larger runs use files, with 32 bytes per part and 116 bytes per call."""
_TYPES = {"call": np.int32, "part": np.int32, "wait_ns": np.int64, "transfer_ns": np.int64, "delivered_ns": np.int64}
COLUMNS = tuple(_TYPES)
"""Columns of one rank's parts; the parts of a block also have `rank`."""


@dataclass(slots=True, eq=False)
class _Block:
    """Parts of whole calls, sorted by rank and call."""

    ranks: Ints
    first_row: Ints
    """Row of the first part, by index of the rank; the last entry is the number of parts."""
    columns: Mapping[str, NDArray[Any] | InFile]
    """`call` is the number within the block."""
    calls: Ints
    """Number of the call in the run, by call of the block, ascending."""
    members: Ints
    """Number of parts, by call of the block."""

    def rows_of(self, rank: int) -> slice:
        """Return the rows of one rank's parts."""
        low, high = np.searchsorted(self.ranks, (rank, rank + 1)).tolist()
        return slice(int(self.first_row[low]), int(self.first_row[high]))

    @property
    def every(self) -> slice:
        """Slice of all rows."""
        return slice(0, int(self.first_row[-1]))

    def column(self, name: str, rows: slice) -> NDArray[Any]:
        """Return one column of some rows."""
        if name == "rank":
            return np.repeat(self.ranks, np.diff(self.first_row))[rows]
        values = self.columns[name][rows]
        return self.calls[values] if name == "call" else values.astype(np.int64)


class Parts:
    """Parts of a run's matched calls."""

    def __init__(self, folder: Folder | None = None) -> None:
        """Keep the parts in memory, or in files if `folder` is given."""
        self._blocks: list[_Block] = []
        self._files = folder
        self._folder = folder.path if folder else None

    @property
    def are_in_files(self) -> bool:
        """Whether the parts are stored in files."""
        return self._folder is not None

    def __len__(self) -> int:
        """Return the number of parts."""
        return sum(block.every.stop for block in self._blocks)

    def add(self, rank: Ints, columns: Rows, calls: int) -> None:
        """Add a block of `calls` whole calls, sorted by call and rank; `call` is the number within the block."""
        if not calls:
            return
        order = np.argsort(rank, kind="stable")
        ranks = distinct(rank)
        shelf = Shelf(made_in(self._folder, len(self._blocks)))
        shelf.put({name: columns[name][order].astype(kind) for name, kind in _TYPES.items()})
        # The last entry is the number of parts.
        first_row = np.searchsorted(rank[order], [*ranks.tolist(), np.iinfo(np.int64).max])
        self._blocks.append(_Block(ranks, first_row, shelf.columns(), np.arange(calls), np.bincount(columns["call"])))

    def number(self, calls: Ints) -> None:
        """Assign calls their numbers in the run; `calls` lists them block after block."""
        begin = 0
        for block in self._blocks:
            end = begin + len(block.calls)
            block.calls = calls[begin:end]
            begin = end

    def of_each_call(self) -> Ints:
        """Return the number of parts of each call."""
        count = np.zeros(sum(len(block.calls) for block in self._blocks), np.int64)
        for block in self._blocks:
            count[block.calls] = block.members
        return count

    @property
    def ranks(self) -> list[int]:
        """Ranks that have parts, in order."""
        return sorted({rank for block in self._blocks for rank in block.ranks.tolist()})

    def of_rank(self, rank: int, *names: str) -> Rows:
        """Return columns of one rank's parts, block after block, each sorted by call."""
        rows = [(block, block.rows_of(rank)) for block in self._blocks]
        nothing = np.zeros(0, np.int64)
        return {
            name: np.concatenate([nothing, *(block.column(name, its) for block, its in rows if its.stop > its.start)])
            for name in names
        }

    def each_block(self, *names: str, extra_columns: Iterable[Rows] | None = None) -> Iterator[Rows]:
        """Yield columns of each block's parts, sorted by call and rank, together with the extra columns.

        `extra_columns` yields those of each rank in `ranks`, in order, with one entry per row of its `collectives`.
        """
        with ExitStack() as stack:
            in_files = extra_columns is not None and self._folder is not None
            folder = stack.enter_context(TemporaryDirectory(dir=self._folder)) if in_files else None
            shelves = shelves_in(Path(folder) if folder else None, len(self._blocks))
            if extra_columns is not None:
                for rank, columns in zip(self.ranks, extra_columns, strict=True):
                    part = self.of_rank(rank, "part")["part"]
                    self._put_apart(shelves, rank, {name: values[part] for name, values in columns.items()})
            for block, shelf in zip(self._blocks, shelves, strict=True):
                # Rows are sorted by rank, so a stable sort by call yields call and rank order.
                order = np.argsort(block.columns["call"][block.every], kind="stable")
                rows = {name: block.column(name, block.every)[order] for name in ("rank", *names)}
                rows |= {name: values[block.every][order] for name, values in shelf.columns().items()}
                yield rows

    def members_of(self, call: int) -> list[tuple[int, int]]:
        """Return the members of a call as pairs of rank and row in its `collectives`."""
        for block in self._blocks:
            place = int(np.searchsorted(block.calls, call))
            if place < len(block.calls) and block.calls[place] == call:
                rows = np.flatnonzero(block.columns["call"][block.every] == place)
                rank, part = (block.column(name, block.every)[rows] for name in ("rank", "part"))
                return list(zip(rank.tolist(), part.tolist(), strict=True))
        return []

    def _put_apart(self, shelves: Sequence[Shelf], rank: int, columns: Rows) -> None:
        """Distribute columns of one rank's parts over the shelves of their blocks."""
        begin = 0
        for block, shelf in zip(self._blocks, shelves, strict=True):
            rows = block.rows_of(rank)
            end = begin + rows.stop - rows.start
            if end > begin:
                shelf.put({name: values[begin:end] for name, values in columns.items()})
            begin = end
