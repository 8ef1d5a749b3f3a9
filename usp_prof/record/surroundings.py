"""Surroundings of this process: rank, host, device, software."""

from __future__ import annotations

import os
import platform
import socket
from dataclasses import dataclass
from importlib import metadata

import torch
import torch.distributed as dist

_PACKAGES = ("usp-prof", "transformers", "lightning", "accelerate", "deepspeed", "torchtitan", "megatron-core")
CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Place:
    """Which process this is: its rank among `world`, its host, and the device that it computes on."""

    rank: int
    world: int
    host: str
    device: str
    device_key: str
    """Tells the devices of one host apart, so that processes that share one can be counted."""
    devices_per_node: int
    processes_here: int
    """Processes of this job on this host, as far as torchrun says so."""


def find_place() -> Place:
    """Find out where this process runs; rank and world come from the process group, else from torchrun's variables."""
    ready = dist.is_available() and dist.is_initialized()
    rank = dist.get_rank() if ready else int(os.environ.get("RANK", "0"))
    world = dist.get_world_size() if ready else int(os.environ.get("WORLD_SIZE", "1"))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if uses_cuda():
        index = torch.cuda.current_device()
        uuid = getattr(torch.cuda.get_device_properties(index), "uuid", index)
        name = torch.cuda.get_device_name(index)
        return Place(rank, world, socket.gethostname(), name, str(uuid), torch.cuda.device_count(), here)
    return Place(rank, world, socket.gethostname(), CPU, CPU, 1, here)


def uses_cuda() -> bool:
    """Whether this process computes on a GPU: one is there and has been taken up."""
    return torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def software() -> dict[str, str]:
    """Give the versions that decide what a trace looks like."""
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
