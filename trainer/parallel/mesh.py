"""Mesh: this rank's coordinates, and its process groups, which all ranks open in the same order.

Messages: none; every technique gets the group that it communicates in from here.
Called by: `run.py`, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from trainer.configuration.layout import ORDER, Layout
from trainer.parallel.collectives import Group, nothing

OpenLink = Callable[[tuple[str, ...]], Callable[[], None] | None]
"""Called when a group is opened, with the axes that it serves; returns what to call before each of its messages."""

SERVED: dict[str, tuple[str, ...]] = {
    "pp": ("pp",),
    "pp_backward": ("pp",),  # gradients between stages, which must not queue behind activations
    "tied": ("pp",),  # the first and the last stage, if both have the embedding
    "tp": ("tp",),
    "cp": ("cp",),
    "ep": ("ep",),
    "dp_replicate": ("dp_replicate",),
    "fsdp": ("dp_shard", "cp"),  # ranks that shard the same weights (ZeRO)
    "data": ("dp_replicate", "dp_shard", "cp"),  # ranks that have gradients of the same weights
    "efsdp": ("efsdp",),  # the same two groups for the weights of experts
    "edata": ("dp_replicate", "efsdp"),
    "log": ORDER,  # all ranks: gradient norm, loss and loads
}
"""The groups that a rank may be in, and the coordinates in which their members differ."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """This rank's coordinates and its groups."""

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
        """Open the wanted groups on all ranks, in the same order; others stay closed to save sockets and threads."""
        groups = {}
        for name, varying in SERVED.items():
            partition = layout.groups(*varying)
            if name == "tied":  # the first and the last stage alone; ranks between have no such group
                partition = [[ranks[0], ranks[-1]] for ranks in partition]
            members = next((ranks for ranks in partition if rank in ranks), [rank])
            axes = served_axes(name, layout)
            handle, before_message = None, nothing
            if name in wanted:
                # A trace shows this description of the group; it identifies the experts' data parallelism.
                served = {"log": ["log"], "efsdp": ["efsdp"], "edata": ["efsdp"]}.get(name, axes)
                title = "_".join(["mesh", *served])
                handle, _ = dist.new_subgroups_by_enumeration(partition, timeout=timeout, group_desc=title)
                before_message = (open_link(axes) if open_link else None) or nothing
            groups[name] = Group(name, axes, tuple(members), members.index(rank), handle, before_message)
        return cls(layout, rank, layout.coordinates(rank), groups)

    def open_groups(self) -> list[Group]:
        """Those of this rank's groups that have a process group."""
        return [group for group in self.groups.values() if group.handle is not None]


def served_axes(name: str, layout: Layout) -> tuple[str, ...]:
    """Return the mesh axes in which the members of a group differ, named as in the manifest."""
    if name in {"log", "ep"}:
        return ("world",) if name == "log" else ("ep",)
    places = [layout.coordinates(rank) for rank in layout.groups(*SERVED[name])[0]]
    varying = [axis for axis in ORDER if len({place[axis] for place in places}) > 1]
    return tuple("dp" if axis == "dp_shard" and layout.dp_replicate == 1 else axis for axis in varying)
