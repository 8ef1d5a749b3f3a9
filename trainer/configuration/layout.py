"""Layout: the sizes of the axes, and the coordinates of each rank.

Ranks are ordered ``pp x dp_replicate x dp_shard x cp x tp``. Tensor parallelism is innermost, because it communicates
most. Expert parallelism has no ranks of its own: it borrows ranks of ``dp_shard x cp x tp``, as in torchtitan.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

ORDER = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes of the axes, and the coordinates of every rank; needs no process group."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    ep_outer: bool = True
    """Whether the ranks of an expert group are distant (over dp first) or adjacent."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes in the order of `ORDER`."""
        return (self.pp, self.dp_replicate, self.dp_shard, self.cp, self.tp)

    @property
    def world(self) -> int:
        """Number of ranks."""
        return prod(self.sizes)

    @property
    def dp(self) -> int:
        """All data-parallel ranks, replicated and sharded."""
        return self.dp_replicate * self.dp_shard

    @property
    def expert_pool(self) -> int:
        """Number of ranks per pipeline stage and replica that expert parallelism can borrow."""
        return self.dp_shard * self.cp * self.tp

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the coordinate of a rank on each axis, on dp as a whole, on ep, and on efsdp (the pool without ep)."""
        index, efsdp = rank % self.expert_pool, self.expert_pool // self.ep
        place = {}
        for name, size in zip(reversed(ORDER), reversed(self.sizes), strict=True):
            rank, place[name] = divmod(rank, size)
        place["dp"] = place["dp_replicate"] * self.dp_shard + place["dp_shard"]
        place["ep"], place["efsdp"] = divmod(index, efsdp) if self.ep_outer else reversed(divmod(index, self.ep))
        return place

    def groups(self, *varying: str) -> list[list[int]]:
        """Partition the world into groups whose members differ only in the `varying` coordinates."""
        fixed = {"pp", "dp_replicate", *(("ep", "efsdp") if set(varying) & {"ep", "efsdp"} else ORDER)} - set(varying)
        members: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.world):
            place = self.coordinates(rank)
            members.setdefault(tuple(place[axis] for axis in sorted(fixed)), []).append(rank)
        return list(members.values())

    def axes(self) -> dict[str, int]:
        """Return the axes of the manifest: `dp` unless it is split, and `ep` if it borrows ranks."""
        dp = {"dp": self.dp}
        if self.dp_replicate > 1:
            dp = {"dp_replicate": self.dp_replicate, "dp_shard": self.dp_shard}
        return {"pp": self.pp, **dp, "cp": self.cp, "tp": self.tp} | ({"ep": self.ep} if self.ep > 1 else {})

    def title(self) -> str:
        """Return the mesh as part of a folder's name: the axes above 1."""
        return "-".join(f"{axis}{size}" for axis, size in self.axes().items() if size > 1) or "single"

    def __str__(self) -> str:
        sizes = " x ".join(f"{axis} {size}" for axis, size in self.axes().items() if size > 1 and axis != "ep")
        return (sizes or "one process") + (f", ep {self.ep} borrowed" if self.ep > 1 else "")
