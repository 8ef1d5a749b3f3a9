"""Surroundings of this process: rank, host, device and software, its place in the mesh, the axes of its groups.

Axes come from the actual group objects. A mesh dimension that spans the whole world *is* the default group, and two
groups may have the same ranks for different axes. So neither descriptions nor rank lists determine the axis.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from itertools import product
from math import prod
from numbers import Integral

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from usp_prof.contract import GroupEntry
from usp_prof.record import _torch_private

_PACKAGES = ("usp-prof", "transformers", "lightning", "accelerate", "deepspeed", "torchtitan", "megatron-core")
CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Place:
    """Identity of this process: its rank among `world`, its host, and its device."""

    rank: int
    world: int
    host: str
    device: str
    device_key: str
    """Identifies the device on its host, so that processes that share a device can be counted."""
    devices_per_node: int
    processes_here: int
    """Number of this job's processes on this host, according to torchrun."""


def find_place() -> Place:
    """Determine where this process runs; rank and world come from the process group, else from torchrun's variables."""
    ready = dist.is_available() and dist.is_initialized()
    rank = dist.get_rank() if ready else int(os.environ.get("RANK", "0"))
    world = dist.get_world_size() if ready else int(os.environ.get("WORLD_SIZE", "1"))
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if uses_cuda():
        index = torch.cuda.current_device()
        uuid = getattr(torch.cuda.get_device_properties(index), "uuid", index)
        name = torch.cuda.get_device_name(index)
        return Place(rank, world, socket.gethostname(), name, str(uuid), torch.cuda.device_count(), local_world)
    return Place(rank, world, socket.gethostname(), CPU, CPU, 1, local_world)


def uses_cuda() -> bool:
    """Return whether this process computes on a GPU: one exists and is initialized."""
    return torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def software() -> dict[str, str]:
    """Return the versions of software that affects the trace."""
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


# Place of this rank in the mesh, and the axes that each process group serves.


MeshLike = DeviceMesh | Mapping[str, int] | Sequence[DeviceMesh] | None
GroupsLike = Mapping[str | tuple[str, ...], "dist.ProcessGroup | Sequence[dist.ProcessGroup] | None"]

_DESCRIPTION_PREFIX = "mesh_"


@dataclass(slots=True)
class Topology:
    """The mesh, the coordinates known to this rank, and the groups that it belongs to."""

    mesh: dict[str, int] = field(default_factory=dict)
    coordinates: dict[int, dict[str, int]] = field(default_factory=dict)
    groups: list[GroupEntry] = field(default_factory=list)


def survey(
    mesh: MeshLike, groups: GroupsLike | None, coordinates: Mapping[str, int] | None, rank: int, world: int
) -> Topology:
    """Determine what this rank can know about the job's mesh and groups."""
    topology = Topology()
    served: dict[str, list[str]] = {}
    if isinstance(mesh, Mapping):
        topology.mesh = {str(axis): int(size) for axis, size in mesh.items()}
        topology.coordinates = row_major(topology.mesh, world)
    else:
        for device_mesh in _meshes(mesh):
            _read_mesh(device_mesh, topology, served)
    for axes, group in (groups or {}).items():
        for process_group in _one_or_more(group):
            _serve(served, process_group, (axes,) if isinstance(axes, str) else axes)
    if coordinates is not None:
        topology.coordinates.setdefault(rank, {}).update(coordinates)
    topology.groups = [_entry(group, served) for group in _all_groups(groups)]
    return topology


def check_mesh(mesh: object, groups: object = None, coordinates: Mapping[str, int] | None = None) -> None:
    """Raise `TypeError` or `ValueError` unless `survey` can read this mesh, these groups and coordinates."""
    parts = [] if mesh is None else mesh if isinstance(mesh, (list, tuple)) else [mesh]
    sizes = mesh if isinstance(mesh, Mapping) else {}
    is_sizes = isinstance(mesh, Mapping) and all(
        isinstance(axis, str) and axis and isinstance(size, Integral) and not isinstance(size, bool)
        for axis, size in mesh.items()
    )
    if not is_sizes and not all(isinstance(part, DeviceMesh) for part in parts):
        raise TypeError(f"mesh is a DeviceMesh, a list of them or sizes by axis such as {{'dp': 8}}, not {mesh!r}")
    for axis, size in sizes.items():
        if size < 1:
            raise ValueError(f"mesh has axis {axis} of size {size}; the minimum is 1")
    for axis, index in (coordinates or {}).items():
        if not 0 <= index < sizes.get(axis, index + 1):
            size = f", and mesh has size {sizes[axis]}" if axis in sizes else ""
            raise ValueError(f"coordinates[{axis!r}] counts from 0 and is {index}{size}")
    if any(isinstance(part, DeviceMesh) and part.mesh_dim_names is None for part in parts):
        raise ValueError("the device mesh has no dimension names; give it mesh_dim_names, for example ('dp', 'tp')")
    is_mapping = isinstance(groups, Mapping) and all(
        isinstance(axes, (str, tuple)) and not isinstance(group, str) for axes, group in groups.items()
    )
    if groups is not None and not is_mapping:
        raise TypeError(f"groups is a mapping from axes to process groups, not {groups!r}")


def misfit(mesh: Mapping[str, int], world: int) -> str:
    """Return why the job cannot have a mesh of these sizes, or an empty string.

    A mesh may cover some axes only, so its size must divide the world size. Experts use the ranks of other axes.
    """
    size = prod(size for axis, size in mesh.items() if axis != "ep")
    if world % size == 0 and world % mesh.get("ep", 1) == 0:
        return ""
    sizes = " x ".join(f"{axis}={length}" for axis, length in mesh.items())
    return f"the mesh {sizes} does not fit a job of {world} process{'es' if world != 1 else ''}; it is left out"


def row_major(mesh: Mapping[str, int], world: int) -> dict[int, dict[str, int]]:
    """Return every rank's coordinates, the last axis varying fastest; none if the sizes do not match the world."""
    if not mesh or prod(mesh.values()) != world:
        return {}
    places = product(*map(range, mesh.values()))
    return {rank: dict(zip(mesh, place, strict=True)) for rank, place in enumerate(places)}


def _meshes(mesh: DeviceMesh | Sequence[DeviceMesh] | None) -> list[DeviceMesh]:
    if mesh is None:
        return []
    return [mesh] if isinstance(mesh, DeviceMesh) else list(mesh)


def _read_mesh(mesh: DeviceMesh, topology: Topology, served: dict[str, list[str]]) -> None:
    names = mesh.mesh_dim_names or ()
    for dimension, axis in enumerate(names):
        topology.mesh.setdefault(axis, mesh.mesh.size(dimension))
        if mesh.get_coordinate() is not None:
            _serve(served, mesh.get_group(axis), (axis,))
    for place in (mesh.mesh >= 0).nonzero().tolist():
        rank = int(mesh.mesh[tuple(place)])
        coordinates = topology.coordinates.setdefault(rank, {})
        for axis, index in zip(names, place, strict=True):
            coordinates.setdefault(axis, index)


def _one_or_more(group: dist.ProcessGroup | Sequence[dist.ProcessGroup] | None) -> list[dist.ProcessGroup]:
    if group is None:
        return []
    candidates: Iterable[object] = group if isinstance(group, (list, tuple)) else [group]
    return [candidate for candidate in candidates if isinstance(candidate, dist.ProcessGroup)]


def _serve(served: dict[str, list[str]], group: dist.ProcessGroup, axes: Iterable[str]) -> None:
    served_axes = served.setdefault(group.group_name, [])
    served_axes.extend(axis for axis in axes if axis not in served_axes)


def _all_groups(groups: GroupsLike | None) -> list[dist.ProcessGroup]:
    if not dist.is_available() or not dist.is_initialized():
        return []
    every = {group.group_name: group for group in _torch_private.local_groups()}
    for declared in (groups or {}).values():
        for group in _one_or_more(declared):
            every.setdefault(group.group_name, group)
    return list(every.values())


def _entry(group: dist.ProcessGroup, served: Mapping[str, list[str]]) -> GroupEntry:
    description = group.group_desc
    axes = list(served.get(group.group_name, ()))
    if not axes and description.startswith(_DESCRIPTION_PREFIX):
        axes = [description.removeprefix(_DESCRIPTION_PREFIX)]
    return GroupEntry(group.group_name, dist.get_process_group_ranks(group), axes, description)
