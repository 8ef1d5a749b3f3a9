"""Document: facts and metrics of a run, and sections of blocks, as data for writers.

It contains no formatting, and no writer computes: values are raw (nanoseconds, bytes, fractions) with their unit, and
charts are plain columns.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from usp_prof.charts.inputs import ChartInput
from usp_prof.findings.causes import Cause
from usp_prof.model.finding import Finding
from usp_prof.model.health import HealthRow
from usp_prof.model.metric import Metric, Unit, Value
from usp_prof.report.format import Cell, column_texts, head_text, is_number
from usp_prof.report.run_facts import RunFacts
from usp_prof.report.verdict import UNKNOWN, Verdict

_NEGLIGIBLE = 0.0005


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """One metric with its name; the second line has its reference value, or why it is unknown."""

    label: str
    value: int | float | None
    unit: Unit
    second: str = ""


@dataclass(frozen=True, slots=True)
class KeyFigures:
    """The most important metrics."""

    figures: tuple[KeyFigure, ...]


@dataclass(frozen=True, slots=True)
class StackPart:
    """One part of a whole; `role` determines its color (compute, comm:tp, memcpy, idle:host, ...)."""

    label: str
    role: str
    value: int | float


@dataclass(frozen=True, slots=True)
class Stack:
    """A whole and its parts, shown as one bar. The parts add up to the whole."""

    title: str
    total: int | float
    unit: Unit
    parts: tuple[StackPart, ...]

    @property
    def visible_parts(self) -> tuple[StackPart, ...]:
        """The parts that do not round to 0: those visible in the bar and listed in a legend."""
        return tuple(part for part in self.parts if part.value >= self.total * _NEGLIGIBLE and part.value > 0)


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column: its heading, and the unit of its numbers (`None` for texts and plain numbers such as ranks).

    `prose` marks sentences, which are wrapped; names are cut if there is no space. Columns marked `shared` have one
    scale, because they are parts of one time.
    """

    head: str
    unit: Unit | None = None
    prose: bool = False
    shared: bool = False


@dataclass(frozen=True, slots=True)
class DataTable:
    """Rows of raw values with headings. `more` is the number of omitted rows."""

    title: str
    columns: tuple[TableColumn, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: int = 0


@dataclass(frozen=True, slots=True)
class FormattedColumn:
    """A column as text: its heading with the unit, its cells, and how writers set it."""

    head: str
    texts: list[str]
    is_number: bool
    prose: bool


def formatted_columns(table: DataTable) -> list[FormattedColumn]:
    """Format the columns of a table, each on one scale, or all shared ones together."""
    shared = [row[place] for place, column in enumerate(table.columns) if column.shared for row in table.rows]
    formatted = []
    for place, column in enumerate(table.columns):
        values = [row[place] for row in table.rows]
        unit, texts = column_texts(values, column.unit, shared if column.shared else values)
        formatted.append(FormattedColumn(head_text(column.head, unit), texts, is_number(values), column.prose))
    return formatted


def data_table(
    title: str,
    columns: Mapping[str, Unit | None],
    rows: Sequence[tuple[Cell, ...]],
    most: int = sys.maxsize,
    shared: Collection[str] = (),
    prose: Collection[str] = (),
) -> DataTable:
    """Build a table of the first `most` rows.

    `columns` has the unit of each heading. Columns in `shared` have one scale, and those in `prose` are wrapped.
    """
    heads = tuple(TableColumn(head, unit, prose=head in prose, shared=head in shared) for head, unit in columns.items())
    return DataTable(title, heads, tuple(rows[:most]), more=max(0, len(rows) - most))


@dataclass(frozen=True, slots=True)
class Text:
    """One or two sentences; `quiet` marks explanations."""

    text: str
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings by certain gain: causes with the findings that disappear with them, and the number left out."""

    causes: tuple[Cause, ...]
    more: int = 0
    """Number of further causes."""
    noise: int = 0
    """Number of findings whose gain does not exceed its error."""
    rest: tuple[Finding, ...] = ()
    """All other findings, shown on request."""
    title: str = "Findings"
    nothing: str = ""
    """Text if there are no findings; empty for the default text that no finding is large enough to act on."""
    unasked: str = ""
    """Sentence on the rules that were skipped and the input that they lack."""
    proofs: bool = False
    """Whether each finding shows the SELECT whose rows prove it."""


@dataclass(frozen=True, slots=True)
class Health:
    """Health rows: damaged or missing input."""

    rows: tuple[HealthRow, ...]
    more: int = 0
    title: str = "Health"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart as plain columns; text writers skip it."""

    title: str
    data: ChartInput


Block = KeyFigures | Stack | DataTable | Text | Findings | Health | Chart


@dataclass(frozen=True, slots=True)
class Section:
    """The answer to one question."""

    id: str
    title: str
    blocks: tuple[Block, ...]

    @property
    def needs_drawing(self) -> bool:
        """Whether the section has only charts and their explanation."""
        return all(isinstance(block, Chart) or (isinstance(block, Text) and block.quiet) for block in self.blocks)


@dataclass(frozen=True, slots=True)
class Document:
    """A report. `summary` is the first screen; `sections` are the details."""

    version: str
    run: RunFacts
    metrics: Mapping[str, Metric]
    values: tuple[Value, ...]
    findings: tuple[Finding, ...]
    health: tuple[HealthRow, ...]
    summary: Section
    sections: tuple[Section, ...]
    verdict: Verdict = UNKNOWN
