"""Device: the GPU or CPU of this process, its peak and its memory."""

from __future__ import annotations

import os
import resource
import socket

import torch
import torch.distributed as dist

from trainer.configuration.config import Config
from usp_prof import record
from usp_prof.model import hardware


def claim_device(kind: str) -> torch.device:
    """Return this process's GPU, or the CPU."""
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    # Create the device's context in autograd's thread; without it, the first product there warns.
    torch.ones(1, device=device, requires_grad=True).sum().backward()
    return device


def count_gpus(store: dist.Store, rank: int, world: int, device: torch.device) -> int:
    """Count the GPUs of all processes; each publishes its GPU, because a process may not see those of others."""
    if device.type == "cpu":
        return 0
    store.set(f"gpu/{rank}", f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}")
    return len(set(store.multi_get([f"gpu/{rank_number}" for rank_number in range(world)])))


def multiplies_in_fp8() -> bool:
    """Return whether this GPU supports fp8 products (Ada, Hopper or later)."""
    return torch.cuda.get_device_capability() >= (8, 9)


def peak(config: Config, device: torch.device, gpus: int) -> float:
    """Return the FLOP/s of all ranks together; 0 if unknown. Processes on one CPU share its peak."""
    if device.type == "cpu":
        machines = config.layout.world / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return record.cpu_peak(config.compute).flops * machines
    gpu, precision = hardware.find(torch.cuda.get_device_name(device)), hardware.precision(config.options.dtype)
    return gpu.peak(precision) * gpus if gpu and precision else 0.0


def memory_capacity(kind: str) -> int:
    """Return the memory in bytes of this process's GPU, or of the machine."""
    if kind == "cuda":
        return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def rank_memory(kind: str) -> float:
    """Return the memory in bytes that a rank may use: processes on one CPU share the machine's."""
    return memory_capacity(kind) / (1 if kind == "cuda" else int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def memory(device: torch.device) -> int:
    """Return this process's peak memory in bytes: on its GPU, or resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
