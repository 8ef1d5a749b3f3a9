"""Parts of matched calls: in memory, or in files where they are many, so that their table is never held as a whole.

Whoever asks goes through them rank by rank (`of`) or block by block (`each_block`). A block holds whole calls, so that
what crosses ranks is reduced there, with columns that were worked out rank by rank:

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
    """Some columns of some parts."""


MOST_HELD = 4 << 20
"""A run of more parts has them in files, 32 bytes a part, and its calls as well, 116 bytes a call."""
_TYPES = {"call": np.int32, "part": np.int32, "wait_ns": np.int64, "transfer_ns": np.int64, "delivered_ns": np.int64}
COLUMNS = tuple(_TYPES)
"""Of one rank's parts; those of a block have `rank` too."""


@dataclass(slots=True, eq=False)
class _Block:
    """Parts of whole calls, sorted by rank and call."""

    ranks: Ints
    first_row: Ints
    """By place of a rank: the row of its first part; at the end, how many parts there are."""
    columns: Mapping[str, NDArray[Any] | InFile]
    """`call` is counted in the block."""
    calls: Ints
    """By call of the block: its number in the run, ascending."""
    members: Ints
    """By call of the block: how many parts it has."""

    def rows_of(self, rank: int) -> slice:
        """Return the rows of one rank's parts."""
        low, high = np.searchsorted(self.ranks, (rank, rank + 1)).tolist()
        return slice(int(self.first_row[low]), int(self.first_row[high]))

    @property
    def every(self) -> slice:
        """The rows of all parts."""
        return slice(0, int(self.first_row[-1]))

    def column(self, name: str, rows: slice) -> NDArray[Any]:
        """Return a column of some rows."""
        if name == "rank":
            return np.repeat(self.ranks, np.diff(self.first_row))[rows]
        values = self.columns[name][rows]
        return self.calls[values] if name == "call" else values.astype(np.int64)


class Parts:
    """The parts of a run's matched calls."""

    def __init__(self, folder: Folder | None = None) -> None:
        """Without a folder they stay in memory."""
        self._blocks: list[_Block] = []
        self._files = folder
        self._folder = folder.path if folder else None

    @property
    def are_in_files(self) -> bool:
        """Whether they are too many to be held."""
        return self._folder is not None

    def __len__(self) -> int:
        """Count the parts."""
        return sum(block.every.stop for block in self._blocks)

    def add(self, rank: Ints, columns: Rows, calls: int) -> None:
        """Add a block of so many whole calls, sorted by call and rank; `call` is counted in it."""
        if not calls:
            return
        order = np.argsort(rank, kind="stable")
        ranks = distinct(rank)
        shelf = Shelf(made_in(self._folder, len(self._blocks)))
        shelf.put({name: columns[name][order].astype(kind) for name, kind in _TYPES.items()})
        first_row = np.searchsorted(rank[order], [*ranks.tolist(), np.iinfo(np.int64).max])  # the last: all parts
        self._blocks.append(_Block(ranks, first_row, shelf.columns(), np.arange(calls), np.bincount(columns["call"])))

    def number(self, calls: Ints) -> None:
        """Return the calls their numbers in the run, block after block."""
        begin = 0
        for block in self._blocks:
            end = begin + len(block.calls)
            block.calls = calls[begin:end]
            begin = end

    def of_each_call(self) -> Ints:
        """Count the parts of each call."""
        count = np.zeros(sum(len(block.calls) for block in self._blocks), np.int64)
        for block in self._blocks:
            count[block.calls] = block.members
        return count

    @property
    def ranks(self) -> list[int]:
        """The ranks that have parts, in order."""
        return sorted({rank for block in self._blocks for rank in block.ranks.tolist()})

    def of(self, rank: int, *names: str) -> Rows:
        """Return columns of one rank's parts, block after block, in each by call."""
        rows = [(block, block.rows_of(rank)) for block in self._blocks]
        nothing = np.zeros(0, np.int64)
        return {
            name: np.concatenate([nothing, *(block.column(name, its) for block, its in rows if its.stop > its.start)])
            for name in names
        }

    def each_block(self, *names: str, beside: Iterable[Rows] | None = None) -> Iterator[Rows]:
        """Yield columns of each block's parts, sorted by call and rank, and with them what is `beside`.

        That has for each of `ranks`, in order, columns with an entry for each row of its `collectives`.
        """
        with ExitStack() as stack:
            in_files = beside is not None and self._folder is not None
            folder = stack.enter_context(TemporaryDirectory(dir=self._folder)) if in_files else None
            shelves = shelves_in(Path(folder) if folder else None, len(self._blocks))
            if beside is not None:
                for rank, columns in zip(self.ranks, beside, strict=True):
                    part = self.of(rank, "part")["part"]
                    self._put_apart(shelves, rank, {name: values[part] for name, values in columns.items()})
            for block, shelf in zip(self._blocks, shelves, strict=True):
                # Rows are sorted by rank: sorted by call and else left as they are, they are sorted by call and rank.
                order = np.argsort(block.columns["call"][block.every], kind="stable")
                rows = {name: block.column(name, block.every)[order] for name in ("rank", *names)}
                rows |= {name: values[block.every][order] for name, values in shelf.columns().items()}
                yield rows

    def members_of(self, call: int) -> list[tuple[int, int]]:
        """Return the members of a call: rank, and row of its `collectives`."""
        for block in self._blocks:
            place = int(np.searchsorted(block.calls, call))
            if place < len(block.calls) and block.calls[place] == call:
                rows = np.flatnonzero(block.columns["call"][block.every] == place)
                rank, part = (block.column(name, block.every)[rows] for name in ("rank", "part"))
                return list(zip(rank.tolist(), part.tolist(), strict=True))
        return []

    def _put_apart(self, shelves: Sequence[Shelf], rank: int, columns: Rows) -> None:
        """Put columns of one rank's parts onto the shelves of their blocks."""
        begin = 0
        for block, shelf in zip(self._blocks, shelves, strict=True):
            rows = block.rows_of(rank)
            end = begin + rows.stop - rows.start
            if end > begin:
                shelf.put({name: values[begin:end] for name, values in columns.items()})
            begin = end
