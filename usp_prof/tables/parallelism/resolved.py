"""Resolved tables: groups and axes of one rank as the whole run settles them, made when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.arrow import coded, index_of
from usp_prof.columns.rows import first_rows, group_codes
from usp_prof.columns.table import Columns, Replaced, table_of
from usp_prof.model.topology import Axis, AxisSource
from usp_prof.tables.parallelism.inference import (
    made_for,
    of_operation,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from usp_prof.columns.table import View
    from usp_prof.model.topology import Group, Topology
    from usp_prof.tables.table_set import Source


TRUSTED = (AxisSource.DESCRIPTION, AxisSource.MANIFEST, AxisSource.RANKS)


@dataclass(frozen=True, slots=True)
class Layout:
    """The topology, and what each part's axis and group become by it."""

    topology: Topology
    allowed: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Axes that a group serves, where the manifest lists several; a mark may choose among them."""
    whole: str = ""
    """Key of the group that parts without any group belong to; empty when that cannot be known."""
    ungrouped: str = Axis.UNKNOWN.value
    """Axis of the parts without a group, as inferred."""
    world: int = -1
    """How many ranks the job has."""


def apply(sources: Mapping[int, Source], layout: Layout) -> dict[int, Source]:
    """Wrap each rank's tables so that groups and axes are as the layout says; done on demand, table by table."""
    return {rank: ResolvedSource(source, layout) for rank, source in sources.items()}


class ResolvedSource:
    """One rank's tables with the run's groups and axes in them."""

    def __init__(self, source: Source, layout: Layout) -> None:
        self._source = source
        self._layout = layout
        self._parts: View | None = None

    def table(self, name: str) -> pa.Table:
        """Give one table of this rank."""
        return table_of(self.view(name))

    def view(self, name: str) -> View:
        """Give one table of this rank, not read before its columns are asked for."""
        if name == "collectives":
            self._parts = self._parts or _collectives(self._source.view(name), self._layout)
            return self._parts
        view = self._source.view(name)
        if name == "groups":
            return _groups(view, self._layout)
        if name == "activities":
            return Replaced(view, {"axis": lambda: _axes_of_activities(view, self.view("collectives"))})
        return view


def _groups(view: View, layout: Layout) -> View:
    groups = {group.key: group for group in layout.topology.groups}
    told = [groups[key] for key in view.column("group").to_pylist()]
    return Replaced(
        view,
        {
            "axis": lambda: _coded([str(group.axis) for group in told]),
            "axis_source": lambda: _coded([str(group.axis_source) for group in told]),
            "axis_reason": lambda: _coded([group.axis_reason for group in told]),
        },
    )


def _collectives(view: View, layout: Layout) -> View:
    """Put the settled axes in: a trusted group decides, but a mark may choose among the axes that the group serves."""
    groups = {group.key: group for group in layout.topology.groups}
    columns = Columns(view)
    combined = [columns.codes(name) for name in ("group", "axis", "axis_source", "op", "library")]
    distinct, inverse = _distinct([codes for codes, _ in combined])
    keys, axes, sources = [], [], []
    for line in distinct:
        key, axis, source, op, library = (values[code] for code, (_, values) in zip(line, combined, strict=True))
        key = key or layout.whole
        own = groups.get(key)
        trusted = own is not None and own.axis_source in TRUSTED and own.axis != Axis.WORLD
        purpose = made_for(library).axis
        if purpose != Axis.UNKNOWN and source != AxisSource.MARK and not trusted:
            axis, source = purpose, AxisSource.INFERRED
        else:
            axis, source = _part_axis(own, axis, source, op, layout.allowed.get(key, ()), layout)
        keys.append(key)
        axes.append(str(axis))
        sources.append(str(source))
    made: dict[str, Callable[[], pa.Array]] = {
        "group": lambda: _coded(keys, inverse),
        "axis": lambda: _coded(axes, inverse),
        "axis_source": lambda: _coded(sources, inverse),
    }
    whole = groups.get(layout.whole)
    if whole is not None:
        size = columns["group_size"]
        filled = np.where((columns["group"] == "") & (size < 0), whole.size, size)
        made["group_size"] = lambda: index_of(filled)
    return Replaced(view, made)


def _part_axis(
    group: Group | None, axis: str, source: str, op: str, allowed: tuple[str, ...], layout: Layout
) -> tuple[str, str]:
    """Settle one part: a trusted group decides, then a mark, then what the group is inferred to be."""
    marked = source == AxisSource.MARK
    if group is not None and group.axis_source in TRUSTED and group.axis != Axis.WORLD:
        if marked and axis in allowed:
            return axis, source
        return group.axis, source if source == AxisSource.INFERRED else group.axis_source
    if marked:
        return axis, source
    known, why = (group.axis, group.axis_source) if group else (layout.ungrouped, AxisSource.INFERRED)
    if why == AxisSource.INFERRED or (why == AxisSource.MARK and known == Axis.PP):
        served = of_operation(known, op, everyone=group is not None and len(group.ranks) == layout.world)
        why = why if served == known else AxisSource.INFERRED
        known = served
    return known, AxisSource.NONE if known == Axis.UNKNOWN else why


def _axes_of_activities(activities: View, collectives: View) -> pa.Array:
    part = Columns(activities)["collective"]
    codes, values = Columns(collectives).codes("axis")
    return _coded([*values, ""], np.r_[codes, len(values)][part])


def _distinct(codes: list[np.ndarray]) -> tuple[list[list[int]], np.ndarray]:
    if not len(codes[0]):
        return [], np.zeros(0, np.int64)
    line = group_codes(*codes)
    return np.stack(codes, axis=1)[first_rows(line)].tolist(), line


def _coded(values: Sequence[str], rows: np.ndarray | None = None) -> pa.Array:
    """Make a text column whose rows have these values, codes in the order in which they come up first."""
    place = {value: number for number, value in reversed(list(enumerate(values)))}
    first = np.array([place[value] for value in values], np.int64)
    codes = first if rows is None else first[rows]
    ordered = codes[np.sort(first_rows(codes))]
    new = np.zeros(len(values), np.int32)
    new[ordered] = np.arange(len(ordered))
    return coded(new[codes], [values[code] for code in ordered.tolist()])
