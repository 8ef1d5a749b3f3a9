"""How is a model sharded by PyTorch's FSDP2 (`fully_shard`) recorded? The mesh is read off its parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Unpack

import torch.distributed as dist
from torch.distributed.tensor import DTensor

from usp_prof.record.session import session as plain_session

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from usp_prof.record.options import Options
    from usp_prof.record.session import Session

_UNNAMED = {1: ("dp_shard",), 2: ("dp_replicate", "dp_shard")}
"""What the dimensions of a mesh without names are: `fully_shard` makes such a mesh when it is given none."""


@dataclass(slots=True)
class Layout:
    """The mesh that a module is spread over: sizes, this rank's place, and the group of each dimension."""

    mesh: dict[str, int] = field(default_factory=dict)
    coordinates: dict[str, int] = field(default_factory=dict)
    groups: dict[str | tuple[str, ...], dist.ProcessGroup] = field(default_factory=dict)


def layout_of(module: torch.nn.Module) -> Layout:
    """Read the layout off the module's distributed parameters; data parallelism over the world where there are none."""
    layout = Layout()
    for parameter in module.parameters():
        if isinstance(parameter, DTensor):
            _add(layout, parameter.device_mesh)
    if not layout.mesh and dist.is_initialized() and dist.group.WORLD is not None:
        layout.mesh, layout.coordinates = {"dp": dist.get_world_size()}, {"dp": dist.get_rank()}
        layout.groups = {"dp": dist.group.WORLD}
    return layout


def session(folder: str | Path, module: torch.nn.Module, **options: Unpack[Options]) -> Session:
    """Record a loop that trains `module`; as `usp_prof.record.session`, the mesh and the groups found by themselves."""
    layout = layout_of(module)
    options.setdefault("coordinates", layout.coordinates)
    return plain_session(folder, mesh=layout.mesh, groups=layout.groups, model=_config(module), **options)


def _add(layout: Layout, mesh: DeviceMesh) -> None:
    names = mesh.mesh_dim_names or _UNNAMED.get(mesh.ndim, ())
    place = mesh.get_coordinate()
    for dimension, name in enumerate(names):
        layout.mesh.setdefault(name, mesh.size(dimension))
        layout.groups.setdefault(name, mesh.get_group(dimension))
        if place is not None:
            layout.coordinates.setdefault(name, place[dimension])


def _config(module: torch.nn.Module) -> object:
    return getattr(module, "config", None)
