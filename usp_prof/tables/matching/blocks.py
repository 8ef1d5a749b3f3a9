"""Blocks of process groups: the unit in which collectives are matched and measured, so that memory is bounded.

All parts of a call belong to one group. Groups are assigned to blocks with a bounded number of parts. The parts of each
block are then read, matched and reduced independently, in worker processes if the run has workers:

    group   tp@0,1   dp@0,2   tp@2,3   dp@1,3       1,000 parts each, at most 2,000 per block
    block        0        0        1        1       block 0 has parts of ranks 0, 1 and 2, block 1 of ranks 1, 2 and 3

A rank has parts in many blocks, and the blocks are known only after all groups have been seen. To read each rank only
once, its parts are written to one file first, and copied from there to the files of their blocks. `remove_files`
deletes these files. A run that stays within the bound is a single block in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from usp_prof.columns.arrow import array_of, coded
from usp_prof.columns.rows import lookup, rows_by_code
from usp_prof.columns.table import Columns
from usp_prof.tables import shares
from usp_prof.tables.communication.posts import P2P
from usp_prof.tables.matching.shelves import Folder, Shelf, shelves_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.tables.table_set import TableSet


MOST_PARTS = 1 << 20
"""Maximum number of parts per block of several groups; matching and measuring take about 370 bytes per part."""
_TEXTS = ("op", "library", "group", "axis")
TO_MATCH = (
    "rank", "part", "op", "group", "sequence", "group_size", "in_bytes", "out_bytes", "peer", "start_ns", "step",
)  # fmt: skip
TO_TIE = ("rank", "part", "op", "group", "start_ns", "dur_ns")
TO_MEASURE = (
    "rank", "part", *_TEXTS, "sequence", "group_size", "in_bytes", "out_bytes", "start_ns", "dur_ns", "step",
)  # fmt: skip
"""Columns of `collectives` needed to match parts, to find clock ties, and to measure calls."""
_EVERY = tuple(dict.fromkeys((*TO_MATCH, *TO_TIE, *TO_MEASURE)))
_READ_AT_ONCE = 8
"""Ranks read per batch from a worker; 8 ranks with 15,000 parts each take 10 MB."""
PUT_AT_ONCE = 1 << 17
"""Parts written to files per batch, so that the files are not opened once per rank."""


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Row numbers of all parts, with the ranks' parts concatenated in rank order."""

    ranks: Ints
    first: Ints
    """Row of the first part, by rank; the last entry is the total number of parts."""

    def rows(self, columns: Columns) -> Ints:
        """Return the row numbers of the parts in `columns`."""
        return np.asarray(self.first[np.searchsorted(self.ranks, columns["rank"])] + columns["part"])


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Groups that are processed together, with their parts in files: everything a worker process needs."""

    count: int
    """Number of parts of these groups over all ranks."""
    shelf: Shelf
    texts: Mapping[str, list[str]]
    """Distinct values per text column, in order of first appearance; codes are shared by all blocks."""
    places: Places

    def columns(self, names: Sequence[str]) -> Columns:
        """Read the named columns of all parts in the block."""
        return _columns(self.shelf, slice(0, self.count), names, self.texts)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The blocks of a run."""

    places: Places
    blocks: tuple[Block, ...]
    """Empty if the run is a single block in memory."""
    folder: Folder | None
    """Folder with the blocks' files; None if the run is in memory."""

    @property
    def is_whole(self) -> bool:
        """Whether the whole run is one block, in memory."""
        return self.folder is None

    @property
    def parts(self) -> int:
        """Total number of parts over all ranks."""
        return int(self.places.first[-1])

    def may_have(self, library: str) -> bool:
        """Return whether any part may use `library`; always True for a run in memory, where this is not checked."""
        return self.is_whole or any(library in block.texts["library"] for block in self.blocks)


def plan_of(tables: TableSet) -> Plan:
    """Return the memoized plan that assigns groups to blocks, and write the parts to files if there are several.

    A predicted run is always one block, because its calls are those of the recorded run.
    """
    return tables.memo("blocks", lambda: _plan(tables))


def parts_of_run(tables: TableSet) -> Columns:
    """Return the memoized parts of a run that is one block, rank by rank."""
    return tables.memo("parts", lambda: tables.together("collectives", _EVERY))


def remove_files(tables: TableSet) -> None:
    """Remove the files of the blocks, which are no longer needed."""
    folder = plan_of(tables).folder
    if folder is not None:
        folder.remove()


def _plan(tables: TableSet) -> Plan:
    parts = [len(columns) for _, columns in tables.one_by_one("collectives")]
    places = Places(np.asarray(tables.ranks, np.int64), np.cumsum([0, *parts]))
    count = int(places.first[-1])
    if count <= MOST_PARTS or tables.recorded is not None:
        return Plan(places, (), None)
    folder, folder_as_read = Folder("blocks"), Folder("parts-as-read")
    as_read = Shelf(folder_as_read.path)
    texts = _put_as_read(tables, as_read)
    parts_of_group, is_posted = _groups(as_read, count, texts)
    block_of_group = _dealt(parts_of_group, is_posted)
    parts_of_block = np.bincount(block_of_group, parts_of_group).astype(np.int64).tolist()
    shelves = shelves_in(folder.path, len(parts_of_block))
    _put_apart(as_read, count, shelves, block_of_group)
    folder_as_read.remove()
    blocks = (Block(count, shelf, texts, places) for count, shelf in zip(parts_of_block, shelves, strict=True))
    return Plan(places, tuple(blocks), folder)


def _put_as_read(tables: TableSet, shelf: Shelf) -> dict[str, list[str]]:
    """Write the parts of all ranks to a shelf, rank by rank, and return the texts of the codes, by column."""
    # Code of each text, by text column, in order of first appearance.
    code_of: dict[str, dict[str, int]] = {name: {} for name in _TEXTS}
    # Columns of ranks that have not been written yet.
    pieces: list[dict[str, NDArray[Any]]] = []
    of_ranks = shares.of_each_rank(tables, _as_read, at_once=_READ_AT_ONCE)
    for rank, (columns, texts) in zip(tables.ranks, of_ranks, strict=True):
        pieces.append(columns | {name: _in_common(columns[name], texts[name], code_of[name]) for name in _TEXTS})
        if rank == tables.ranks[-1] or sum(len(piece["rank"]) for piece in pieces) >= PUT_AT_ONCE:
            shelf.put({name: np.concatenate([piece[name] for piece in pieces]) for name in _EVERY})
            pieces = []
    return {name: list(codes) for name, codes in code_of.items()}


def _as_read(tables: TableSet, rank: int) -> tuple[dict[str, NDArray[Any]], dict[str, list[str]]]:
    """Read the parts of one rank (numbers as int64, texts as codes) and the texts of the codes, by column."""
    [(_, columns)] = tables.one_by_one("collectives", [rank])
    coded = {name: columns.narrow_codes(name) for name in _TEXTS}
    read = {name: coded[name][0] if name in coded else columns[name] for name in _EVERY}
    return read, {name: texts for name, (_, texts) in coded.items()}


def _in_common(codes: NDArray[Any], texts: Sequence[str], code_of: dict[str, int]) -> NDArray[np.int32]:
    """Translate one rank's text codes to the codes shared by all ranks, and add new texts to `code_of`."""
    return lookup([code_of.setdefault(text, len(code_of)) for text in texts], codes, missing=-1).astype(np.int32)


def _groups(as_read: Shelf, count: int, texts: Mapping[str, Sequence[str]]) -> tuple[Ints, Flags]:
    """Count the parts of each group, and mark the groups that contain gloo sends or receives."""
    # Both are indexed by group code.
    parts, is_posted = np.zeros(len(texts["group"]), np.int64), np.zeros(len(texts["group"]), bool)
    for rows in _stretches(count):
        columns = _columns(as_read, rows, ("group", "library", "op"), texts)
        group = columns.narrow_codes("group")[0]
        parts += np.bincount(group, minlength=len(parts))
        is_posted[group[columns.matches("library", "gloo") & columns.matches("op", *P2P)]] = True
    return parts, is_posted


def _dealt(parts_of_group: Ints, is_posted: Flags) -> Ints:
    """Assign a block to each group, in order of group code: groups of nearby ranks have nearby codes."""
    block_of_group = np.zeros(len(parts_of_group), np.int64)
    # The median over all gloo transfers decides what they carried, so they share one block of any size.
    block, filled = 0, int(parts_of_group[is_posted].sum())
    for group in np.flatnonzero(~is_posted).tolist():
        parts = int(parts_of_group[group])
        if filled and filled + parts > MOST_PARTS:
            block, filled = block + 1, 0
        block_of_group[group] = block
        filled += parts
    return block_of_group


def _put_apart(as_read: Shelf, count: int, shelves: Sequence[Shelf], block_of_group: Ints) -> None:
    """Write the parts of each block to its shelf, in the order in which they were read."""
    all_columns = as_read.columns()
    for rows in _stretches(count):
        columns = {name: values[rows] for name, values in all_columns.items()}
        for block, chosen in rows_by_code(block_of_group[columns["group"]]).items():
            shelves[block].put({name: values[chosen] for name, values in columns.items()})


def _stretches(count: int) -> Iterator[slice]:
    """Yield slices of at most `PUT_AT_ONCE` rows that cover `count` rows."""
    for begin in range(0, count, PUT_AT_ONCE):
        yield slice(begin, min(begin + PUT_AT_ONCE, count))


def _columns(shelf: Shelf, rows: slice, names: Sequence[str], texts: Mapping[str, Sequence[str]]) -> Columns:
    """Read the named columns of some rows of a shelf."""
    all_columns = shelf.columns()
    column_by_name = {
        name: coded(all_columns[name][rows], texts[name]) if name in texts else array_of(all_columns[name][rows])
        for name in names
    }
    return Columns(pa.table(column_by_name))
