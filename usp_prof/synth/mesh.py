"""Which ranks form which groups of the made-up run?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from usp_prof.synth.declaration import Mesh

AXES = ("pp", "dp", "cp", "tp")


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: the name and description that PyTorch would give it, and its ranks."""

    name: str
    axis: str
    ranks: tuple[int, ...]

    @property
    def description(self) -> str:
        """What a device mesh describes it as."""
        return "default_pg" if self.axis == "world" else f"mesh_{self.axis}"


class Topology:
    """Coordinates and groups of a mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.grid = np.arange(mesh.world).reshape(mesh.pp, mesh.dp, mesh.cp, mesh.tp)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """All groups, numbered as PyTorch numbers them: the default group, then axis by axis."""
        world = tuple(range(self.mesh.world))
        sets: list[tuple[str, tuple[int, ...]]] = [("world", world)]
        for place, axis in enumerate(AXES):
            if self.grid.shape[place] > 1:
                sets += [
                    (axis, _ranks(row)) for row in np.moveaxis(self.grid, place, -1).reshape(-1, self.grid.shape[place])
                ]
        if self.mesh.ep > 1:
            rows = self.grid.transpose(0, 3, 1, 2).reshape(-1, self.mesh.ep)
            sets += [("ep", _ranks(row)) for row in rows]
        return tuple(Group(str(number), axis, ranks) for number, (axis, ranks) in enumerate(sets))

    @cached_property
    def by_rank(self) -> tuple[dict[str, Group], ...]:
        """For each rank its group of each axis."""
        found: tuple[dict[str, Group], ...] = tuple({} for _ in range(self.mesh.world))
        for group in self.groups:
            for rank in group.ranks:
                found[rank][group.axis] = group
        return found

    def coordinates(self, rank: int) -> dict[str, int]:
        """Give a rank's place on each axis."""
        places = np.argwhere(self.grid == rank)[0]
        named = {axis: int(place) for axis, place in zip(AXES, places, strict=True)}
        if self.mesh.ep > 1:
            named["ep"] = self.by_rank[rank]["ep"].ranks.index(rank)
        return named

    def stage_peer(self, rank: int, pipeline_rank: int) -> int:
        """Give the rank at another place of the pipeline with the same other coordinates."""
        own = self.coordinates(rank)
        return int(self.grid[pipeline_rank, own["dp"], own["cp"], own["tp"]])


def _ranks(row: np.ndarray) -> tuple[int, ...]:
    return tuple(int(rank) for rank in row)
