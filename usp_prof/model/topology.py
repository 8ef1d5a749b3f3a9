"""Topology: parallel axes, the position of each rank, and process groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class Axis(StrEnum):
    """A parallel axis of the mesh, or the kind of a group that has none."""

    DP = "dp"
    DP_REPLICATE = "dp_replicate"
    DP_SHARD = "dp_shard"
    TP = "tp"
    CP = "cp"
    PP = "pp"
    EP = "ep"
    WORLD = "world"
    UNKNOWN = "unknown"


class AxisSource(StrEnum):
    """How the axis of a group is known, most trusted first (see the definitions)."""

    DESCRIPTION = "description"
    MANIFEST = "manifest"
    RANKS = "ranks"
    MARK = "mark"
    INFERRED = "inferred"
    NONE = "none"


PARALLEL_AXES = (Axis.DP, Axis.DP_REPLICATE, Axis.DP_SHARD, Axis.TP, Axis.CP, Axis.PP, Axis.EP)
"""Axes of a mesh, in display order."""
DATA_AXES = (Axis.DP, Axis.DP_REPLICATE, Axis.DP_SHARD)
"""Axes whose ranks do the same work with other data, and share gradients."""


def data_degree(sizes: Mapping[str, int]) -> int:
    """Return the number of ranks that do the same work with other data, from the sizes of a mesh's axes."""
    return sizes.get(Axis.DP, 0) or sizes.get(Axis.DP_REPLICATE, 1) * sizes.get(Axis.DP_SHARD, 1)


NO_RANKS: tuple[int, ...] = ()
Coordinates = Mapping[str, int]


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """One process group, identified by name and ranks together."""

    key: str
    name: str = ""
    description: str = ""
    backend: str = ""
    ranks: tuple[int, ...] = NO_RANKS
    size: int = -1
    axis: str = "unknown"
    axis_source: str = "none"
    axis_reason: str = ""
    """Reason for an inferred axis; otherwise empty."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Layout of a run, as far as traces and manifest show it."""

    axes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Size of each axis above one, in mesh order (in display order if inferred)."""
    coordinates: Mapping[int, Coordinates] = field(default_factory=lambda: MappingProxyType({}))
    """Position of each rank on each axis; empty if unknown."""
    groups: tuple[Group, ...] = ()
    source: str = "none"
    """manifest, description, inferred or none: the weakest source of any axis."""

    def __reduce__(self) -> tuple[type[Topology], tuple[object, ...]]:
        """Pickle plain mappings: a read-only view cannot be pickled."""
        places = {rank: dict(place) for rank, place in self.coordinates.items()}
        return Topology, (dict(self.axes), places, self.groups, self.source)

    def group(self, key: str) -> Group | None:
        """Return a group by its key."""
        return next((group for group in self.groups if group.key == key), None)

    def axis_groups(self, axis: str) -> tuple[Group, ...]:
        """Return the groups of one axis."""
        return tuple(group for group in self.groups if group.axis == axis)


def group_key(name: str, ranks: tuple[int, ...]) -> str:
    """Return the key of a group: its name and ranks, since neither alone is unique."""
    return f"{name}@{','.join(map(str, ranks))}"


def ranks_in_key(key: str) -> tuple[int, ...]:
    """Return the ranks in the key of a group; empty if it has none."""
    return tuple(int(rank) for rank in key.rpartition("@")[2].split(",") if rank.isdigit())
