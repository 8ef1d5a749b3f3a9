"""Schemas of tables: a sentence for each table and one, with its unit, for each column.

Conventions, so that columns stay plain arrays: integer columns are never null (-1 means absent), strings are never
null ("" means absent), a float that is not known is NaN. Times are integer nanoseconds in columns named `*_ns`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The types a column may have."""

    INT = "int64"
    FLOAT = "float64"
    TEXT = "string"
    FLAG = "bool"


class Scope(StrEnum):
    """Whether a table is made of one rank's trace alone, or of all ranks together."""

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
    """One table: its name, meaning and columns. Every table's first column is `rank` unless its scope is the run."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    scope: Scope = Scope.RANK

    @property
    def names(self) -> tuple[str, ...]:
        """The column names in order."""
        return tuple(column.name for column in self.columns)


def integer(name: str, doc: str, unit: str = "") -> Column:
    """Declare an integer column; -1 means absent."""
    return Column(name, Kind.INT, doc, unit)


def real(name: str, doc: str, unit: str = "") -> Column:
    """Declare a float column; NaN means absent."""
    return Column(name, Kind.FLOAT, doc, unit)


def text(name: str, doc: str, unit: str = "") -> Column:
    """Declare a text column; the empty string means absent."""
    return Column(name, Kind.TEXT, doc, unit)


def flag(name: str, doc: str) -> Column:
    """Declare a column of yes and no."""
    return Column(name, Kind.FLAG, doc)


RANK = integer("rank", "Global rank whose trace this row is from.")
START = integer("start_ns", "Start on this rank's own clock: base time + ts, exact.", "ns")
DURATION = integer("dur_ns", "Duration.", "ns")
EVENT = integer("event", "The event's row in `events` of the same rank (its place in the file).")
STEP = integer("step", "Number of the step it belongs to (`steps.step`); -1 outside every step.")
