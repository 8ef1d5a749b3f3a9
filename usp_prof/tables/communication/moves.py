"""Moves of calls to other groups, after all ranks have shown that these are the right ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from usp_prof.columns.arrays import Ints
from usp_prof.columns.arrow import index_of
from usp_prof.columns.table import Columns, Replaced, View
from usp_prof.tables.events.frame import compact


class Move(NamedTuple):
    """Rows of one rank's `collectives`, and the key and the size of their group."""

    rows: Ints
    key: str
    size: int


def moved(collectives: View, moves: Iterable[Move]) -> View:
    """Return one rank's collectives with some rows in other groups."""
    columns = Columns(collectives)
    codes, names = columns.codes("group")
    size = columns["group_size"].copy()
    for move in moves:
        if move.key not in names:
            names.append(move.key)
        codes[move.rows], size[move.rows] = names.index(move.key), move.size
    return Replaced(collectives, {"group": lambda: compact(codes, names), "group_size": lambda: index_of(size)})
