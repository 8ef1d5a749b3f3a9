"""Blocks of groups: the collectives of a run that are matched and measured at once, so that memory is bounded.

The parts of a call belong to one group. So the groups are dealt into blocks of a bounded number of parts, and of each
block the parts are read, matched, and reduced before the next is read:

    group   tp@0,1   dp@0,2   tp@2,3   dp@1,3       of 1,000 parts each, at most 2,000 a block
    block        0        0        1        1       block 0 has parts of ranks 0, 1 and 2, block 1 of ranks 1, 2 and 3

A rank has parts in many blocks. Not to read it once for each of them, its parts are put into files first, block by
block, which `remove_files` removes. A run that keeps to the bound as a whole is one block: it stays in memory, and its
groups are not looked at beforehand.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from usp_prof.columns.arrow import array_of, coded
from usp_prof.columns.rows import lookup, rows_by_code
from usp_prof.columns.table import Columns, stacked
from usp_prof.tables.communication.posts import P2P
from usp_prof.tables.matching.shelves import folder_of, shelves_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from weakref import finalize

    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.tables.matching.shelves import Shelf
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
PUT_AT_ONCE = 1 << 17
"""Parts of as many ranks are put into files together: the files of a block are not opened for each rank."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Groups that are taken together."""

    number: int
    parts: int
    """How many all ranks have of these groups."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The blocks of a run."""

    blocks: tuple[Block, ...]
    ranks: Ints
    first_row: Ints
    """By rank: the row of its first part, were all ranks' parts below each other; at the end, how many there are."""
    block_of_group: dict[str, int]
    """Empty where there is one block only."""
    texts: dict[str, list[str]]
    """By column of texts all that the run has, as they come up first: codes mean the same in all blocks."""

    @property
    def is_whole(self) -> bool:
        """Say whether the whole run is one block."""
        return not self.block_of_group

    @property
    def parts(self) -> int:
        """Count the parts of all ranks."""
        return int(self.first_row[-1])

    def rows(self, rank: Ints, part: Ints) -> Ints:
        """Give the rows of parts, were all ranks' parts below each other."""
        return self.first_row[np.searchsorted(self.ranks, rank)] + part


def plan_of(tables: TableSet) -> Plan:
    """Deal the groups of a run into blocks, once.

    A predicted run, whose calls are those of the recorded one, is one block.
    """
    return tables.memo("blocks", lambda: _plan(tables))


def read(tables: TableSet, block: Block, names: Sequence[str]) -> Columns:
    """Read some columns of the parts of a block, rank by rank; a run that is one block is read once, and held."""
    plan = plan_of(tables)
    if plan.is_whole:
        return tables.memo("parts", lambda: tables.together("collectives", _EVERY))
    columns = _files_of(tables).shelves(tables)[block.number].columns()
    rows = slice(0, block.parts)
    made = {
        name: coded(columns[name][rows], plan.texts[name]) if name in plan.texts else array_of(columns[name][rows])
        for name in names
    }
    return Columns(pa.table(made))


def remove_files(tables: TableSet) -> None:
    """Remove the files of the blocks; they are made again when somebody reads a block."""
    if not plan_of(tables).is_whole:
        _files_of(tables).remove()


class _Files:
    """The parts of a run of several blocks in files, block by block, from the first read until they are removed."""

    def __init__(self) -> None:
        self._shelves: list[Shelf] = []
        """By number of a block; empty while there are no files."""
        self._remove: finalize[..., object] | None = None

    def shelves(self, tables: TableSet) -> list[Shelf]:
        """Give each block's columns."""
        if not self._shelves:
            folder, self._remove = folder_of(self, "blocks")
            shelves = shelves_in(folder, len(plan_of(tables).blocks))
            _put_parts(tables, shelves)
            self._shelves = shelves
        return self._shelves

    def remove(self) -> None:
        """Remove the files."""
        self._shelves = []
        if self._remove is not None:
            self._remove()


def _files_of(tables: TableSet) -> _Files:
    return tables.memo("files of blocks", _Files)


def _put_parts(tables: TableSet, shelves: Sequence[Shelf]) -> None:
    """Put the parts of each rank onto the shelves of their blocks; texts as codes that mean the same in all."""
    plan = plan_of(tables)
    block_of_code = [plan.block_of_group[group] for group in plan.texts["group"]]
    for columns in _ranks_together(tables, plan):
        # Texts as int32, numbers as int64: what is read back has no other types.
        arrays = {name: columns.narrow_codes(name)[0] if name in plan.texts else columns[name] for name in _EVERY}
        block_of_part = lookup(block_of_code, arrays["group"], missing=-1)  # each has one: the plan saw all groups
        for block, rows in rows_by_code(block_of_part).items():
            shelves[block].put({name: values[rows] for name, values in arrays.items()})


def _ranks_together(tables: TableSet, plan: Plan) -> Iterator[Columns]:
    """Give the parts of ranks below each other, of so many ranks at once as have about `PUT_AT_ONCE`."""
    schema = tables.view("collectives", tables.ranks[0]).schema
    fields = [schema.field(name) for name in _EVERY]
    # With 4 parts at once and ranks of 2: their first rows 0, 2, 4, 6 lie in stretches 0, 0, 1, 1. Cut before rank 2.
    stretch = plan.first_row[:-1] // PUT_AT_ONCE
    cuts = [0, *(np.flatnonzero(np.diff(stretch)) + 1).tolist(), len(plan.ranks)]
    for begin, end in pairwise(cuts):
        parts = int(plan.first_row[end] - plan.first_row[begin])
        each = (columns for _, columns in tables.one_by_one("collectives", tables.ranks[begin:end]))
        yield Columns(stacked(each, fields, parts, plan.texts))


def _plan(tables: TableSet) -> Plan:
    parts = [tables.view("collectives", rank).num_rows for rank in tables.ranks]
    first_row = np.cumsum([0, *parts])
    ranks = np.asarray(tables.ranks, np.int64)
    count = int(first_row[-1])
    if count <= MOST_PARTS or tables.recorded is not None:
        return Plan((Block(0, count),), ranks, first_row, {}, {})
    seen = _Groups.of(tables)
    block_of_group = _dealt(seen)
    parts_of_block = np.bincount(block_of_group, seen.parts).astype(np.int64).tolist()
    blocks = tuple(Block(number, count) for number, count in enumerate(parts_of_block))
    by_name = dict(zip(seen.texts["group"], block_of_group.tolist(), strict=True))
    return Plan(blocks, ranks, first_row, by_name, seen.texts)


def _dealt(seen: _Groups) -> Ints:
    """Give each group its block, in order of their codes: those that come up first at ranks close together."""
    block_of_group = np.zeros(len(seen.parts), np.int64)
    # What gloo's transfers carried is told by the median of all of them: they are in one block, however many.
    block, filled = 0, int(seen.parts[seen.is_posted].sum())
    for group in np.flatnonzero(~seen.is_posted).tolist():
        parts = int(seen.parts[group])
        if filled and filled + parts > MOST_PARTS:
            block, filled = block + 1, 0
        block_of_group[group] = block
        filled += parts
    return block_of_group


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """The groups that a run's ranks have parts of."""

    texts: dict[str, list[str]]
    parts: Ints
    """By group: of all ranks."""
    is_posted: Flags
    """By group: gloo sends or receives in it."""

    @classmethod
    def of(cls, tables: TableSet) -> _Groups:
        """Look at the groups of each rank."""
        code_of: dict[str, dict[str, int]] = {name: {} for name in _TEXTS}
        parts, posted = Counter[int](), set[int]()
        for _, columns in tables.one_by_one("collectives"):
            for name, codes in code_of.items():
                for text in columns.narrow_codes(name)[1]:
                    codes.setdefault(text, len(codes))
            narrow, texts = columns.narrow_codes("group")
            group = lookup([code_of["group"][text] for text in texts], narrow, missing=-1).astype(np.int64)
            groups, count = np.unique(group, return_counts=True)
            parts.update(dict(zip(groups.tolist(), count.tolist(), strict=True)))
            posted.update(group[columns.matches("library", "gloo") & columns.matches("op", *P2P)].tolist())
        groups = np.arange(len(code_of["group"]))
        of_group = np.array([parts[group] for group in groups.tolist()], np.int64)
        is_posted = np.isin(groups, list(posted))
        return cls({name: list(codes) for name, codes in code_of.items()}, of_group, is_posted)
