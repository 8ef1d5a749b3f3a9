"""Device of a process: shared GPUs, peaks, and kernels without dependencies."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from trainer import device as devices
from trainer.configuration.command_line import parse
from trainer.model.experts import multiplies_groups
from trainer.rules import resolve

GPU = torch.device("cuda", 0)


@pytest.mark.parametrize(("uuids", "gpus"), [("ab", 2), ("aa", 1), ("aabb", 2)])
def test_processes_count_their_gpus(monkeypatch: pytest.MonkeyPatch, uuids: str, gpus: int) -> None:
    store, counted = dist.HashStore(), []
    for rank in (*range(1, len(uuids)), 0):  # the last rank finds the reports of all others
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda _, rank=rank: SimpleNamespace(uuid=f"GPU-{uuids[rank]}")
        )
        if rank:
            store.set(f"gpu/{rank}", f"{devices.socket.gethostname()} GPU-{uuids[rank]}")
        else:
            counted.append(devices.count_gpus(store, rank, len(uuids), GPU))
    assert counted == [gpus]
    assert devices.count_gpus(store, 0, 2, torch.device("cpu")) == 0


@pytest.mark.parametrize(
    ("name", "arithmetic", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 4 * 989e12),
        ("NVIDIA H100 80GB HBM3", "fp8", 4 * 1979e12),
        ("NVIDIA H100 80GB HBM3", "fp32", 4 * 67e12),
        ("NVIDIA H100 PCIe", "bf16", 4 * 756e12),
        ("NVIDIA H100 80GB HBM3", "fp64", 0),
        ("Some GPU", "bf16", 0),
    ],
)
def test_the_peak_is_that_of_the_available_gpus(
    monkeypatch: pytest.MonkeyPatch, name: str, arithmetic: str, peak: float
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert devices.peak(resolve(parse(["--dtype", arithmetic]), 8), GPU, 4) == peak


def test_processes_share_the_peak_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    cpu = torch.device("cpu")
    machine_peak = devices.record.cpu_peak(torch.float32).flops
    assert devices.peak(resolve(parse([]), 8), cpu, 0) == 2 * machine_peak  # of two machines
    assert devices.claim_device("cpu") == cpu
    assert devices.memory(cpu) > 2**20


@pytest.mark.parametrize(
    ("capability", "dtype", "grouped"),
    [((9, 0), torch.bfloat16, True), ((9, 0), torch.float32, False), ((8, 0), torch.bfloat16, False)],
)
def test_grouped_products_run_in_one_kernel_if_that_needs_no_wait(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: torch.dtype, grouped: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    assert multiplies_groups(GPU, dtype) == grouped
