"""Schemas of tables: a sentence per table, and one with the unit per column.

Columns stay plain arrays: integer columns are never null (-1 means missing), strings are never null ("" means missing),
and an unknown float is NaN. Times are integer nanoseconds in columns named `*_ns`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Types of a column."""

    INT = "int64"
    FLOAT = "float64"
    TEXT = "string"
    FLAG = "bool"


class Scope(StrEnum):
    """Whether a table is built from one rank's trace, or from all ranks together."""

    RANK = "rank"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, type, unit and meaning."""

    name: str
    kind: Kind
    doc: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Schema:
    """One table: its name, meaning and columns. The first column is `rank`, unless the scope is the run."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    scope: Scope = Scope.RANK

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(column.name for column in self.columns)


def integer(name: str, doc: str, unit: str = "") -> Column:
    """Declare an integer column; -1 means missing."""
    return Column(name, Kind.INT, doc, unit)


def real(name: str, doc: str, unit: str = "") -> Column:
    """Declare a float column; NaN means missing."""
    return Column(name, Kind.FLOAT, doc, unit)


def text(name: str, doc: str, unit: str = "") -> Column:
    """Declare a text column; the empty string means missing."""
    return Column(name, Kind.TEXT, doc, unit)


def flag(name: str, doc: str) -> Column:
    """Declare a boolean column."""
    return Column(name, Kind.FLAG, doc)


RANK = integer("rank", "Global rank whose trace this row is from.")
START = integer("start_ns", "Start on this rank's own clock: base time + ts, exact.", "ns")
DURATION = integer("dur_ns", "Duration.", "ns")
EVENT = integer("event", "The event's row in `events` of the same rank (its place in the file).")
STEP = integer("step", "Number of the step it belongs to (`steps.step`); -1 outside every step.")
