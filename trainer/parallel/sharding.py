"""How are weights themselves sharded (ZeRO-2, ZeRO-3, hybrid)? By PyTorch's FSDP2, one unit a layer.

ZeRO-3 frees a layer's weights after its forward and gathers them again for backward; ZeRO-2 keeps them from forward to
backward. With prefetch a layer's gather is issued while the one before it computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from trainer.model.decoder import Decoder
from trainer.model.experts import ExpertWeights
from trainer.parallel.data import Slice, kind
from trainer.parallel.mesh import Group, Mesh
from trainer.torch_private import all_gather_single, gather_asynchronously, reduce_scatter_single


class Sharded:
    """ZeRO-2 and ZeRO-3 over the model chunks of this rank."""

    def __init__(
        self, chunks: dict[int, Decoder], mesh: Mesh, compute: torch.dtype, *, free_after_forward: bool, prefetch: bool
    ) -> None:
        self.mesh, self.chunks, self.free_after_forward = mesh, chunks, free_after_forward
        self.units: dict[int, list[FSDPModule]] = {}
        self.kinds: list[tuple[str, nn.Parameter, str]] = []
        device = next(iter(chunks.values())).rotary.device.type
        dense = _device_mesh(mesh, mesh["fsdp"], device)
        experts = _device_mesh(mesh, mesh["efsdp"], device) if mesh["efsdp"].handle is not None else dense
        policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.promote_types(compute, torch.float32))
        for chunk, module in chunks.items():
            kinds = {name: kind(parameter) for name, parameter in module.named_parameters()}
            options = {"mp_policy": policy, "reshard_after_forward": free_after_forward}
            for layer in module.layers.values():
                if isinstance(getattr(layer.ffn, "weights", None), ExpertWeights):
                    fully_shard(layer.ffn.weights, mesh=experts, **options)
                fully_shard(layer, mesh=dense, **options)
            fully_shard(module, mesh=dense, **options)
            self.units[chunk] = [unit for unit in module.modules() if isinstance(unit, FSDPModule)]
            for unit in self.units[chunk]:
                unit.set_gradient_divide_factor(1.0)
                unit.set_force_sum_reduction_for_comms(enable=True)
                group = mesh["efsdp"] if isinstance(unit, ExpertWeights) and experts is not dense else mesh["fsdp"]
                if group.delay:
                    unit.set_custom_all_gather(SlowAllGather(group))
                    unit.set_custom_reduce_scatter(SlowReduceScatter(group))
            if prefetch:
                _prefetch(module)
            self.kinds += [(name, parameter, kinds[name]) for name, parameter in module.named_parameters()]
        self.local = [parameter.to_local().detach() for _, parameter, _ in self.kinds]

    def slices(self) -> list[Slice]:
        """Give this rank's shards as plain tensors that share their memory."""
        replicas, tp = self.mesh.layout.dp_replicate, self.mesh["tp"].size
        return [
            Slice(name, local, replicas * (tp if which == "partial" else 1))
            for (name, _, which), local in zip(self.kinds, self.local, strict=True)
        ]

    def begin(self, chunk: int, *, last: bool) -> None:
        """Reduce gradients in the last backward only."""
        self.chunks[chunk].set_is_last_backward(last)
        self.chunks[chunk].set_requires_gradient_sync(last)

    def begin_half(self, chunk: int) -> None:
        """Gather all that was freed: torch looks for the weights of a chunk before it runs the hooks that gather them.

        Weights that are not there then get no gradient, and nothing says so.
        """
        if self.free_after_forward:
            for unit in self.units[chunk]:
                unit.unshard()

    def end(self, chunk: int) -> None:
        """Free the weights again, which torch's pipelines keep; gradients stay until they are summed."""
        if self.free_after_forward:
            for unit in self.units[chunk]:
                unit.reshard()

    def finish(self) -> None:
        """Add what tensor-parallel ranks have of the weights that see slices of the sequence."""
        tp = self.mesh["tp"]
        for (_, parameter, which), local in zip(self.kinds, self.local, strict=True):
            grad = parameter.grad.to_local()
            if which == "partial" and tp.size > 1 and grad.numel():
                dist.all_reduce(grad, group=tp.handle)
            local.grad = grad

    def publish(self) -> None:
        """Drop gradients; FSDP2 gathers from the updated shards when it needs them."""
        for (_, parameter, _), local in zip(self.kinds, self.local, strict=True):
            parameter.grad = local.grad = None


class _Slow:
    """FSDP2's own message over a slow link (a fault)."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Make room for a message, as FSDP2 asks."""
        return torch.empty(*size, dtype=dtype, device=device)


class SlowAllGather(_Slow):
    """A gather of weights that leaves late."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        *,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Gather."""
        self.group.leave()
        return all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)


class SlowReduceScatter(_Slow):
    """A sum of gradients that leaves late."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp,
        *,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Reduce and scatter."""
        self.group.leave()
        return reduce_scatter_single(output_tensor, input_tensor, op=op, group=group, async_op=async_op)


def _device_mesh(mesh: Mesh, shard: Group, device: str) -> DeviceMesh:
    """Wrap the groups that we opened ourselves; a mesh that opens its own would open one for every axis."""
    replicas = mesh["dp_replicate"]
    if replicas.size == 1:
        return DeviceMesh.from_group(shard.handle, device, mesh_dim_names=("dp_shard",))
    span = _members(replicas, shard)
    groups = [replicas.handle, shard.handle]
    return DeviceMesh.from_group(groups, device, mesh=span, mesh_dim_names=("dp_replicate", "dp_shard"))


def _members(replicas: Group, shard: Group) -> torch.Tensor:
    """Lay out the ranks of all replicas, one row each; replicas stand a constant stride apart."""
    stride = replicas.ranks[1] - replicas.ranks[0]
    offsets = [(index - replicas.rank) * stride for index in range(replicas.size)]
    return torch.tensor([[rank + offset for rank in shard.ranks] for offset in offsets])


def _prefetch(module: Decoder) -> None:
    """Issue each layer's gather one layer ahead, both ways; on a GPU FSDP2 has a stream of its own for it."""
    layers = list(module.layers.values())
    if module.rotary.device.type == "cpu":
        for unit in (module, *layers):
            gather_asynchronously(unit)
    if layers:
        module.set_modules_to_forward_prefetch(layers[:1])
    for one, following in pairwise(layers):
        one.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([one])
