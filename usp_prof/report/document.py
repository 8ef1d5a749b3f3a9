"""Document: facts and metrics of a run, and sections of blocks, as data for writers.

It contains no formatting, and no writer computes: values are raw (nanoseconds, bytes, fractions) with their unit, and
charts are plain columns.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from usp_prof.model.health import HealthRow  # noqa: TC001 - part of the runtime alias below
from usp_prof.model.metric import Unit  # noqa: TC001 - part of the runtime alias below
from usp_prof.model.topology import PARALLEL_AXES, AxisSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from usp_prof.charts.inputs import ChartInput
    from usp_prof.findings.causes import Cause
    from usp_prof.model.finding import Finding
    from usp_prof.model.metric import Metric, Value
    from usp_prof.model.selection import Selection
    from usp_prof.tables.table_set import TableSet


Cell = int | float | str | None
"""A table value; `None` is unknown."""

_NEGLIGIBLE = 0.0005


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts about the run and the part of it that was read."""

    name: str
    ranks: tuple[int, ...]
    world_size: int | None
    axes: Mapping[str, int]
    axes_inferred: bool
    steps: tuple[int, ...]
    step_source: str
    devices: tuple[str, ...]
    hosts: int
    software: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    paced: bool = False
    others: tuple[str, ...] = ()
    """Names of other runs in the same folder, newest first."""
    is_part: bool = False
    """Whether the job has more ranks than these: some were excluded, have no trace, or are not shown."""
    axes_seen: tuple[str, ...] = ()
    """Axes of collectives, if the mesh with their sizes is unknown."""


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
    def worth_a_line(self) -> tuple[StackPart, ...]:
        """The parts that do not round to 0: those visible in the bar and listed in a legend."""
        return tuple(part for part in self.parts if part.value >= self.total * _NEGLIGIBLE and part.value > 0)


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column: its heading, and the unit of its numbers (`None` for texts and plain numbers such as ranks).

    `prose` marks sentences, which are wrapped; names are cut if there is no space.
    """

    head: str
    unit: Unit | None = None
    prose: bool = False


@dataclass(frozen=True, slots=True)
class DataTable:
    """Rows of raw values with headings. `more` is the number of omitted rows."""

    title: str
    columns: tuple[TableColumn, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: int = 0


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
    """What is said if there are no findings: empty means that none are worth acting on."""
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


# Facts of a run from its tables: ranks, axes, steps, devices, versions.

_PARALLEL = tuple(str(axis) for axis in PARALLEL_AXES)


def run_facts(tables: TableSet, selection: Selection, name: str, others: Sequence[str] = ()) -> RunFacts:
    """Return the facts of a run."""
    ranks = [rank for rank in tables.ranks if selection.ranks is None or rank in selection.ranks]
    steps, source = _steps(tables, selection, ranks)
    manifest = tables.manifest
    devices = _texts(tables, ranks, "device")
    torch = _texts(tables, ranks, "torch")
    software = dict(manifest.software) if manifest else {}
    if torch:
        software.setdefault("torch", torch[0])
    return RunFacts(
        name=name,
        ranks=tuple(ranks),
        world_size=_world_size(tables, ranks),
        axes=_axes(tables),
        axes_seen=() if tables.topology.axes else _axes_seen(tables, ranks),
        axes_inferred=tables.topology.source == AxisSource.INFERRED,
        steps=steps,
        step_source=source,
        devices=devices or (("CPU",) if "cpu" in _texts(tables, ranks, "device_kind") else ()),
        hosts=max(1, len(_texts(tables, ranks, "host"))),
        software=dict(sorted(software.items())),
        model=manifest.model.name if manifest and manifest.model else "",
        paced=bool(manifest and manifest.paced),
        others=tuple(others),
        is_part=_is_part(tables, ranks),
    )


def _is_part(tables: TableSet, ranks: list[int]) -> bool:
    """Return whether these ranks are fewer than the job has, as far as the traces tell."""
    unread = any(row.code in {"ranks_left_out", "missing_ranks"} for row in tables.health)
    return unread or len(ranks) < max(len(tables.ranks), _world_size(tables, ranks) or 0)


def _world_size(tables: TableSet, ranks: list[int]) -> int | None:
    sizes = [int(size) for rank in ranks for size in tables.columns("ranks", rank)["world_size"] if size > 0]
    return max(sizes, default=None)


def _axes(tables: TableSet) -> dict[str, int]:
    sizes = tables.topology.axes
    order = [*_PARALLEL, *(axis for axis in sizes if axis not in _PARALLEL)]
    return {axis: sizes[axis] for axis in order if sizes.get(axis, 0) > 1}


def _axes_seen(tables: TableSet, ranks: list[int]) -> tuple[str, ...]:
    """List the axes that the first rank's collectives name."""
    seen = set(tables.columns("collectives", ranks[0]).codes("axis")[1]) if ranks else set()
    return tuple(axis for axis in _PARALLEL if axis in seen)


def _steps(tables: TableSet, selection: Selection, ranks: list[int]) -> tuple[tuple[int, ...], str]:
    taken: set[int] = set()
    sources: Counter[str] = Counter()
    for rank in ranks:
        steps = tables.columns("steps", rank)
        taken.update(int(step) for step in steps["step"] if selection.takes_step(int(step)))
        sources.update(steps["source"])
    return tuple(sorted(taken)), sources.most_common(1)[0][0] if sources else ""


def _texts(tables: TableSet, ranks: list[int], column: str) -> tuple[str, ...]:
    texts = (text for rank in ranks for text in tables.columns("ranks", rank)[column])
    return tuple(sorted({text for text in texts if text}))
