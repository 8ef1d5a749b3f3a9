"""Topology: the parallel axes, each rank's place on them, and the process groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class Axis(StrEnum):
    """A parallel axis of the mesh, or what a group is when it is none."""

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
    """How a group came to its axis, most trusted first (see the definitions)."""

    DESCRIPTION = "description"
    MANIFEST = "manifest"
    RANKS = "ranks"
    MARK = "mark"
    INFERRED = "inferred"
    NONE = "none"


PARALLEL_AXES = (Axis.DP, Axis.DP_REPLICATE, Axis.DP_SHARD, Axis.TP, Axis.CP, Axis.PP, Axis.EP)
"""The axes of a mesh, in the order in which screens show them."""


NO_RANKS: tuple[int, ...] = ()
Coordinates = Mapping[str, int]


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """One process group: identified by its name and its ranks together."""

    key: str
    name: str = ""
    description: str = ""
    backend: str = ""
    ranks: tuple[int, ...] = NO_RANKS
    size: int = -1
    axis: str = "unknown"
    axis_source: str = "none"
    axis_reason: str = ""
    """Why an inferred axis is what it is; empty for any other."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The layout of a run, as far as the traces and the manifest tell."""

    axes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Size of each axis that is larger than one, in the order of the mesh (or of the screens, when inferred)."""
    coordinates: Mapping[int, Coordinates] = field(default_factory=lambda: MappingProxyType({}))
    """Place of each rank on each axis; empty when it cannot be known."""
    groups: tuple[Group, ...] = ()
    source: str = "none"
    """manifest, description, inferred or none: the weakest source that an axis rests on."""

    def __reduce__(self) -> tuple[type[Topology], tuple[object, ...]]:
        """Carry plain mappings: a read-only view of one cannot be pickled."""
        places = {rank: dict(place) for rank, place in self.coordinates.items()}
        return Topology, (dict(self.axes), places, self.groups, self.source)

    def group(self, key: str) -> Group | None:
        """Find a group by its key."""
        return next((group for group in self.groups if group.key == key), None)

    def axis_groups(self, axis: str) -> tuple[Group, ...]:
        """Give the groups of one axis."""
        return tuple(group for group in self.groups if group.axis == axis)


def group_key(name: str, ranks: tuple[int, ...]) -> str:
    """Name a group: its name and its ranks, since neither alone tells groups apart."""
    return f"{name}@{','.join(map(str, ranks))}"
