"""Mesh: the coordinates of each rank (`Layout`), and the process groups that this rank is in (`Mesh`).

Ranks are laid out ``pp x dp_replicate x dp_shard x cp x tp``, tensor parallelism innermost because it talks most.
Expert parallelism has no ranks of its own: it borrows them from ``dp_shard x cp x tp`` (torchtitan's rule).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from math import prod

import torch.distributed as dist

from usp_prof import record

Hold = Callable[[], None]
"""Holds back the message that is posted next (a fault)."""
OpenLink = Callable[[tuple[str, ...]], Hold | None]
"""Called when a group is opened, with the axes that it serves; `None` where messages leave at once."""
ORDER = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes of the axes, and from them the coordinates of every rank; needs no process group."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    ep_outer: bool = True
    """Whether neighbours in an expert group lie far apart (over dp first) instead of next to each other."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes in the order of `ORDER`."""
        return (self.pp, self.dp_replicate, self.dp_shard, self.cp, self.tp)

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return prod(self.sizes)

    @property
    def dp(self) -> int:
        """All data-parallel ranks, replicated and sharded."""
        return self.dp_replicate * self.dp_shard

    @property
    def expert_pool(self) -> int:
        """How many ranks of one pipeline stage and replica expert parallelism may borrow."""
        return self.dp_shard * self.cp * self.tp

    def coordinates(self, rank: int) -> dict[str, int]:
        """Give the place of a rank on each axis; `dp` counts replicas and shards, `efsdp` is what `ep` leaves."""
        index, efsdp = rank % self.expert_pool, self.expert_pool // self.ep
        place = {}
        for name, size in zip(reversed(ORDER), reversed(self.sizes), strict=True):
            rank, place[name] = divmod(rank, size)
        place["dp"] = place["dp_replicate"] * self.dp_shard + place["dp_shard"]
        place["ep"], place["efsdp"] = divmod(index, efsdp) if self.ep_outer else reversed(divmod(index, self.ep))
        return place

    def groups(self, *varying: str) -> list[list[int]]:
        """Partition the world into the groups whose members differ in the `varying` coordinates only."""
        fixed = {"pp", "dp_replicate", *(("ep", "efsdp") if set(varying) & {"ep", "efsdp"} else ORDER)} - set(varying)
        members: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.world):
            place = self.coordinates(rank)
            members.setdefault(tuple(place[axis] for axis in sorted(fixed)), []).append(rank)
        return list(members.values())

    def axes(self) -> dict[str, int]:
        """Give the mesh as the manifest names it: `dp` unless it is split, and `ep` where ranks are borrowed."""
        dp = {"dp": self.dp}
        if self.dp_replicate > 1:
            dp = {"dp_replicate": self.dp_replicate, "dp_shard": self.dp_shard}
        return {"pp": self.pp, **dp, "cp": self.cp, "tp": self.tp} | ({"ep": self.ep} if self.ep > 1 else {})

    def title(self) -> str:
        """Name the mesh in a folder's name: the axes above one."""
        return "-".join(f"{axis}{size}" for axis, size in self.axes().items() if size > 1) or "single"

    def __str__(self) -> str:
        sizes = " x ".join(f"{axis} {size}" for axis, size in self.axes().items() if size > 1 and axis != "ep")
        return (sizes or "one process") + (f", ep {self.ep} borrowed" if self.ep > 1 else "")


# Process groups: opened on all ranks in one order.


@dataclass(frozen=True, slots=True)
class Group:
    """One process group of this rank; `handle` is `None` while nobody asked for it."""

    name: str
    axes: tuple[str, ...]
    ranks: tuple[int, ...]
    rank: int
    handle: dist.ProcessGroup | None
    hold: Hold | None = None

    def leave(self) -> None:
        """Say that a message is posted: a slow link, where one is injected, holds it back on its way."""
        if self.hold is not None:
            with record.mark("fault", "slow_link"):
                self.hold()

    @property
    def size(self) -> int:
        """How many ranks are in it."""
        return len(self.ranks)


SERVED: dict[str, tuple[str, ...]] = {
    "pp": ("pp",),
    "tied": ("pp",),
    "tp": ("tp",),
    "cp": ("cp",),
    "ep": ("ep",),
    "dp_replicate": ("dp_replicate",),
    "fsdp": ("dp_shard", "cp"),
    "data": ("dp_replicate", "dp_shard", "cp"),
    "efsdp": ("efsdp",),
    "edata": ("dp_replicate", "efsdp"),
    "log": ORDER,
}
"""The groups that a rank may be in, and the coordinates in which their members differ."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """This rank's place and its groups."""

    layout: Layout
    rank: int
    place: dict[str, int]
    groups: dict[str, Group]

    def __getitem__(self, name: str) -> Group:
        return self.groups[name]

    @classmethod
    def build(
        cls,
        layout: Layout,
        rank: int,
        wanted: set[str],
        timeout: timedelta | None = None,
        open_link: OpenLink | None = None,
    ) -> Mesh:
        """Open the wanted groups on all ranks, in one order; the others stay closed: each costs sockets and threads."""
        groups = {}
        for name, varying in SERVED.items():
            partition = layout.groups(*varying)
            if name == "tied":  # the first and the last stage alone; ranks between have no such group
                partition = [[ranks[0], ranks[-1]] for ranks in partition]
            mine = next((ranks for ranks in partition if rank in ranks), [rank])
            axes = served_axes(name, layout)
            handle, hold = None, None
            if name in wanted:
                # The description is what a trace says of the group; the experts' data parallelism says that it is.
                served = {"log": ["log"], "efsdp": ["efsdp"], "edata": ["efsdp"]}.get(name, axes)
                title = "_".join(["mesh", *served])
                handle, _ = dist.new_subgroups_by_enumeration(partition, timeout=timeout, group_desc=title)
                hold = open_link(axes) if open_link else None
            groups[name] = Group(name, axes, tuple(mine), mine.index(rank), handle, hold)
        return cls(layout, rank, layout.coordinates(rank), groups)

    def open_groups(self) -> list[Group]:
        """Those of this rank's groups that have a process group."""
        return [group for group in self.groups.values() if group.handle is not None]


def served_axes(name: str, layout: Layout) -> tuple[str, ...]:
    """Name the mesh axes in which the members of a group really differ, as the manifest does."""
    if name in {"log", "ep"}:
        return ("world",) if name == "log" else ("ep",)
    places = [layout.coordinates(rank) for rank in layout.groups(*SERVED[name])[0]]
    varying = [axis for axis in ORDER if len({place[axis] for place in places}) > 1]
    return tuple("dp" if axis == "dp_shard" and layout.dp_replicate == 1 else axis for axis in varying)
