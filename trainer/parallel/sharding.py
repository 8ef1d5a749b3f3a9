"""How are weights themselves sharded (ZeRO-2, ZeRO-3, hybrid)? By PyTorch's FSDP2, one unit a layer.

ZeRO-3 frees a layer's weights after its forward and gathers them again for backward; ZeRO-2 keeps them from forward to
backward. With prefetch a layer's gather is issued while the one before it computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from trainer.model.decoder import Decoder
from trainer.model.experts import Experts, ExpertWeights
from trainer.parallel.collectives import all_reduce
from trainer.parallel.data import Slice, kind
from trainer.parallel.mesh import Group, Mesh
from trainer.torch_private import all_gather_single, gather_asynchronously, reduce_scatter_single


class Sharded:
    """ZeRO-2 and ZeRO-3 over the model chunks of this rank."""

    def __init__(
        self, chunks: dict[int, Decoder], mesh: Mesh, compute: torch.dtype, *, free_after_forward: bool, prefetch: bool
    ) -> None:
        self.mesh, self.chunks, self.free_after_forward = mesh, chunks, free_after_forward
        self.parameters: list[tuple[nn.Parameter, bool]] = []
        """Each with whether its gradient is partial over tp."""
        policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.promote_types(compute, torch.float32))
        shard = partial(fully_shard, mp_policy=policy, reshard_after_forward=free_after_forward)
        device = next(iter(chunks.values())).rotary.device.type
        meshes = {name: _device_mesh(mesh, mesh[name], device) for name in ("fsdp", "efsdp") if mesh[name].handle}
        for module in chunks.values():
            kinds = {name: kind(parameter) for name, parameter in module.named_parameters()}
            for layer in module.layers.values():
                if isinstance(layer.ffn, Experts):
                    shard(layer.ffn.weights, mesh=meshes["efsdp"])
                shard(layer, mesh=meshes["fsdp"])
            shard(module, mesh=meshes["fsdp"])
            for unit in _units(module):
                unit.set_gradient_divide_factor(1.0)
                unit.set_force_sum_reduction_for_comms(enable=True)
                group = mesh["efsdp" if isinstance(unit, ExpertWeights) else "fsdp"]
                if group.delay:
                    unit.set_custom_all_gather(SlowMessage(group))
                    unit.set_custom_reduce_scatter(SlowMessage(group))
            if prefetch:
                _prefetch(module)
            self.parameters += [(one, kinds[name] == "partial") for name, one in module.named_parameters()]
        self.local = [parameter.to_local().detach() for parameter, _ in self.parameters]

    def slices(self) -> list[Slice]:
        """Give this rank's shards as plain tensors that share their memory."""
        replicas, tp = self.mesh.layout.dp_replicate, self.mesh["tp"].size
        return [
            Slice(local, replicas * (tp if summed else 1))
            for (_, summed), local in zip(self.parameters, self.local, strict=True)
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
            for unit in _units(self.chunks[chunk]):
                unit.unshard()

    def end(self, chunk: int) -> None:
        """Free the weights again, which torch's pipelines keep; gradients stay until they are summed."""
        if self.free_after_forward:
            for unit in _units(self.chunks[chunk]):
                unit.reshard()

    def finish(self) -> None:
        """Add what tensor-parallel ranks have of the weights that see slices of the sequence."""
        for (parameter, summed), local in zip(self.parameters, self.local, strict=True):
            local.grad = parameter.grad.to_local()
            if summed and local.numel():
                all_reduce(local.grad, self.mesh["tp"])

    def publish(self) -> None:
        """Drop gradients; FSDP2 gathers from the updated shards when it needs them."""
        for (parameter, _), local in zip(self.parameters, self.local, strict=True):
            parameter.grad = local.grad = None


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


def _prefetch(module: Decoder) -> None:
    """Issue each layer's gather one layer ahead, both ways; on a GPU FSDP2 has a stream of its own for it."""
    layers = list(module.layers.values())
    if module.rotary.device.type == "cpu":
        for unit in (module, *layers):
            gather_asynchronously(unit)
    module.set_modules_to_forward_prefetch(layers[:1])
    for one, following in pairwise(layers):
        one.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([one])
