"""Axis of each process group, over all ranks: by description, manifest, ranks, marks, and finally inference.

`resolve` determines the axes from all ranks together. `apply` then puts the groups and axes into each rank's tables, on
demand and table by table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

from usp_prof.columns.arrow import coded, index_of
from usp_prof.columns.rows import by_appearance, combinations, lookup, text_codes
from usp_prof.columns.table import Columns, Replaced, View
from usp_prof.contract import GroupEntry, Manifest
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.topology import Axis, AxisSource, Group, Topology
from usp_prof.tables.parallelism.axis_names import described
from usp_prof.tables.parallelism.inference import (
    Inferred,
    Traffic,
    axis_health,
    axis_of_library,
    axis_of_operation,
    infer_axes,
    traffic_of,
)
from usp_prof.tables.parallelism.mesh import Job, job_group, lay_out, talking
from usp_prof.tables.shares import Common
from usp_prof.tables.table_set import ChangedSource, Source

Named = TypeVar("Named", Group, GroupEntry)

_SPANS = "the group spans the job, whose axes have groups of their own"
_NAMES = {"fsdp": Axis.DP_SHARD, "efsdp": Axis.DP_SHARD, "sp": Axis.TP, "etp": Axis.TP, "loss": Axis.DP}


def resolve(sources: Mapping[int, Source], manifest: Manifest | None) -> tuple[AxisLayout, list[HealthRow]]:
    """Determine every group's axis from all ranks together, by the first source with an answer.

    description  PyTorch's name of the group, such as mesh_tp
    manifest     the recorder's entry for these ranks
    ranks        the one axis of the declared mesh along which the members differ
    mark         ranges around the group's traffic, such as pp::F
    inference    content and times of the traffic; if two axes fit, the axis stays unknown
    """
    parts = {rank: Columns(source.view("collectives")) for rank, source in sources.items()}
    groups = {group.key: group for group in groups_of(sources)}
    world = world_size(sources)
    if world < 1:
        world = len({*sources, *(rank for group in groups.values() for rank in group.ranks)})
    group_of_job = job_group(parts, groups.values(), world, hosts_of(sources))
    if group_of_job is not None:
        groups.setdefault(group_of_job.key, group_of_job)
    # Traffic and guesses by group; "" is traffic without a known group, which is added to the job's group.
    traffic = traffic_of(parts)
    guesses = infer_axes(traffic, groups.values())
    ungrouped = guesses.get("", Inferred())
    if group_of_job is not None and "" in traffic:
        guesses.setdefault(group_of_job.key, ungrouped)
        traffic.setdefault(group_of_job.key, Traffic()).add(traffic[""])
    allowed: dict[str, tuple[str, ...]] = {}
    settled = []
    divided = _divided(groups.values(), world)
    entries = _by_ranks(() if manifest is None else manifest.groups)
    for key, group in sorted(groups.items()):
        entry = _entry(group, entries.get(group.ranks, ()))
        if entry and len(entry.axes) > 1:
            allowed[key] = tuple(_axis_named(name).value for name in entry.axes)
        spans = divided and len(group.ranks) == world
        by_name = _by_name(group, entry, manifest)
        settled.append(by_name or _by_traffic(group, traffic.get(key), guesses.get(key), spans=spans))
    axes_of_ranks = {ranks: _axes_with_sizes(of_ranks) for ranks, of_ranks in _by_ranks(settled).items()}
    settled = [_of_one_axis(group, axes_of_ranks[group.ranks]) for group in settled]
    has_own_pipeline = any(group.axis == Axis.PP and group.axis_source not in TRUSTED for group in settled)
    job = Job(sorted(sources), world, talking(parts) if has_own_pipeline else ())
    topology, no_mesh = lay_out(settled, job, manifest)
    health = axis_health(settled, traffic, parts, ungrouped if group_of_job is None else Inferred())
    if no_mesh:
        health.append(HealthRow("mesh_unknown", Severity.INFO, detail=f"no mesh is shown: {no_mesh}"))
    return AxisLayout(topology, allowed, group_of_job.key if group_of_job else "", ungrouped.axis.value, world), health


def groups_of(sources: Mapping[int, Source]) -> list[Group]:
    """Return the groups of all ranks; if ranks disagree about a group, keep the entry with a known axis."""
    group_of_key: dict[str, Group] = {}
    for source in sources.values():
        for row in source.table("groups").to_pylist():
            ranks = tuple(int(rank) for rank in row["ranks"].split(",")) if row["ranks"] else ()
            group = Group(
                row["group"], row["name"], row["description"], row["backend"], ranks, row["size"],
                row["axis"], row["axis_source"],
            )  # fmt: skip
            previous = group_of_key.get(group.key)
            if previous is None or (previous.axis == Axis.UNKNOWN and group.axis != Axis.UNKNOWN):
                group_of_key[group.key] = group
    return list(group_of_key.values())


def world_size(sources: Mapping[int, Source]) -> int:
    """Return the number of ranks of the job according to the traces; -1 if unknown."""
    return max(
        (row["world_size"] for source in sources.values() for row in source.table("ranks").to_pylist()), default=-1
    )


def hosts_of(sources: Mapping[int, Source]) -> dict[int, str]:
    """Return the name of each rank's host; empty when unknown."""
    return {rank: source.table("ranks").to_pylist()[0]["host"] for rank, source in sources.items()}


def _by_ranks(groups: Iterable[Named]) -> dict[tuple[int, ...], list[Named]]:
    """Return the groups of each set of ranks: a large job has thousands of groups."""
    groups_of_ranks: dict[tuple[int, ...], list[Named]] = {}
    for group in groups:
        groups_of_ranks.setdefault(tuple(group.ranks), []).append(group)
    return groups_of_ranks


def _axes_with_sizes(groups: Iterable[Group]) -> set[str]:
    """Return the axes of the groups whose descriptions name sizes."""
    return {group.axis for group in groups if described(group.description).sizes}


def _of_one_axis(group: Group, axes_of_same_ranks: set[str]) -> Group:
    """Assign a product group to the only axis whose group has the same ranks: the other axes have size 1 there."""
    if group.axis != Axis.UNKNOWN or len(group.ranks) < 2:
        return group
    axes = axes_of_same_ranks.intersection(described(group.description).product)
    return _with_axis(group, Axis(axes.pop()), AxisSource.RANKS) if len(axes) == 1 else group


def _entry(group: Group, of_same_ranks: Sequence[GroupEntry]) -> GroupEntry | None:
    """Return the manifest's entry of a group: the same ranks, and the same name if both have one."""
    of_name = [entry for entry in of_same_ranks if entry.name == group.name]
    if of_name:
        return of_name[0]
    is_only = len(of_same_ranks) == 1 and (not group.name or not of_same_ranks[0].name)
    return of_same_ranks[0] if is_only else None


def _divided(groups: Iterable[Group], world: int) -> bool:
    """Return whether the job has axes that do not span it: a group that spans it is then a product of axes."""
    return any(1 < group.size < world and group.axis_source == AxisSource.DESCRIPTION for group in groups)


def _by_name(group: Group, entry: GroupEntry | None, manifest: Manifest | None) -> Group | None:
    """Assign a group the axis from its description, the manifest or its ranks."""
    if group.axis_source == AxisSource.DESCRIPTION:
        return group
    if entry and entry.axes:
        return _with_axis(group, _axis_named(entry.axes[0]), AxisSource.MANIFEST)
    by_ranks = _axis_of_ranks(group.ranks, manifest) or _axis_of_namesakes(group.ranks, manifest)
    return None if by_ranks is None else _with_axis(group, by_ranks, AxisSource.RANKS)


def _by_traffic(group: Group, traffic: Traffic | None, guess: Inferred | None, *, spans: bool) -> Group:
    """Assign a group the axis from the marks around its traffic, or from the traffic."""
    if traffic is None:
        return _with_axis(group, Axis.WORLD, AxisSource.DESCRIPTION) if group.description == "default_pg" else group
    if traffic.marked:
        return _with_axis(group, Axis(traffic.marked), AxisSource.MARK)
    guess = guess or Inferred()
    if spans and guess.axis != Axis.PP:
        return replace(_with_axis(group, Axis.WORLD, AxisSource.INFERRED), axis_reason=_SPANS)
    return replace(_with_axis(group, guess.axis, AxisSource.INFERRED), axis_reason=guess.reason)


def _with_axis(group: Group, axis: Axis, source: AxisSource) -> Group:
    if axis is Axis.UNKNOWN:
        return replace(group, axis=axis.value, axis_source=AxisSource.NONE.value)
    return replace(group, axis=axis.value, axis_source=source.value)


def _axis_named(name: str) -> Axis:
    plain = name.removeprefix("mesh_")
    return _NAMES.get(plain) or (Axis(plain) if plain in [*Axis] else Axis.UNKNOWN)


def _axis_of_ranks(ranks: tuple[int, ...], manifest: Manifest | None) -> Axis | None:
    """Return the one axis of the declared mesh along which these ranks differ and which they fill."""
    if manifest is None or not manifest.coordinates or len(ranks) < 2:
        return None
    places = [manifest.coordinates.get(str(rank)) for rank in ranks]
    if any(place is None for place in places):
        return None
    coordinates = [place for place in places if place is not None]
    differing = [name for name in coordinates[0] if len({place.get(name) for place in coordinates}) > 1]
    axes = [name for name in differing if name in [*Axis]]
    # An expert axis uses ranks of other axes, so its coordinate varies with theirs.
    axes = [name for name in axes if name != Axis.EP] or axes
    if len(axes) != 1 or len(ranks) != manifest.mesh.get(axes[0], len(ranks)):
        return None
    return Axis(axes[0])


def _axis_of_namesakes(ranks: tuple[int, ...], manifest: Manifest | None) -> Axis | None:
    """Return the one axis of the manifest's groups with exactly these ranks: trainers create second groups of them."""
    if manifest is None:
        return None
    names = {name for entry in manifest.groups if tuple(entry.ranks) == ranks for name in entry.axes}
    return _axis_named(*names) if len(names) == 1 else None


# Each rank's tables with the run's groups and axes.

TRUSTED = (AxisSource.DESCRIPTION, AxisSource.MANIFEST, AxisSource.RANKS)


@dataclass(frozen=True, slots=True)
class AxisLayout:
    """The topology, and the resulting axis and group of each part."""

    topology: Topology
    allowed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Axes of a group, if the manifest lists several; a mark may choose among them."""
    job_group: str = ""
    """Key of the group for parts without a group; empty if unknown."""
    ungrouped: str = Axis.UNKNOWN.value
    """Inferred axis of the parts without a group."""
    world: int = -1
    """Number of ranks of the job."""


def apply(sources: Mapping[int, Source], layout: AxisLayout) -> dict[int, Source]:
    """Wrap each rank's tables so that groups and axes follow the layout, on demand and table by table."""
    common = Common(layout)
    changes = {"collectives": partial(_collectives, common=common), "groups": partial(_groups, common=common)}
    grouped = {rank: ChangedSource(source, changes) for rank, source in sources.items()}
    return {
        rank: ChangedSource(source, {"activities": partial(_activities, source=source)})
        for rank, source in grouped.items()
    }


def _activities(view: View, source: Source) -> View:
    return Replaced(view, {"axis": lambda: _axes_of_activities(view, source.view("collectives"))})


def _groups(view: View, common: Common[AxisLayout]) -> View:
    groups = {group.key: group for group in common.value.topology.groups}
    group_of_row = [groups[key] for key in view.column("group").to_pylist()]
    return Replaced(
        view,
        {
            "axis": lambda: _coded([str(group.axis) for group in group_of_row]),
            "axis_source": lambda: _coded([str(group.axis_source) for group in group_of_row]),
            "axis_reason": lambda: _coded([group.axis_reason for group in group_of_row]),
        },
    )


def _collectives(view: View, common: Common[AxisLayout]) -> View:
    """Set the run's axes: a trusted group decides, but a mark may choose among the group's axes."""
    layout = common.value
    groups = {group.key: group for group in layout.topology.groups}
    columns = Columns(view)
    # Rows with the same inputs are computed once: by kind of row, the new key, axis and source.
    deciding = [columns.codes(name) for name in ("group", "axis", "axis_source", "op", "library")]
    kinds, kind_of_row = combinations(*(codes for codes, _ in deciding))
    keys, axes, sources = [], [], []
    for kind in kinds:
        key, axis, source, op, library = (texts[code] for code, (_, texts) in zip(kind, deciding, strict=True))
        key = key or layout.job_group
        own = groups.get(key)
        trusted = own is not None and own.axis_source in TRUSTED and own.axis != Axis.WORLD
        purpose = axis_of_library(library).axis
        if purpose != Axis.UNKNOWN and source != AxisSource.MARK and not trusted:
            axis, source = purpose, AxisSource.INFERRED
        else:
            axis, source = _part_axis(own, axis, source, op, layout.allowed.get(key, ()), layout)
        keys.append(key)
        axes.append(str(axis))
        sources.append(str(source))
    replaced: dict[str, Callable[[], pa.Array]] = {
        "group": lambda: _coded(keys, kind_of_row),
        "axis": lambda: _coded(axes, kind_of_row),
        "axis_source": lambda: _coded(sources, kind_of_row),
    }
    group_of_job = groups.get(layout.job_group)
    if group_of_job is not None:
        size = columns["group_size"]
        filled = np.where((columns["group"] == "") & (size < 0), group_of_job.size, size)
        replaced["group_size"] = lambda: index_of(filled)
    return Replaced(view, replaced)


def _part_axis(
    group: Group | None, axis: str, source: str, op: str, allowed: tuple[str, ...], layout: AxisLayout
) -> tuple[str, str]:
    """Return the axis of one part: from a trusted group, from a mark, or the group's inferred axis, in this order."""
    marked = source == AxisSource.MARK
    if group is not None and group.axis_source in TRUSTED and group.axis != Axis.WORLD:
        if marked and axis in allowed:
            return axis, source
        return group.axis, source if source == AxisSource.INFERRED else group.axis_source
    if marked:
        return axis, source
    group_axis, group_source = (group.axis, group.axis_source) if group else (layout.ungrouped, AxisSource.INFERRED)
    if group_source == AxisSource.INFERRED or (group_source == AxisSource.MARK and group_axis == Axis.PP):
        served = axis_of_operation(group_axis, op, everyone=group is not None and len(group.ranks) == layout.world)
        group_source = group_source if served == group_axis else AxisSource.INFERRED
        group_axis = served
    return group_axis, AxisSource.NONE if group_axis == Axis.UNKNOWN else group_source


def _axes_of_activities(activities: View, collectives: View) -> pa.Array:
    part = Columns(activities)["collective"]
    codes, texts = Columns(collectives).codes("axis")
    return _coded([*texts, ""], lookup(codes, part, missing=len(texts)))  # part -1: no communication


def _coded(values: Sequence[str], rows: np.ndarray | None = None) -> pa.Array:
    """Return a text column with these values, with codes in order of first use."""
    codes, texts = text_codes(values)
    return coded(*by_appearance(codes if rows is None else codes[rows], texts))
