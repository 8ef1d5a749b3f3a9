"""Mesh: the size of each parallel axis and every rank's coordinates, from the manifest or the groups.

From groups the mesh is derived in three steps.

1. A rank's coordinate on an axis is its index in its group of that axis. Groups that contain whole context groups (fsdp
   = dp_shard x cp) count those: ranks 0,1,2,3 with the context groups 0,1 and 2,3 have 2 coordinates, not 4.
2. An axis has the size that all ranks agree on. `dp` is replaced by `dp_shard` x `dp_replicate` if these are known.
3. The product of the sizes is the world size, and no two ranks share coordinates; otherwise no mesh is shown. `ep` uses
   ranks of the other axes and is separate: its size divides the world size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import numpy as np

from usp_prof.columns.table import Columns
from usp_prof.contract import Manifest
from usp_prof.model.topology import DATA_AXES, PARALLEL_AXES, Axis, AxisSource, Group, Topology, group_key
from usp_prof.tables.communication.posts import P2P
from usp_prof.tables.communication.unnamed_groups import TOGETHER_NS, refute_one_group
from usp_prof.tables.parallelism.axis_names import described


@dataclass(frozen=True, slots=True)
class Job:
    """Facts about the whole job other than its groups."""

    ranks: Sequence[int]
    """Ranks that were read."""
    world: int
    """Number of ranks of the job; -1 if unknown."""
    pipelines: Sequence[tuple[int, ...]] = ()
    """Sets of ranks that send to one another, if an inferred pipeline needs them."""

    @property
    def complete(self) -> bool:
        """Whether all ranks of the job were read."""
        return self.world == len(self.ranks)


def lay_out(groups: list[Group], job: Job, manifest: Manifest | None) -> tuple[Topology, str]:
    """Return the mesh from the manifest or from the groups, or the reason why there is none."""
    if manifest is not None and manifest.mesh:
        return _declared(groups, job.ranks, manifest), ""
    everyone = sorted({*job.ranks, *(rank for group in groups for rank in group.ranks)})
    groups_of_rank: dict[int, list[Group]] = {rank: [] for rank in everyone}
    for group in groups:
        if group.axis in PARALLEL_AXES and _sizes_axis(group):
            for rank in group.ranks:
                groups_of_rank[rank].append(group)
    # By rank and axis: the rank's coordinate and the axis' size, (-1, -1) if its groups contradict one another.
    places = {rank: _places(rank, groups_of_rank[rank], job) for rank in everyone}
    # All groups are known only for ranks that were read.
    sizes, reason = _sizes([places[rank] for rank in job.ranks], job.world if job.world > 0 else len(everyone))
    if reason:
        return Topology(groups=tuple(groups)), reason
    axes = {axis: size for axis, size in sizes.items() if size > 1}
    # A rank with some unknown coordinates gets none: a single file does not show those of other ranks.
    sizes_without_ep = {axis: size for axis, size in axes.items() if axis != Axis.EP}
    shown = {
        rank: MappingProxyType({axis: own[axis][0] for axis in axes if axis in own})
        for rank, own in places.items()
        if all(own.get(axis, (-1, -1))[1] == size for axis, size in sizes_without_ep.items())
    }
    if not axes and len(job.ranks) > 1:
        return Topology(groups=tuple(groups)), "no group shows a parallel axis"
    if _shared([{axis: own[axis] for axis in sizes_without_ep} for own in shown.values()]):
        return Topology(groups=tuple(groups)), f"several ranks share a place of the mesh {_product(axes)}"
    sources = [group.axis_source for group in groups if group.axis in axes]
    order = [source.value for source in AxisSource]
    weakest = max(sources, key=order.index, default=AxisSource.NONE.value)
    return Topology(MappingProxyType(axes), MappingProxyType(shown), tuple(groups), str(weakest)), ""


def _declared(groups: list[Group], ranks: Iterable[int], manifest: Manifest) -> Topology:
    ordered = manifest.axis_order or list(manifest.mesh)
    unordered = [name for name in manifest.mesh if name not in ordered]
    axes = {
        name: manifest.mesh[name]
        for name in [*ordered, *unordered]
        if name in [*Axis] and manifest.mesh.get(name, 1) > 1
    }
    places = {rank: MappingProxyType(dict(manifest.coordinates.get(str(rank), {}))) for rank in ranks}
    return Topology(MappingProxyType(axes), MappingProxyType(places), tuple(groups), AxisSource.MANIFEST.value)


def _places(rank: int, own: list[Group], job: Job) -> dict[str, tuple[int, int]]:
    """Return a rank's coordinate on each axis and the axis' size; (-1, -1) if its groups contradict one another."""
    context_groups = [set(group.ranks) for group in own if group.axis == Axis.CP]
    context: set[int] = max(context_groups, key=len, default=set())
    # By axis: the coordinate and size from each of the rank's groups; one of them if they agree.
    shown: dict[str, set[tuple[int, int]]] = {}
    for axis in PARALLEL_AXES:
        of_axis = [group for group in own if group.axis == axis]
        described_ones = [group for group in of_axis if group.axis_source == AxisSource.DESCRIPTION]
        # A group whose description names the axis has priority over inferred or marked ones.
        for group in described_ones or of_axis:
            ranks = _pipeline(rank, group, job) if axis == Axis.PP else group.ranks
            shown.setdefault(axis, set()).add(_place(rank, ranks, context if axis in DATA_AXES else set()))
    return {axis: places.pop() if len(places) == 1 else (-1, -1) for axis, places in shown.items()}


def _sizes_axis(group: Group) -> bool:
    """Return whether a group spans only its axis."""
    if group.axis_source == AxisSource.DESCRIPTION:
        return described(group.description).sizes
    return group.axis_source != AxisSource.RANKS


def _pipeline(rank: int, group: Group, job: Job) -> tuple[int, ...]:
    """Return the ranks of a rank's pipeline; none if unknown.

    An inferred pipeline may be one of several that share a group: then only the senders and receivers show its ranks.
    """
    if group.axis_source not in {AxisSource.INFERRED, AxisSource.MARK}:
        return group.ranks
    if not job.complete:
        return ()
    return next((ranks for ranks in job.pipelines if rank in ranks and set(ranks) <= set(group.ranks)), ())


def _place(rank: int, ranks: Sequence[int], context: set[int]) -> tuple[int, int]:
    """Return a rank's index among these ranks and their number, counted in whole context groups if they contain any.

    Rank 2 of ranks 0,1,2,3 has index 2 of 4; with its context group 2,3 among them, index 1 of 2.
    """
    if rank not in ranks:
        return -1, -1
    before = ranks[: ranks.index(rank)]
    if len(context) < 2 or not context <= set(ranks):
        return len(before), len(ranks)
    others_before = sum(other not in context for other in before)
    return others_before // len(context), len(ranks) // len(context)


def _sizes(places: Sequence[Mapping[str, tuple[int, int]]], world: int) -> tuple[dict[str, int], str]:
    """Return the size of each axis, or the reason why there is no mesh."""
    sizes_of_axis = {axis: {own[axis][1] for own in places if axis in own} for axis in PARALLEL_AXES}
    doubtful = [axis.value for axis, shown in sizes_of_axis.items() if len(shown) > 1 or -1 in shown]
    if doubtful:
        return {}, f"the groups do not tell one size of {', '.join(doubtful)}"
    sizes = {axis.value: shown.pop() for axis, shown in sizes_of_axis.items() if shown}
    parts = [sizes[axis] for axis in (Axis.DP_SHARD, Axis.DP_REPLICATE) if axis in sizes]
    if parts and sizes.get(Axis.DP, 1) in {1, prod(parts)}:
        sizes.pop(Axis.DP, None)
    factors = {axis: size for axis, size in sizes.items() if axis != Axis.EP and size > 1}
    experts = sizes.get(Axis.EP, 1)
    if experts > world or world % experts:
        return {}, f"ep {experts} does not divide the world of {world} ranks"
    if (factors or experts > 1) and prod(factors.values()) != world:
        size_text = _product(factors) or "none known"
        return {}, f"the sizes that the groups show ({size_text}) do not multiply to the world of {world} ranks"
    return sizes, ""


def _product(axes: Mapping[str, int]) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in axes.items())


def _shared(places: Sequence[Mapping[str, int]]) -> bool:
    return len({tuple(sorted(place.items())) for place in places}) < len(places)


def talking(parts: Mapping[int, Columns]) -> list[tuple[int, ...]]:
    """Return the sets of ranks that send to one another, directly or through others."""
    # By rank: the ranks connected to it so far. Connected ranks share one set.
    together = {rank: {rank} for rank in parts}
    for rank, columns in parts.items():
        peers = np.unique(columns["peer"][columns.matches("op", *P2P)])
        for peer in peers[peers >= 0].tolist():
            connected = together.setdefault(peer, {peer}) | together[rank]
            together.update(dict.fromkeys(connected, connected))
    return sorted({tuple(sorted(ranks)) for ranks in together.values() if len(ranks) > 1})


# Job group: the group of the whole job, if communication without a group can belong to no other.
#
# Kernels of old traces, and of libraries other than NCCL, name no group. They belong to the whole job if
#     - every group in the traces spans the job, or
#     - the job has two ranks, of which one was read, or
#     - all ranks were read, ran the same operations in order, and ended each of them together: members of a collective
#         leave it within microseconds, while two groups of half the job that do the same work drift apart. No late
#         rank may show the contrary.

_TOGETHER_ELSEWHERE_NS = 20_000
"""Like `TOGETHER_NS`, after the difference between two hosts' clocks is removed."""
_DEVICE_CLOCKS_NS = 2_000_000
"""Device timestamps are corrected to the host's clock to well below this."""
_OVERLAPPING = 0.8
"""Share of the collectives that overlap on two ranks; recordings of 4 to 8 ranks have 0.9 to 1."""
_PAIR = 2
_ALIGNMENTS = 64
"""Number of positions tried if one rank's recording is a section of another's."""


def job_group(
    parts: Mapping[int, Columns], groups: Iterable[Group], world: int, hosts: Mapping[int, str]
) -> Group | None:
    """Return the group of parts without a group."""
    bare = {rank: columns.take(columns.matches("group", "")) for rank, columns in parts.items()}
    has_transfers = any(columns.matches("op", *P2P).any() for columns in bare.values())
    size = len(parts) if world < 1 else world
    if size < 2 or not any(map(len, bare.values())) or has_transfers:
        return None
    everyone = tuple(range(size))
    rank_sets = {group.ranks for group in groups if group.size > 1}
    if rank_sets - {everyone}:
        return None
    if not rank_sets:
        # No group shows that the whole job communicates: use the ranks' operations.
        is_complete = len(parts) == size
        is_whole = _together(bare, hosts) and not refute_one_group(bare) if is_complete else size == _PAIR
        if not is_whole:
            return None
    return Group(group_key("", everyone), "", "", "", everyone, size)


def _together(bare: Mapping[int, Columns], hosts: Mapping[int, str]) -> bool:
    """Return whether all ranks ran the same operations at the same time. Unnamed hosts may be one host or several."""
    longest = max(bare, key=lambda rank: len(bare[rank]))
    host = hosts.get(longest, "")
    for rank, columns in bare.items():
        other_host = hosts.get(rank, "")
        possible = (host == other_host,) if host and other_host else (True, False)
        if not any(_tied(bare[longest], columns, same_host=same_host) for same_host in possible):
            return False
    return True


def _tied(longest: Columns, other: Columns, *, same_host: bool) -> bool:
    """Return whether a rank's operations are those of the longest recording, or a section of them, with the same ends.

    The median distance of the ends is the distance of the clocks, and is taken out first. On one host, only the
    timestamps of two devices can differ, and by little.
    """
    if not len(other):
        return False
    operations, other_operations = longest["op"].tolist(), other["op"].tolist()
    if other_operations != operations and sorted(other_operations) == sorted(operations):
        # Operations of different streams may start in another order. Those of one kind may not.
        longest, other = (
            columns.take(np.lexsort((columns["start_ns"], columns["op"]))) for columns in (longest, other)
        )
        operations = other_operations = longest["op"].tolist()
    start, end = longest["start_ns"], longest["start_ns"] + longest["dur_ns"]
    other_start, other_end = other["start_ns"], other["start_ns"] + other["dur_ns"]
    limit = TOGETHER_NS if same_host else _TOGETHER_ELSEWHERE_NS
    for place in _places_of_sequence(other_operations, operations):
        stretch = slice(place, place + len(other))
        offset_ns = other_end - end[stretch]
        clock = int(np.median(offset_ns))
        if same_host and abs(clock) > _DEVICE_CLOCKS_NS:
            continue
        last_start = np.maximum(other_start - clock, start[stretch])
        first_end = np.minimum(other_end - clock, end[stretch])
        # A member that arrives last runs for a few microseconds only, which is less than its timestamps' error.
        is_overlapping = last_start <= first_end + _TOGETHER_ELSEWHERE_NS
        if np.mean(is_overlapping) >= _OVERLAPPING and np.median(np.abs(offset_ns - clock)) <= limit:
            return True
    return False


def _places_of_sequence(sequence: list[str], operations: list[str]) -> list[int]:
    """Return the positions of a sequence of operations in a longer one, including overlapping ones.

    _places_of_sequence(["a", "b"], ["a", "b", "a", "b"]) == [0, 2]
    """
    pattern, text = f" {' '.join(sequence)} ", f" {' '.join(operations)} "
    # A look-ahead matches without consuming text, so positions may overlap.
    letters = [match.start() for match in re.finditer(f"(?={re.escape(pattern)})", text)][:_ALIGNMENTS]
    return [text[:letter].count(" ") for letter in letters]
