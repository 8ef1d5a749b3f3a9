"""Sharded weights: ZeRO-2, ZeRO-3 and hybrid sharding by PyTorch's FSDP2, one unit a layer.

ZeRO-3 frees a layer's weights after its forward and gathers them again for backward; ZeRO-2 keeps them from forward to
backward. With prefetch a layer's gather is issued while the one before it computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from trainer.foundation.torch_private import (
    all_gather_single,
    gather_asynchronously,
    reduce_gradients,
    reduce_scatter_single,
)
from trainer.parallel.collectives import all_reduce_together
from trainer.parallel.mesh import Group, Mesh
from trainer.parallel.placement import Box, Sizes, boxes_of_rows
from trainer.parallel.slices import Slice, room_on_host
from trainer.parallel.stage import Stage
from trainer.parallel.weights import Note, fill, note_of


@dataclass(frozen=True, slots=True)
class Shard:
    """This rank's rows of a parameter, as FSDP2 cuts it."""

    parameter: nn.Parameter
    """A DTensor."""
    note: Note
    boxes: list[Box]
    """None, or one: the last ranks may have no rows left."""
    local: torch.Tensor
    """The rows: a plain tensor that shares the parameter's memory."""
    part: Slice
    """The same as the optimizer has it."""


class Sharded:
    """ZeRO-2 and ZeRO-3 over the model chunks of this rank."""

    def __init__(
        self,
        chunks: dict[int, Stage],
        mesh: Mesh,
        compute: torch.dtype,
        *,
        free_after_forward: bool,
        prefetch: bool,
        on_host: bool = False,
    ) -> None:
        """`on_host` says where the masters live; FSDP2's own shards, which it gathers from, stay on the device."""
        self.mesh, self.chunks, self.free_after_forward, self.on_host = mesh, chunks, free_after_forward, on_host
        policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.promote_types(compute, torch.float32))
        shard = partial(fully_shard, mp_policy=policy, reshard_after_forward=free_after_forward)
        device = next(iter(chunks.values())).rotary.device
        meshes = {name: _device_mesh(mesh, mesh[name], device.type) for name in ("fsdp", "efsdp") if mesh[name].handle}
        self.shards: list[Shard] = []
        for module in chunks.values():
            # FSDP2 replaces the parameters and knows nothing of what is noted on them.
            papers = {name: (note_of(paper), tuple(paper.shape)) for name, paper in module.named_parameters()}
            experts = _expert_modules(module)
            for layer in module.layers.values():
                for inner in layer.modules():
                    if inner in experts:
                        shard(inner, mesh=meshes["efsdp"])
                shard(layer, mesh=meshes["fsdp"])
            shard(module, mesh=meshes["fsdp"])
            for unit in _units(module):
                unit.set_gradient_divide_factor(1.0)
                unit.set_force_sum_reduction_for_comms(enable=True)
                group = mesh["efsdp" if unit in experts else "fsdp"]
                if group.hold is not None:
                    unit.set_custom_all_gather(SlowMessage(group))
                    unit.set_custom_reduce_scatter(SlowMessage(group))
            if prefetch:
                _prefetch(module)
            module.to_empty(device=device)  # so far everything was on paper; this allocates this rank's shards
            for buffer in module.buffers():
                buffer.zero_()
            for name, parameter in module.named_parameters():
                self.shards.append(self._shard(name, parameter, *papers[name]))

    def _shard(self, name: str, parameter: nn.Parameter, note: Note, part: Sizes) -> Shard:
        """Find this rank's rows of a parameter, and let them begin as its note says."""
        group = self.mesh["efsdp" if note.kind == "expert" else "fsdp"]
        boxes = boxes_of_rows(name, note.placement, part, shard_rows(part[0], group.size, group.rank))
        local = parameter.to_local().detach()  # type: ignore[operator] # a DTensor
        fill(local, boxes, {name: note})
        master = local
        if self.on_host:
            master = room_on_host(local, local.dtype)
            fill(master, boxes, {name: note})
        replicas, tp = self.mesh.layout.dp_replicate, self.mesh["tp"].size
        others = {"partial": tp, "copied": tp, "tied": 2}.get(note.kind, 1)
        part = Slice(master, local, replicas * others, boxes, note.kind == "tied", note.stored)
        return Shard(parameter, note, boxes, local, part)

    def slices(self) -> list[Slice]:
        """Give this rank's shards."""
        return [shard.part for shard in self.shards]

    def begin(self, chunk: int, *, last: bool) -> None:
        """Reduce gradients in the last backward only."""
        self.chunks[chunk].set_is_last_backward(last)
        self.chunks[chunk].set_requires_gradient_sync(last)
        # ZeRO-2 keeps the weights until they change.
        self.chunks[chunk].set_reshard_after_backward(self.free_after_forward or last)

    def take(self, chunk: int, *, last: bool) -> None:
        """Reduce gradients after the last W: FSDP2 does so by itself in a backward only, and a W is none."""
        if last:
            reduce_gradients(self.chunks[chunk])

    def finish(self) -> None:
        """Add what tensor-parallel ranks have of the weights that see slices of the sequence, in one message."""
        for shard in self.shards:
            shard.part.gradient = shard.parameter.grad.to_local()  # type: ignore[union-attr] # a DTensor
        partial_sums = [shard.part for shard in self.shards if shard.note.kind == "partial" and shard.boxes]
        all_reduce_together([part.gradient for part in partial_sums], self.mesh["tp"])

    def publish(self) -> None:
        """Drop gradients; FSDP2 gathers from the updated shards when it needs them."""
        for shard in self.shards:
            shard.parameter.grad = shard.part.gradient = None


class SlowMessage:
    """FSDP2's own gather of weights, or sum of gradients, over a slow link (a fault)."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Make room for a message, as FSDP2 asks."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        **how: Any,  # noqa: ANN401 - as FSDP2 has it
    ) -> dist.Work | None:
        """Leave late; a sum says which `op`, a gather has none."""
        self.group.leave()
        send = reduce_scatter_single if "op" in how else all_gather_single
        return send(output_tensor, input_tensor, **how)


def shard_rows(rows: int, size: int, rank: int) -> range:
    """Give the rows that FSDP2 leaves a rank: equal parts, rounded up, so that the last ranks may have fewer."""
    part = -(-rows // size)
    return range(min(rank * part, rows), min((rank + 1) * part, rows))


def _expert_modules(module: nn.Module) -> set[nn.Module]:
    """Find the modules that hold nothing but routed experts: these are sharded over fewer ranks than the rest."""
    kinds = {
        part: {note_of(parameter).kind for parameter in part.parameters(recurse=False)} for part in module.modules()
    }
    return {part for part, kinds_of_part in kinds.items() if kinds_of_part == {"expert"}}


def _units(module: nn.Module) -> list[FSDPModule]:
    return [unit for unit in module.modules() if isinstance(unit, FSDPModule)]


def _device_mesh(mesh: Mesh, shard: Group, device: str) -> DeviceMesh:
    """Wrap the groups that we opened ourselves; a mesh that opens its own would open one for every axis."""
    replicas = mesh["dp_replicate"]
    if replicas.size == 1:
        return DeviceMesh.from_group(shard.handle, device, mesh_dim_names=("dp_shard",))
    # One row for each replica; replicas stand a constant stride apart.
    span = [[rank + other - replicas.ranks[replicas.rank] for rank in shard.ranks] for other in replicas.ranks]
    groups = [replicas.handle, shard.handle]
    return DeviceMesh.from_group(groups, device, mesh=span, mesh_dim_names=("dp_replicate", "dp_shard"))


def _prefetch(module: Stage) -> None:
    """Issue each layer's gather one layer ahead, both ways; on a GPU FSDP2 has a stream of its own for it."""
    layers = list(module.layers.values())
    if module.rotary.device.type == "cpu":
        for unit in (module, *layers):
            gather_asynchronously(unit)
    module.set_modules_to_forward_prefetch(layers[:1])
    for one, following in pairwise(layers):
        one.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([one])
