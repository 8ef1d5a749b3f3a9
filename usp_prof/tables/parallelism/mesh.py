"""Mesh: the size of each parallel axis and every rank's place on it, as the manifest declares or the groups show.

From groups the mesh is worked out in steps:
  1. Each rank's place on an axis is its place within its group of that axis. Groups that hold whole context groups
     (fsdp = dp_shard x cp) count those: ranks 0,1,2,3 over the context groups 0,1 and 2,3 are 2 places, not 4.
  2. An axis has the size that all ranks agree on. `dp` gives way to `dp_shard` x `dp_replicate` where these are known.
  3. The sizes multiply to the world size, and no two ranks share a place; else no mesh is shown. `ep` borrows ranks
     from the other axes and stands apart: its size divides the world's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import lookup
from usp_prof.model.topology import PARALLEL_AXES, Axis, AxisSource, Group, Topology, group_key
from usp_prof.tables.communication.posts import P2P
from usp_prof.tables.parallelism.axis_names import described

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from usp_prof.columns.table import Columns
    from usp_prof.contract import Manifest

    Ints = NDArray[np.int64]


_DATA = (Axis.DP, Axis.DP_REPLICATE, Axis.DP_SHARD)


@dataclass(frozen=True, slots=True)
class Job:
    """What is known of the whole job, beside its groups."""

    ranks: Sequence[int]
    """The ranks that were read."""
    world: int
    """How many ranks the job has; -1 when unknown."""
    pipelines: Sequence[tuple[int, ...]] = ()
    """Sets of ranks that send to one another, where an inferred pipeline needs them."""

    @property
    def complete(self) -> bool:
        """All ranks of the job were read."""
        return self.world == len(self.ranks)


def lay_out(groups: list[Group], job: Job, manifest: Manifest | None) -> tuple[Topology, str]:
    """Lay out the mesh: as the manifest declares it, else as the groups show it; and say why none is shown."""
    if manifest is not None and manifest.mesh:
        return _declared(groups, job.ranks, manifest), ""
    everyone = sorted({*job.ranks, *(rank for group in groups for rank in group.ranks)})
    own: dict[int, list[Group]] = {rank: [] for rank in everyone}
    for group in groups:
        if group.axis in PARALLEL_AXES and _sizes_axis(group):
            for rank in group.ranks:
                own[rank].append(group)
    places = {rank: _places(rank, own[rank], job) for rank in everyone}
    # Only of a rank that was read are all groups known.
    sizes, reason = _sizes([places[rank] for rank in job.ranks], job.world if job.world > 0 else len(everyone))
    if reason:
        return Topology(groups=tuple(groups)), reason
    axes = {axis: size for axis, size in sizes.items() if size > 1}
    # A rank of which only some places are known has none: of a single file, the others' places are not known.
    shown = {
        rank: MappingProxyType({axis: found[axis][0] for axis in axes if axis in found})
        for rank, found in places.items()
        if all(found.get(axis, (-1, -1))[1] == size for axis, size in axes.items() if axis != Axis.EP)
    }
    if _shared([{axis: place for axis, place in found.items() if axis != Axis.EP} for found in shown.values()]):
        return Topology(groups=tuple(groups)), f"several ranks share a place of the mesh {_product(axes)}"
    sources = [group.axis_source for group in groups if group.axis in axes]
    order = [source.value for source in AxisSource]
    weakest = max(sources, key=order.index, default=AxisSource.NONE.value)
    return Topology(MappingProxyType(axes), MappingProxyType(shown), tuple(groups), str(weakest)), ""


def _declared(groups: list[Group], ranks: Iterable[int], manifest: Manifest) -> Topology:
    names = manifest.axis_order or list(manifest.mesh)
    extra = [name for name in manifest.mesh if name not in names]
    axes = {n: manifest.mesh[n] for n in [*names, *extra] if n in [*Axis] and manifest.mesh.get(n, 1) > 1}
    places = {rank: MappingProxyType(dict(manifest.coordinates.get(str(rank), {}))) for rank in ranks}
    return Topology(MappingProxyType(axes), MappingProxyType(places), tuple(groups), AxisSource.MANIFEST.value)


def _places(rank: int, own: list[Group], job: Job) -> dict[str, tuple[int, int]]:
    """Find a rank's place on each axis and the axis' size; (-1, -1) where its groups contradict one another."""
    context: set[int] = max((set(group.ranks) for group in own if group.axis == Axis.CP), key=len, default=set())
    found: dict[str, set[tuple[int, int]]] = {}
    for axis in PARALLEL_AXES:
        of_axis = [group for group in own if group.axis == axis]
        # What was told counts before what was inferred or marked.
        told = [group for group in of_axis if group.axis_source == AxisSource.DESCRIPTION]
        for group in told or of_axis:
            ranks = _pipeline(rank, group, job) if axis == Axis.PP else group.ranks
            found.setdefault(axis, set()).add(_place(rank, ranks, context if axis in _DATA else set()))
    return {axis: places.pop() if len(places) == 1 else (-1, -1) for axis, places in found.items()}


def _sizes_axis(group: Group) -> bool:
    """Say whether a group spans its axis and nothing else."""
    if group.axis_source == AxisSource.DESCRIPTION:
        return described(group.description).sizes
    return group.axis_source != AxisSource.RANKS


def _pipeline(rank: int, group: Group, job: Job) -> tuple[int, ...]:
    """Give the ranks of a rank's pipeline; none where they cannot be told.

    An inferred pipeline may be one of several that share a group: then only who sends to whom tells its ranks.
    """
    if group.axis_source not in {AxisSource.INFERRED, AxisSource.MARK}:
        return group.ranks
    if not job.complete:
        return ()
    return next((ranks for ranks in job.pipelines if rank in ranks and set(ranks) <= set(group.ranks)), ())


def _place(rank: int, ranks: Sequence[int], context: set[int]) -> tuple[int, int]:
    """Give a rank's place among these ranks and their number, counted in whole context groups where they hold such."""
    if rank not in ranks:
        return -1, -1
    step = len(context) if len(context) > 1 and context <= set(ranks) else 1
    before = ranks[: ranks.index(rank)]
    return sum(step == 1 or other not in context for other in before) // step, len(ranks) // step


def _sizes(places: Sequence[Mapping[str, tuple[int, int]]], world: int) -> tuple[dict[str, int], str]:
    """Give the size of each axis, or the reason why there is no mesh."""
    each = {axis: {found[axis][1] for found in places if axis in found} for axis in PARALLEL_AXES}
    doubtful = [axis.value for axis, sizes in each.items() if len(sizes) > 1 or -1 in sizes]
    if doubtful:
        return {}, f"the groups do not tell one size of {', '.join(doubtful)}"
    sizes = {axis.value: size for axis, known in each.items() for size in known}
    parts = [sizes[axis] for axis in (Axis.DP_SHARD, Axis.DP_REPLICATE) if axis in sizes]
    if parts and sizes.get(Axis.DP, 1) in {1, prod(parts)}:
        sizes.pop(Axis.DP, None)
    factors = {axis: size for axis, size in sizes.items() if axis != Axis.EP and size > 1}
    experts = sizes.get(Axis.EP, 1)
    if experts > world or world % experts:
        return {}, f"ep {experts} does not divide the world of {world} ranks"
    if (factors or experts > 1) and prod(factors.values()) != world:
        known = _product(factors) or "none known"
        return {}, f"the sizes that the groups show ({known}) do not multiply to the world of {world} ranks"
    return sizes, ""


def _product(axes: Mapping[str, int]) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in axes.items())


def _shared(places: Sequence[Mapping[str, int]]) -> bool:
    return len({tuple(sorted(place.items())) for place in places}) < len(places)


def talking(parts: Mapping[int, Columns]) -> list[tuple[int, ...]]:
    """Find the sets of ranks that send to one another, directly or through others."""
    together = {rank: {rank} for rank in parts}
    for rank, columns in parts.items():
        peers = np.unique(columns["peer"][columns.matches("op", *P2P)])
        for peer in peers[peers >= 0].tolist():
            joined = together.setdefault(peer, {peer}) | together[rank]
            together.update(dict.fromkeys(joined, joined))
    return sorted({tuple(sorted(each)) for each in together.values() if len(each) > 1})


# Job group: the group of the whole job, where it is the only one that communication without a group can belong to.
#
# Kernels of old traces, and of libraries beside NCCL, name no group. They belong to the whole job where
#     - every group that the traces name spans the job, or
#     - the job has two ranks, of which one was read, or
#     - all ranks were read, ran the same operations in order, and ended each of them together: members of a collective
#         leave it within microseconds, while two groups of half the job that do the same work drift apart.

_TOGETHER_NS = 100_000
"""Median distance of the ends of one collective's members; 1 to 63 us were measured on five recorded jobs."""
_TOGETHER_ELSEWHERE_NS = 20_000
"""The same, once the distance of two hosts' clocks has been taken out."""
_OVERLAPPING = 0.8
"""Share of the collectives that overlap on two ranks; recordings of 4 to 8 ranks have 0.9 to 1."""
_PAIR = 2
_ALIGNMENTS = 64
"""Places that are tried where one rank's recording is a stretch of another's."""


def job_group(
    parts: Mapping[int, Columns], groups: Iterable[Group], world: int, hosts: Mapping[int, str]
) -> Group | None:
    """Find the group that parts without any belong to."""
    bare = {rank: _bare(columns) for rank, columns in parts.items()}
    size = len(parts) if world < 1 else world
    if size < 2 or not any(map(len, bare.values())) or any(each.matches("op", *P2P).any() for each in bare.values()):
        return None
    larger = {group.ranks for group in groups if group.size > 1}
    everyone = tuple(range(size))
    if larger - {everyone}:
        return None
    complete = len(parts) == size
    if not larger and not (_together(bare, hosts) if complete else size == _PAIR):
        return None
    return Group(group_key("", everyone), "", "", "", everyone, size)


def _bare(columns: Columns) -> Columns:
    codes, keys = columns.codes("group")
    return columns.take(lookup([key == "" for key in keys], codes, missing=False))


def _together(bare: Mapping[int, Columns], hosts: Mapping[int, str]) -> bool:
    """Say whether all ranks ran the same, at the same time."""
    first = max(bare, key=lambda rank: len(bare[rank]))
    return all(_tied(bare[first], each, known=_one_clock(hosts, first, rank)) for rank, each in bare.items())


def _one_clock(hosts: Mapping[int, str], first: int, second: int) -> bool:
    return hosts.get(first, "") == hosts.get(second, "")


def _tied(longest: Columns, other: Columns, *, known: bool) -> bool:
    """Say whether a rank's operations are those of the longest recording, or a stretch of them, and end with them."""
    if not len(other):
        return False
    start, end = longest["start_ns"], longest["start_ns"] + longest["dur_ns"]
    own_start, own_end = other["start_ns"], other["start_ns"] + other["dur_ns"]
    for place in _places_within_lists(longest["op"].tolist(), other["op"].tolist()):
        stretch = slice(place, place + len(other))
        apart = own_end - end[stretch]
        clock = 0 if known else int(np.median(apart))
        overlapping = np.maximum(own_start - clock, start[stretch]) <= np.minimum(own_end - clock, end[stretch])
        limit = _TOGETHER_NS if known else _TOGETHER_ELSEWHERE_NS
        if np.mean(overlapping) >= _OVERLAPPING and np.median(np.abs(apart - clock)) <= limit:
            return True
    return False


def _places_within_lists(longest: list[str], other: list[str]) -> list[int]:
    """Find where a sequence of operations stands within the longest."""
    sought, within = f" {' '.join(other)} ", f" {' '.join(longest)} "
    found = [match.start() for match in re.finditer(f"(?={re.escape(sought)})", within)][:_ALIGNMENTS]
    return [within[:at].count(" ") for at in found]
