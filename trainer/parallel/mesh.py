"""Which process groups is this rank in, and what does each serve? Opened on all ranks in one order."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from trainer.parallel.layout import ORDER, Layout
from usp_prof import record

if TYPE_CHECKING:
    from trainer.injection import Faults


@dataclass(frozen=True, slots=True)
class Group:
    """One process group of this rank; `handle` is `None` while nobody asked for it."""

    name: str
    axes: tuple[str, ...]
    ranks: tuple[int, ...]
    rank: int
    handle: dist.ProcessGroup | None
    delay: float = 0.0
    """Seconds that each message waits before it leaves (a fault)."""

    def leave(self) -> None:
        """Stand in a slow network interface, where one is injected."""
        if self.delay:
            with record.mark("fault", "slow_link"):
                time.sleep(self.delay)

    @property
    def size(self) -> int:
        """How many ranks are in it."""
        return len(self.ranks)


SERVED: dict[str, tuple[str, ...]] = {
    "pp": ("pp",),
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
        cls, layout: Layout, rank: int, wanted: set[str], timeout: timedelta | None = None, faults: Faults | None = None
    ) -> Mesh:
        """Open the wanted groups on all ranks, in one order; the others stay closed: each costs sockets and threads."""
        groups = {}
        for name, varying in SERVED.items():
            partition = layout.groups(*varying)
            mine = next(ranks for ranks in partition if rank in ranks)
            axes = served_axes(name, layout)
            handle, delay = None, 0.0
            if name in wanted:
                # The description is what a trace says of the group; the experts' data parallelism says that it is.
                served = {"log": ["log"], "efsdp": ["efsdp"], "edata": ["efsdp"]}.get(name, axes)
                title = "_".join(["mesh", *served])
                handle, _ = dist.new_subgroups_by_enumeration(partition, timeout=timeout, group_desc=title)
                delay = faults.opened(axes) if faults else 0.0
            groups[name] = Group(name, axes, tuple(mine), mine.index(rank), handle, delay)
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
