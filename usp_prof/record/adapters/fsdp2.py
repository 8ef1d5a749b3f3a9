"""PyTorch FSDP2 (`fully_shard`): the mesh is read from the module's parameters.

One line: `with fsdp2.session("traces/my-run", model, sequence=4096, micro_batch_tokens=8192) as session:`
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Unpack

import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from usp_prof.record.options import Options
from usp_prof.record.session import Session
from usp_prof.record.session import session as plain_session

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

_AXES_OF_DIMENSION: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **{axis: (axis,) for axis in ("dp", "dp_replicate", "dp_shard", "tp", "cp", "pp", "ep")},
        "fsdp": ("dp_shard",),
        "efsdp": ("dp_shard",),
        "data_parallel": ("dp_shard",),
        "tensor_parallel": ("tp",),
        "sp": ("cp",),
        "dp_shard_cp": ("dp_shard", "cp"),
        "dp_cp": ("dp", "cp"),
    }
)
"""Mesh dimensions of torchtitan, transformers, accelerate and Lightning; accelerate's `sp` is Ulysses: context."""

_ONE_BATCH = ("tp", "cp", "pp")
"""Axes whose ranks share one micro-batch; ranks along every other axis have their own."""


@dataclass(slots=True)
class Layout:
    """Mesh of a module: sizes, this rank's place, and the group of each axis or product of axes."""

    mesh: dict[str, int] = field(default_factory=dict)
    coordinates: dict[str, int] = field(default_factory=dict)
    groups: dict[str | tuple[str, ...], dist.ProcessGroup] = field(default_factory=dict)


def layout_of(module: torch.nn.Module) -> Layout:
    """Read the layout from the module's distributed parameters; without any, it is data parallelism over the world."""
    layout, is_distributed = Layout(), False
    is_fully_sharded = any(isinstance(part, FSDPModule) for part in module.modules())
    for parameter in module.parameters():
        if isinstance(parameter, DTensor):
            is_distributed = True
            mesh = parameter.device_mesh
            # Without a mesh argument, `fully_shard` creates one without names; so does tensor parallelism without
            # FSDP2.
            unnamed = ("dp_shard",) if is_fully_sharded and mesh.ndim == 1 else ()
            add_mesh(layout, mesh, mesh.mesh_dim_names or unnamed)
    if not (layout.mesh or layout.groups or is_distributed):
        add_world(layout)
    return layout


def layout_of_mesh(mesh: DeviceMesh) -> Layout:
    """Read the layout from a named mesh of the whole job."""
    layout = Layout()
    add_mesh(layout, mesh, mesh.mesh_dim_names or ())
    return layout


def add_mesh(layout: Layout, mesh: DeviceMesh, names: Iterable[str]) -> None:
    """Add a mesh's dimensions; a flattened one (`dp_shard_cp`) adds its group, but no sizes."""
    place = mesh.get_coordinate()
    for dimension, name in enumerate(names):
        axes = _AXES_OF_DIMENSION.get(name, (name,))
        layout.groups.setdefault(axes[0] if len(axes) == 1 else axes, mesh.get_group(dimension))
        if len(axes) == 1:
            layout.mesh.setdefault(axes[0], mesh.size(dimension))
            if place is not None:
                layout.coordinates.setdefault(axes[0], place[dimension])


def add_world(layout: Layout) -> None:
    """Add data parallelism over the whole job."""
    if dist.is_initialized() and dist.group.WORLD is not None:
        layout.mesh, layout.coordinates = {"dp": dist.get_world_size()}, {"dp": dist.get_rank()}
        layout.groups = {"dp": dist.group.WORLD}


def batches_at_once(mesh: Mapping[str, int], world: int) -> int:
    """Return the number of micro-batches that the job computes concurrently; 0 if the mesh does not cover the world."""
    # Expert parallelism uses the ranks of other axes.
    sizes = {axis: size for axis, size in mesh.items() if axis != "ep"}
    if prod(sizes.values()) != world:
        return 0
    return prod(size for axis, size in sizes.items() if axis not in _ONE_BATCH)


def session(folder: str | Path, module: torch.nn.Module, **options: Unpack[Options]) -> Session:
    """Record a loop that trains `module`, like `usp_prof.record.session`, with the mesh and groups detected.

    With `micro_batch_tokens` (of one rank's forward pass; the whole sequence if ranks share it) the tokens per step
    follow from the mesh and `gradient_accumulation`.
    """
    layout = layout_of(module)
    options.setdefault("coordinates", layout.coordinates)
    world = dist.get_world_size() if dist.is_initialized() else 1
    passes = max(1, options.get("gradient_accumulation", 0), options.get("micro_batches", 0))
    tokens = options.get("micro_batch_tokens", 0) * passes * batches_at_once(layout.mesh, world)
    if tokens:
        options.setdefault("tokens_per_step", tokens)
    return plain_session(folder, mesh=layout.mesh, groups=layout.groups, model=model_of(module), **options)


def model_of(module: torch.nn.Module) -> object:
    """Return the configuration of a module, also inside a wrapper such as DDP's, or `None`."""
    inner = getattr(module, "module", None)
    return getattr(module, "config", None) or getattr(inner, "config", None)
