"""How large is each axis, and where on it is each rank? As the manifest declares, else as the groups show."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.axis import PARALLEL_AXES, Axis, AxisSource
from usp_prof.model.topology import Group, Topology
from usp_prof.tables.posts import P2P

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from usp_prof.contract import Manifest
    from usp_prof.tables.columns import Columns


def lay_out(
    groups: list[Group], ranks: list[int], manifest: Manifest | None, talking: Sequence[tuple[int, ...]] = ()
) -> Topology:
    """Lay out the mesh: as the manifest declares it, else as the groups show it.

    `talking` are the ranks that send to one another. Pipelines may do that in a group that spans several of them.
    """
    if manifest is not None and manifest.mesh:
        names = manifest.axis_order or list(manifest.mesh)
        extra = [name for name in manifest.mesh if name not in names]
        axes = {n: manifest.mesh[n] for n in [*names, *extra] if n in [*Axis] and manifest.mesh.get(n, 1) > 1}
        places = {rank: MappingProxyType(dict(manifest.coordinates.get(str(rank), {}))) for rank in ranks}
        return Topology(MappingProxyType(axes), MappingProxyType(places), tuple(groups), AxisSource.MANIFEST.value)
    everyone = sorted({*ranks, *(rank for group in groups for rank in group.ranks)})
    found = {rank: _coordinates(rank, groups, talking) for rank in everyone}
    sized = {axis.value: 1 + max((place.get(axis, 0) for place in found.values()), default=0) for axis in PARALLEL_AXES}
    axes = {axis: size for axis, size in sized.items() if size > 1}
    shown = {rank: MappingProxyType({a: p for a, p in place.items() if a in axes}) for rank, place in found.items()}
    sources = [group.axis_source for group in groups if group.axis in axes]
    order = [source.value for source in AxisSource]
    weakest = max(sources, key=order.index, default=AxisSource.NONE.value)
    return Topology(MappingProxyType(axes), MappingProxyType(shown), tuple(groups), weakest)


def _coordinates(rank: int, groups: list[Group], talking: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """Find a rank's place on each axis: its place within its largest group of the axis.

    Sharding may run over the context axis too (fsdp = dp_shard x cp): its groups then hold whole context groups, and
    the place on the data axis counts those.
    """
    own: dict[str, tuple[int, ...]] = {}
    for group in groups:
        if rank in group.ranks and group.axis in PARALLEL_AXES and len(group.ranks) > len(own.get(group.axis, ())):
            own[group.axis] = group.ranks
            if group.axis == Axis.PP and group.axis_source == AxisSource.INFERRED:
                within = [pipeline for pipeline in talking if rank in pipeline and set(pipeline) < set(group.ranks)]
                own[group.axis] = within[0] if within else group.ranks
    found = {axis: ranks.index(rank) for axis, ranks in own.items()}
    context = set(own.get(Axis.CP, ()))
    for axis in (Axis.DP, Axis.DP_SHARD):
        ranks = own.get(axis, ())
        if len(context) > 1 and context <= set(ranks):
            found[axis] = sum(other not in context for other in ranks[: ranks.index(rank)]) // len(context)
    return found


def talking(parts: Mapping[int, Columns]) -> list[tuple[int, ...]]:
    """Find the sets of ranks that send to one another, directly or through others."""
    together = {rank: {rank} for rank in parts}
    for rank, columns in parts.items():
        peers = np.unique(columns["peer"][columns.matches("op", *P2P)])
        for peer in peers[peers >= 0].tolist():
            joined = together.setdefault(peer, {peer}) | together[rank]
            together.update(dict.fromkeys(joined, joined))
    return sorted({tuple(sorted(each)) for each in together.values() if len(each) > 1})
