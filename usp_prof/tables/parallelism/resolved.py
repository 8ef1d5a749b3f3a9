"""Resolved tables: groups and axes of one rank as the whole run settles them, made when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.arrow import coded, index_of
from usp_prof.columns.rows import by_appearance, first_rows, group_codes, lookup
from usp_prof.columns.table import Columns, Replaced
from usp_prof.model.topology import Axis, AxisSource
from usp_prof.tables.parallelism.inference import made_for, of_operation
from usp_prof.tables.table_set import ChangedSource

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
    return {rank: _resolved(source, layout) for rank, source in sources.items()}


def _resolved(source: Source, layout: Layout) -> Source:
    """Give one rank's tables with the run's groups and axes in them."""

    @cache
    def collectives() -> View:
        return _collectives(source.view("collectives"), layout)

    def activities(view: View) -> View:
        return Replaced(view, {"axis": lambda: _axes_of_activities(view, collectives())})

    return ChangedSource(
        source,
        {
            "collectives": lambda _: collectives(),
            "groups": lambda view: _groups(view, layout),
            "activities": activities,
        },
    )


def _groups(view: View, layout: Layout) -> View:
    groups = {group.key: group for group in layout.topology.groups}
    group_of_row = [groups[key] for key in view.column("group").to_pylist()]
    return Replaced(
        view,
        {
            "axis": lambda: _coded([str(group.axis) for group in group_of_row]),
            "axis_source": lambda: _coded([str(group.axis_source) for group in group_of_row]),
            "axis_reason": lambda: _coded([group.axis_reason for group in group_of_row]),
        },
    )


def _collectives(view: View, layout: Layout) -> View:
    """Put the settled axes in: a trusted group decides, but a mark may choose among the axes that the group serves."""
    groups = {group.key: group for group in layout.topology.groups}
    columns = Columns(view)
    # Rows that are alike in all that decides are settled once: by kind of row, the new key, axis and source.
    deciding = [columns.codes(name) for name in ("group", "axis", "axis_source", "op", "library")]
    kinds, kind_of_row = _distinct([codes for codes, _ in deciding])
    keys, axes, sources = [], [], []
    for kind in kinds:
        key, axis, source, op, library = (texts[code] for code, (_, texts) in zip(kind, deciding, strict=True))
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
        "group": lambda: _coded(keys, kind_of_row),
        "axis": lambda: _coded(axes, kind_of_row),
        "axis_source": lambda: _coded(sources, kind_of_row),
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
    codes, texts = Columns(collectives).codes("axis")
    return _coded([*texts, ""], lookup(codes, part, missing=len(texts)))  # part -1: no communication


def _distinct(codes: list[np.ndarray]) -> tuple[list[list[int]], np.ndarray]:
    """Give the distinct combinations of some columns, and the number of each row's combination."""
    if not len(codes[0]):
        return [], np.zeros(0, np.int64)
    combination = group_codes(*codes)
    return np.stack(codes, axis=1)[first_rows(combination)].tolist(), combination


def _coded(values: Sequence[str], rows: np.ndarray | None = None) -> pa.Array:
    """Make a text column whose rows have these values, codes in the order in which they come up first."""
    code_of = {value: code for code, value in enumerate(dict.fromkeys(values))}
    codes = np.array([code_of[value] for value in values], np.int64)
    return coded(*by_appearance(codes if rows is None else codes[rows], list(code_of)))
