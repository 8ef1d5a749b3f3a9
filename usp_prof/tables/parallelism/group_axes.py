"""Axis of each process group, over all ranks: by description, manifest, ranks, marks, and only then inference."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.arrow import coded, index_of
from usp_prof.columns.rows import first_rows, group_codes
from usp_prof.columns.table import Columns, Replaced, table_of
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.topology import Axis, AxisSource
from usp_prof.tables.groups import seen
from usp_prof.tables.parallelism.axis_names import described
from usp_prof.tables.parallelism.inference import (
    Inferred,
    Traffic,
    axis_health,
    inferred,
    made_for,
    of_operation,
    traffic_of,
)
from usp_prof.tables.parallelism.mesh import Job, job_group, lay_out, talking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from usp_prof.columns.table import View
    from usp_prof.contract import GroupEntry, Manifest
    from usp_prof.model.topology import Group, Topology
    from usp_prof.tables.table_set import Source

_TRUSTED = (AxisSource.DESCRIPTION, AxisSource.MANIFEST, AxisSource.RANKS)
_SPANS = "the group spans the job, whose axes have groups of their own"
_NAMES = {"fsdp": Axis.DP_SHARD, "efsdp": Axis.DP_SHARD, "sp": Axis.TP, "etp": Axis.TP, "loss": Axis.DP}


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


def resolve(sources: Mapping[int, Source], manifest: Manifest | None) -> tuple[Layout, list[HealthRow]]:
    """Settle every group's axis from what all ranks say together."""
    parts = {rank: Columns(source.view("collectives")) for rank, source in sources.items()}
    groups = {group.key: group for group in seen(sources)}
    world = world_size(sources)
    if world < 1:
        world = len({*sources, *(rank for group in groups.values() for rank in group.ranks)})
    whole = job_group(parts, groups.values(), world, hosts_of(sources))
    if whole is not None:
        groups.setdefault(whole.key, whole)
    traffic = traffic_of(parts)
    guesses = inferred(traffic, groups.values())
    ungrouped = guesses.get("", Inferred())
    if whole is not None and "" in traffic:
        guesses.setdefault(whole.key, ungrouped)
        traffic.setdefault(whole.key, Traffic()).add(traffic[""])
    allowed: dict[str, tuple[str, ...]] = {}
    settled = []
    divided = _divided(groups.values(), world)
    for key in sorted(groups):
        entry = _entry(groups[key], manifest)
        if entry and len(entry.axes) > 1:
            allowed[key] = tuple(_axis_named(name).value for name in entry.axes)
        by_name = _by_name(groups[key], entry, manifest)
        spans = divided and len(groups[key].ranks) == world
        settled.append(by_name or _by_traffic(groups[key], traffic.get(key), guesses.get(key), spans=spans))
    settled = [_of_one_axis(group, settled) for group in settled]
    own_pipelines = any(group.axis == Axis.PP and group.axis_source not in _TRUSTED for group in settled)
    job = Job(sorted(sources), world, talking(parts) if own_pipelines else ())
    topology, no_mesh = lay_out(settled, job, manifest)
    health = axis_health(settled, traffic, parts, ungrouped if whole is None else Inferred())
    if no_mesh:
        health.append(HealthRow("mesh_unknown", Severity.INFO, detail=f"no mesh is shown: {no_mesh}"))
    return Layout(topology, MappingProxyType(allowed), whole.key if whole else "", ungrouped.axis.value, world), health


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


def world_size(sources: Mapping[int, Source]) -> int:
    """Give the number of ranks of the job as the traces tell it; -1 when they do not."""
    return max((row["world_size"] for each in sources.values() for row in each.table("ranks").to_pylist()), default=-1)


def hosts_of(sources: Mapping[int, Source]) -> dict[int, str]:
    """Give the name of each rank's host; empty when unknown."""
    return {rank: each.table("ranks").to_pylist()[0]["host"] for rank, each in sources.items()}


def _of_one_axis(group: Group, groups: Iterable[Group]) -> Group:
    """Give a product group the one of its axes whose group has the same ranks: the others have size 1 there."""
    product = described(group.description).product
    if group.axis != Axis.UNKNOWN or len(group.ranks) < 2:
        return group
    spanning = [other for other in groups if other.ranks == group.ranks and described(other.description).sizes]
    same = {other.axis for other in spanning if other.axis in product}
    return _with(group, Axis(same.pop()), AxisSource.RANKS) if len(same) == 1 else group


def _entry(group: Group, manifest: Manifest | None) -> GroupEntry | None:
    """Find the manifest's entry of a group: the same ranks, and the same name where both have one."""
    if manifest is None:
        return None
    same = [e for e in manifest.groups if tuple(e.ranks) == group.ranks]
    named = [e for e in same if e.name == group.name]
    if named:
        return named[0]
    return same[0] if len(same) == 1 and (not group.name or not same[0].name) else None


def _divided(groups: Iterable[Group], world: int) -> bool:
    """Say whether the job has axes that do not span it: what spans it then is no axis, but their product."""
    return any(1 < group.size < world and group.axis_source == AxisSource.DESCRIPTION for group in groups)


def _by_name(group: Group, entry: GroupEntry | None, manifest: Manifest | None) -> Group | None:
    """Give a group the axis that its description, the manifest or its ranks say."""
    if group.axis_source == AxisSource.DESCRIPTION:
        return group
    if entry and entry.axes:
        return _with(group, _axis_named(entry.axes[0]), AxisSource.MANIFEST)
    by_ranks = _axis_of_ranks(group.ranks, manifest) or _axis_of_namesakes(group.ranks, manifest)
    return None if by_ranks is None else _with(group, by_ranks, AxisSource.RANKS)


def _by_traffic(group: Group, traffic: Traffic | None, guess: Inferred | None, *, spans: bool) -> Group:
    """Give a group the axis that the marks around its traffic say, or that the traffic suggests."""
    if traffic is None:
        return _with(group, Axis.WORLD, AxisSource.DESCRIPTION) if group.description == "default_pg" else group
    if traffic.marked:
        return _with(group, Axis(traffic.marked), AxisSource.MARK)
    guess = guess or Inferred()
    if spans and guess.axis != Axis.PP:
        return replace(_with(group, Axis.WORLD, AxisSource.INFERRED), axis_reason=_SPANS)
    return replace(_with(group, guess.axis, AxisSource.INFERRED), axis_reason=guess.reason)


def _with(group: Group, axis: Axis, source: AxisSource) -> Group:
    if axis is Axis.UNKNOWN:
        return replace(group, axis=axis.value, axis_source=AxisSource.NONE.value)
    return replace(group, axis=axis.value, axis_source=source.value)


def _axis_named(name: str) -> Axis:
    plain = name.removeprefix("mesh_")
    return _NAMES.get(plain) or (Axis(plain) if plain in [*Axis] else Axis.UNKNOWN)


def _axis_of_ranks(ranks: tuple[int, ...], manifest: Manifest | None) -> Axis | None:
    """Find the one axis of the declared mesh along which these ranks differ and which they fill."""
    if manifest is None or not manifest.coordinates or len(ranks) < 2:
        return None
    places = [manifest.coordinates.get(str(rank)) for rank in ranks]
    if any(place is None for place in places):
        return None
    known = [place for place in places if place is not None]
    axes = [axis for axis in known[0] if axis in [*Axis] and len({place.get(axis) for place in known}) > 1]
    # An expert axis borrows ranks from the others, so its coordinate varies along with theirs.
    axes = [axis for axis in axes if axis != Axis.EP] or axes
    if len(axes) != 1 or len(ranks) != manifest.mesh.get(axes[0], len(ranks)):
        return None
    return Axis(axes[0])


def _axis_of_namesakes(ranks: tuple[int, ...], manifest: Manifest | None) -> Axis | None:
    """Find the one axis that the manifest's groups of these very ranks serve: trainers make a second group of them."""
    told = {name for entry in manifest.groups if tuple(entry.ranks) == ranks for name in entry.axes} if manifest else ()
    return _axis_named(*told) if len(told) == 1 else None


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
        trusted = own is not None and own.axis_source in _TRUSTED and own.axis != Axis.WORLD
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
    if group is not None and group.axis_source in _TRUSTED and group.axis != Axis.WORLD:
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
