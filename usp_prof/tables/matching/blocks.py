"""Blocks of groups: the collectives of a run that are matched and measured at once, so that memory is bounded.

The parts of a call belong to one group. So the groups are dealt into blocks of a bounded number of parts, and of each
block the parts are read, matched and reduced by themselves, by processes of this machine where a run has workers:

    group   tp@0,1   dp@0,2   tp@2,3   dp@1,3       of 1,000 parts each, at most 2,000 a block
    block        0        0        1        1       block 0 has parts of ranks 0, 1 and 2, block 1 of ranks 1, 2 and 3

A rank has parts in many blocks, and which blocks there are is known once all groups were seen. Not to read a rank
again for each of them, its parts are put into a file as they are read, and from there into the files of their blocks,
which `remove_files` removes. A run that keeps to the bound as a whole is one block, and stays in memory.
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
"""Parts of a block of several groups: matching and measuring takes about 370 bytes a part."""
_TEXTS = ("op", "library", "group", "axis")
TO_MATCH = (
    "rank", "part", "op", "group", "sequence", "group_size", "in_bytes", "out_bytes", "peer", "start_ns", "step",
)  # fmt: skip
TO_TIE = ("rank", "part", "op", "group", "start_ns", "dur_ns")
TO_MEASURE = (
    "rank", "part", *_TEXTS, "sequence", "group_size", "in_bytes", "out_bytes", "start_ns", "dur_ns", "step",
)  # fmt: skip
"""Columns of `collectives` that are needed to match parts, to find what ties clocks, and to measure calls."""
_EVERY = tuple(dict.fromkeys((*TO_MATCH, *TO_TIE, *TO_MEASURE)))
_READ_AT_ONCE = 8
"""Ranks whose parts come together from a worker: of 15,000 parts each they are 10 MB."""
PUT_AT_ONCE = 1 << 17
"""Parts that are put into files together: these are not opened for each rank."""


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where the parts of each rank are, were all ranks' parts below each other."""

    ranks: Ints
    first: Ints
    """By rank: the row of its first part; at the end, how many there are."""

    def rows(self, columns: Columns) -> Ints:
        """Return the rows of parts."""
        return np.asarray(self.first[np.searchsorted(self.ranks, columns["rank"])] + columns["part"])


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Groups that are taken together, their parts in files: all that another process of this machine needs of them."""

    count: int
    """How many parts all ranks have of these groups."""
    shelf: Shelf
    texts: Mapping[str, list[str]]
    """By column of texts all that blocks have, as they come up first: codes mean the same in all blocks."""
    places: Places

    def columns(self, names: Sequence[str]) -> Columns:
        """Read some columns of the parts."""
        return _columns(self.shelf, slice(0, self.count), names, self.texts)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The blocks of a run."""

    places: Places
    blocks: tuple[Block, ...]
    """None where the run is one block, in memory."""
    folder: Folder | None
    """Where the files of the blocks are."""

    @property
    def is_whole(self) -> bool:
        """Whether the whole run is one block, in memory."""
        return self.folder is None

    @property
    def parts(self) -> int:
        """Count the parts of all ranks."""
        return int(self.places.first[-1])

    def may_have(self, library: str) -> bool:
        """Return whether some part may be of a library: of a run in memory that is not known."""
        return self.is_whole or any(library in block.texts["library"] for block in self.blocks)


def plan_of(tables: TableSet) -> Plan:
    """Deal the groups of a run into blocks, once; where there are several their parts are then in files.

    A predicted run, whose calls are those of the recorded one, is one block.
    """
    return tables.memo("blocks", lambda: _plan(tables))


def whole(tables: TableSet) -> Columns:
    """Return the parts of a run that is one block, rank by rank: they are read once, and held."""
    return tables.memo("parts", lambda: tables.together("collectives", _EVERY))


def remove_files(tables: TableSet) -> None:
    """Remove the files of the blocks, of which nobody will read any more."""
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
    made = (Block(count, shelf, texts, places) for count, shelf in zip(parts_of_block, shelves, strict=True))
    return Plan(places, tuple(made), folder)


def _put_as_read(tables: TableSet, shelf: Shelf) -> dict[str, list[str]]:
    """Put the parts of all ranks onto a shelf, rank by rank; gives the texts that their codes stand for, by column."""
    # By column of texts: the code of each text, in the order in which they come up.
    code_of: dict[str, dict[str, int]] = {name: {} for name in _TEXTS}
    # Ranks that wait to be put together.
    pieces: list[dict[str, NDArray[Any]]] = []
    of_ranks = shares.of_each_rank(tables, _as_read, at_once=_READ_AT_ONCE)
    for rank, (columns, texts) in zip(tables.ranks, of_ranks, strict=True):
        pieces.append(columns | {name: _in_common(columns[name], texts[name], code_of[name]) for name in _TEXTS})
        if rank == tables.ranks[-1] or sum(len(piece["rank"]) for piece in pieces) >= PUT_AT_ONCE:
            shelf.put({name: np.concatenate([piece[name] for piece in pieces]) for name in _EVERY})
            pieces = []
    return {name: list(codes) for name, codes in code_of.items()}


def _as_read(tables: TableSet, rank: int) -> tuple[dict[str, NDArray[Any]], dict[str, list[str]]]:
    """Read the parts of one rank: numbers as int64, texts as codes; and the texts, by column."""
    [(_, columns)] = tables.one_by_one("collectives", [rank])
    coded = {name: columns.narrow_codes(name) for name in _TEXTS}
    read = {name: coded[name][0] if name in coded else columns[name] for name in _EVERY}
    return read, {name: texts for name, (_, texts) in coded.items()}


def _in_common(codes: NDArray[Any], texts: Sequence[str], code_of: dict[str, int]) -> NDArray[np.int32]:
    """Return codes of one rank's texts in those of all ranks, to which new texts are added."""
    return lookup([code_of.setdefault(text, len(code_of)) for text in texts], codes, missing=-1).astype(np.int32)


def _groups(as_read: Shelf, count: int, texts: Mapping[str, Sequence[str]]) -> tuple[Ints, Flags]:
    """Count the parts of each group, and mark the groups in which gloo sends or receives."""
    # Both by code of a group.
    parts, is_posted = np.zeros(len(texts["group"]), np.int64), np.zeros(len(texts["group"]), bool)
    for rows in _stretches(count):
        columns = _columns(as_read, rows, ("group", "library", "op"), texts)
        group = columns.narrow_codes("group")[0]
        parts += np.bincount(group, minlength=len(parts))
        is_posted[group[columns.matches("library", "gloo") & columns.matches("op", *P2P)]] = True
    return parts, is_posted


def _dealt(parts_of_group: Ints, is_posted: Flags) -> Ints:
    """Assign each group its block, in order of code: groups that first appear at nearby ranks."""
    block_of_group = np.zeros(len(parts_of_group), np.int64)
    # What gloo's transfers carried is told by the median of all of them: they are in one block, however many.
    block, filled = 0, int(parts_of_group[is_posted].sum())
    for group in np.flatnonzero(~is_posted).tolist():
        parts = int(parts_of_group[group])
        if filled and filled + parts > MOST_PARTS:
            block, filled = block + 1, 0
        block_of_group[group] = block
        filled += parts
    return block_of_group


def _put_apart(as_read: Shelf, count: int, shelves: Sequence[Shelf], block_of_group: Ints) -> None:
    """Put the parts of each block onto its shelf, in the order in which they were read."""
    kept = as_read.columns()
    for rows in _stretches(count):
        columns = {name: values[rows] for name, values in kept.items()}
        for block, chosen in rows_by_code(block_of_group[columns["group"]]).items():
            shelves[block].put({name: values[chosen] for name, values in columns.items()})


def _stretches(count: int) -> Iterator[slice]:
    """Cut so many rows into stretches that are taken at once."""
    for begin in range(0, count, PUT_AT_ONCE):
        yield slice(begin, min(begin + PUT_AT_ONCE, count))


def _columns(shelf: Shelf, rows: slice, names: Sequence[str], texts: Mapping[str, Sequence[str]]) -> Columns:
    """Read some columns of some rows of a shelf."""
    kept = shelf.columns()
    made = {
        name: coded(kept[name][rows], texts[name]) if name in texts else array_of(kept[name][rows]) for name in names
    }
    return Columns(pa.table(made))
