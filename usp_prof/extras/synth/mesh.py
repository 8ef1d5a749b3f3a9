"""Mesh: the process groups of a synthetic run, and the clocks of its hosts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from usp_prof.columns.arrays import Ints
from usp_prof.extras.synth.declaration import Declaration, Mesh

AXES = ("pp", "dp", "cp", "tp")


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: name and description as in PyTorch, and its ranks."""

    name: str
    axis: str
    ranks: tuple[int, ...]

    @property
    def description(self) -> str:
        """Description by a device mesh."""
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
        group_of_axis: tuple[dict[str, Group], ...] = tuple({} for _ in range(self.mesh.world))
        for group in self.groups:
            for rank in group.ranks:
                group_of_axis[rank][group.axis] = group
        return group_of_axis

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return a rank's coordinate on each axis."""
        places = np.argwhere(self.grid == rank)[0]
        place_by_axis = {axis: int(place) for axis, place in zip(AXES, places, strict=True)}
        if self.mesh.ep > 1:
            place_by_axis["ep"] = self.by_rank[rank]["ep"].ranks.index(rank)
        return place_by_axis

    def stage_peer(self, rank: int, pipeline_rank: int) -> int:
        """Return the rank at another pipeline coordinate with the same other coordinates."""
        own = self.coordinates(rank)
        return int(self.grid[pipeline_rank, own["dp"], own["cp"], own["tp"]])


def _ranks(row: np.ndarray) -> tuple[int, ...]:
    return tuple(int(rank) for rank in row)


# Clocks: each host's time at a true time.


BASE_NS = 1_760_000_000_000_000_000
"""Wall time of the traces' base."""

START_NS = 60_000_000_000
"""Delay between the base and the run, so that no offset makes times negative."""


@dataclass(frozen=True, slots=True)
class HostClock:
    """One host's clock: true time, plus an offset at the start of the run, plus drift."""

    host: int
    offset_ns: int
    drift_ppm: float

    def local(self, true_ns: Ints) -> Ints:
        """Return the time of this clock since the base."""
        drift: Ints = np.rint(true_ns * self.drift_ppm * 1e-6).astype(np.int64)
        return true_ns + drift + (START_NS + self.offset_ns)


def clocks(run: Declaration) -> tuple[HostClock, ...]:
    """Return the host clock of each rank."""
    declared, hosts = run.clocks, -(-run.mesh.world // run.clocks.ranks_per_host)
    draw = np.random.default_rng([run.seed, 11])
    offsets = draw.integers(-declared.offset_bound_ns, declared.offset_bound_ns + 1, hosts)
    drifts = draw.uniform(-declared.drift_bound_ppm, declared.drift_bound_ppm, hosts)
    offsets[0], drifts[0] = 0, 0.0
    offsets[: len(declared.offset_ns)] = declared.offset_ns[:hosts]
    drifts[: len(declared.drift_ppm)] = declared.drift_ppm[:hosts]
    of_hosts = [HostClock(host, int(offsets[host]), float(drifts[host])) for host in range(hosts)]
    return tuple(of_hosts[rank // declared.ranks_per_host] for rank in range(run.mesh.world))
