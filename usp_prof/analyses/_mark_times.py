"""How long did the marked ranges of one area take, step by step? Device time where the trace has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses._host_calls import selected
from usp_prof.contract import parse_mark

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.model.selection import Selection
    from usp_prof.tables.columns import Columns
    from usp_prof.tables.table_set import TableSet

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Marked:
    """The marks of one area on one rank, in order of start, as parallel arrays."""

    what: NDArray[np.object_]
    name: NDArray[np.object_]
    start_ns: Ints
    dur_ns: Ints
    step: Ints

    def number(self, key: str) -> Ints:
        """Give a whole number that the marks carry under this key; -1 where they do not."""
        values = []
        for name in self.name:
            mark = parse_mark(name)
            value = mark.values.get(key, -1) if mark is not None else -1
            values.append(value if isinstance(value, int) else -1)
        return np.array(values, np.int64)

    def word(self, key: str) -> list[str]:
        """Give what the marks carry under this key as text; empty where they carry nothing."""
        found = [parse_mark(name) for name in self.name]
        return [str(mark.values.get(key, "")) if mark is not None else "" for mark in found]

    def of(self, *what: str) -> Marked:
        """Keep the marks that say one of these."""
        return self.take(np.isin(self.what.astype(str), what))

    def take(self, rows: NDArray[np.bool_]) -> Marked:
        """Keep some rows."""
        return Marked(self.what[rows], self.name[rows], self.start_ns[rows], self.dur_ns[rows], self.step[rows])


def marked(tables: TableSet, rank: int, selection: Selection, area: str) -> Marked:
    """Give the marks of an area: the device's where it did the work, for the host only issues there."""
    rows = _of_area(tables, rank, selection, area)
    return _sorted(rows.take(rows["on_device"] == (len(tables.columns("kernels", rank)) > 0)))


def host_marks(tables: TableSet, rank: int, selection: Selection, area: str) -> Marked:
    """Give the host's marks of an area, for what they say rather than for how long they last."""
    rows = _of_area(tables, rank, selection, area)
    return _sorted(rows.take(~rows["on_device"]))


def _of_area(tables: TableSet, rank: int, selection: Selection, area: str) -> Columns:
    rows = selected(tables, "annotations", rank, selection)
    return rows.take(rows.matches("area", area))


def _sorted(rows: Columns) -> Marked:
    rows = rows.take(np.argsort(rows["start_ns"], kind="stable"))
    return Marked(rows["what"], rows["name"], rows["start_ns"], rows["dur_ns"], rows["step"])


def step_count(tables: TableSet, rank: int, selection: Selection) -> int:
    """Count the selected steps of a rank; at least one, to divide by."""
    steps = tables.columns("steps", rank)["step"].tolist()
    return max(1, sum(1 for step in steps if selection.takes_step(step)))


def axis_groups(tables: TableSet, axis: str, ranks: list[int]) -> list[tuple[int, ...]]:
    """Give the sets of read ranks that form a group of this axis; all of them where no such group is known."""
    found = set()
    for rank in ranks:
        groups = tables.columns("groups", rank)
        for text in groups["ranks"][groups.matches("axis", axis)]:
            members = tuple(int(member) for member in text.split(",") if member)
            found.add(tuple(member for member in members if member in ranks))
    return sorted(members for members in found if len(members) > 1)
