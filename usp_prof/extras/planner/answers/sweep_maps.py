"""Heat maps of a sweep: the fastest configuration of each cell, by tokens/s per device, and so by MFU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeVar

import numpy as np

from usp_prof.charts.inputs import PlanGrid
from usp_prof.extras.planner.sweep.rows import Row
from usp_prof.model.metric import Unit
from usp_prof.report.document import Block, Chart, Section, Text, data_table
from usp_prof.report.format import quantity

Key = TypeVar("Key")
Place = tuple[int | str, int]
"""Row and column of a cell."""

MAPS = 6
"""Number of maps over two degrees: those of the models and sizes with most measured rows."""


def _degree(axis: str) -> Callable[[Row], int]:
    return lambda row: int(getattr(row.configuration, axis)) if row.configuration else 0


AXES: dict[str, Callable[[Row], int]] = {
    axis: _degree(axis) for axis in ("dp", "tp", "cp", "pp", "ep", "zero", "micro_batch", "micro_batches")
}
"""Possible axes of a map."""


def best_map(rows: Sequence[Row], models: Sequence[str], sizes: Sequence[int], *, drawn: bool) -> Section:
    """Build a map of the fastest configuration by model and number of nodes (devices if nodes are not known)."""
    size_unit = "nodes" if any(row.nodes for row in rows) else "devices"
    cells: dict[Place, Row] = fastest(rows, lambda row: (row.model, row.size))
    title = f"Best configuration by model and {size_unit}"
    best = _Map(("model", size_unit), tuple(models), tuple(sizes), cells, names_degrees=True)
    return Section("sweep-best", title, (best.block(drawn=drawn),))


def varied_axes(rows: Iterable[Row]) -> tuple[str, str]:
    """Return the axes of the maps: tp and pp as in the playbook, others if one of these does not vary."""
    rows = list(rows)
    counts = {axis: len({read(row) for row in rows if row.configuration is not None}) for axis, read in AXES.items()}
    order = [
        axis for axis in ("tp", "pp", "zero", "dp", "cp", "ep", "micro_batch", "micro_batches") if counts[axis] > 1
    ]
    first, second = (*order, *(axis for axis in ("tp", "pp") if axis not in order))[:2]
    return first, second


def degree_maps(rows: Sequence[Row], axes: tuple[str, str], *, drawn: bool) -> list[Section]:
    """Build maps of MFU over two degrees, for each model and size with several measured rows."""
    groups = Counter((row.model, row.size) for row in rows if row.is_ok)
    several = [key for key, count in groups.items() if count > 1]
    chosen = sorted(several, key=lambda key: (-groups[key], key))[:MAPS]
    down, across = axes
    maps: list[Section] = []
    for model, size in sorted(chosen):
        part = [row for row in rows if (row.model, row.size) == (model, size) and row.configuration is not None]
        lines = tuple(sorted({AXES[down](row) for row in part}))
        columns = tuple(sorted({AXES[across](row) for row in part}))
        cells: dict[Place, Row] = fastest(part, lambda row: (AXES[down](row), AXES[across](row)))
        metric = "MFU" if _has_mfu(part) else "tokens/s"
        title = f"{metric} by {down} and {across}: {model} on {size_words(part[0])}"
        degrees_map = _Map(axes, lines, columns, cells, _failure_statuses(part, axes))
        maps.append(Section(f"sweep-map-{len(maps)}", title, (degrees_map.block(drawn=drawn),)))
    if maps and len(several) > len(chosen):
        note = Text(f"{len(several) - len(chosen)} more models and sizes have a map: choose with --only.", quiet=True)
        maps[-1] = Section(maps[-1].id, maps[-1].title, (*maps[-1].blocks, note))
    return maps


def _failure_statuses(rows: Iterable[Row], axes: tuple[str, str]) -> dict[Place, str]:
    """Return why the configurations failed, for each cell without a measured row."""
    down, across = axes
    why: dict[Place, Counter[str]] = {}
    for row in rows:
        why.setdefault((AXES[down](row), AXES[across](row)), Counter())[str(row.status)] += 1
    return {place: counts.most_common(1)[0][0] for place, counts in why.items()}


def fastest(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, Row]:
    """Return the fastest measured row of each key, by tokens/s per device."""
    by_key: dict[Key, Row] = {}
    for row in rows:
        if row.is_ok and (key(row) not in by_key or row.tokens_per_device > by_key[key(row)].tokens_per_device):
            by_key[key(row)] = row
    return by_key


def _has_mfu(rows: Iterable[Row]) -> bool:
    return all(np.isfinite(row.mfu) for row in rows if row.is_ok)


@dataclass(frozen=True, slots=True)
class _Map:
    """A map of configurations, as chart or table."""

    axes: tuple[str, str]
    """Variables of rows and columns."""
    lines: tuple[int | str, ...]
    columns: tuple[int, ...]
    cells: Mapping[Place, Row]
    """Fastest configuration that ran, by cell."""
    tried: Mapping[Place, str] = field(default_factory=dict)
    """Why its configurations failed, by cell without a measurement."""
    names_degrees: bool = False
    """Whether a cell names its configuration's degrees, because its row and column do not."""

    @property
    def metric(self) -> str:
        """The metric of a cell: MFU if all have one."""
        return "MFU" if _has_mfu(self.cells.values()) else "tokens/s"

    def block(self, *, drawn: bool) -> Block:
        """Return the map as a chart or a table."""
        down, across = self.axes
        places = list(product(self.lines, self.columns))
        texts, size = tuple(self._text(place) for place in places), len(self.columns)
        if not drawn:
            heads = {f"{down} \\ {across}": None, **{str(column): None for column in self.columns}}
            rows = [(str(name), *texts[line * size :][:size]) for line, name in enumerate(self.lines)]
            return data_table(self.metric, heads, rows)
        values = np.array([self._value(self.cells[place]) if place in self.cells else np.nan for place in places])
        values = values.reshape(len(self.lines), size)
        labels = tuple(self._label(place) for place in places)
        return Chart("", PlanGrid(self.metric, across, down, self.columns, self.lines, values, texts, labels))

    def _value(self, row: Row) -> float:
        return row.mfu if self.metric == "MFU" else row.tokens_per_second

    def _text(self, place: Place) -> str:
        """Format a cell; empty if nothing was tried."""
        row = self.cells.get(place)
        if row is None:
            return self.tried.get(place, "")
        value = self._value(row)
        figure = quantity(value, Unit.FRACTION) if self.metric == "MFU" else f"{value:,.0f}"
        return f"{figure} {degrees(row)}" if self.names_degrees else figure

    def _label(self, place: Place) -> str:
        """Format the tooltip of a cell."""
        if place in self.cells:
            return str(self.cells[place].configuration)
        return self._text(place) or "not tried"


def degrees(row: Row) -> str:
    """Format only the degrees of a configuration."""
    c = row.configuration
    if c is None:
        return ""
    words = [f"{axis}{size}" for axis, size in c.degrees().items() if size > 1]
    return " ".join([*words, *([f"z{c.zero}"] if c.zero else [])]) or "alone"


def size_words(row: Row) -> str:
    """Format the cluster size of a configuration."""
    devices = f"{row.devices} device{'s' if row.devices > 1 else ''}"
    return f"{row.nodes} node{'s' if row.nodes > 1 else ''} ({devices})" if row.nodes else devices
