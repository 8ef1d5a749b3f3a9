"""What does the planner know of the machine? Peaks, memory and links, and how much of each training reaches."""

from __future__ import annotations

from dataclasses import dataclass

from usp_prof.model.errors import UsageError
from usp_prof.model.hardware import DEVICES, Device, find

DEVICES_PER_NODE = 8
EFFICIENCY = 0.88
"""Of the dense peak that a large matrix product reaches alone: 0.89 on H100, 0.85 to 0.90 on A100 (9,240 measured
shapes of each); what training reaches of it is the trainer's profile."""
LINK_SHARE = 0.75
"""Of a link's rate that a ring of eight reaches: 336 of 450 GB/s on H100, 205 of 300 on A100, 617 of 900 on B200."""
NETWORK_RATE = 50e9
"""Bytes per second and direction of one device's share of the network: a 400 Gb/s card each."""
NETWORK_OF_LINK = {"NVLink2": 12.5e9, "NVLink3": 25e9, "PCIe3": 3e9, "PCIe4": 12.5e9, "PCIe5": 25e9}
"""A device's share of the cards that nodes of older generations come with: a DGX A100 has 200 Gb/s for each."""
NODE_OF_DEVICE = {"GB200": 72, "GB300": 72}
"""Devices that share one NVLink domain where it is more than a box of eight."""
NODE_LATENCY_NS, NETWORK_LATENCY_NS = 4_000, 40_000
"""What a step of a ring costs whatever its size. Between nodes: all-gathers of 256 MB over 16 to 512 H100 (Ultra-Scale
Playbook) take their bytes over the cards' rate and 40 microseconds a member."""
MEMORY_SHARE = 0.8
"""Of the device's memory that a plan may use; none of 454 runs beneath it ran out (Fujii et al., arXiv 2411.06465)."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices and what joins them; rates per second and device, one direction."""

    device: str
    peak_flops: float
    memory_bytes: float
    memory_rate: float
    link_rate: float
    network_rate: float = NETWORK_RATE
    devices_per_node: int = DEVICES_PER_NODE
    efficiency: float = EFFICIENCY
    link_share: float = LINK_SHARE
    memory_share: float = MEMORY_SHARE
    node_latency_ns: float = NODE_LATENCY_NS
    network_latency_ns: float = NETWORK_LATENCY_NS
    basis: str = "assumed"

    @property
    def room_bytes(self) -> float:
        """What a plan may fill."""
        return self.memory_bytes * self.memory_share


def of_device(name: str, dtype: str = "bf16") -> Cluster:
    """Describe a cluster of a device that the hardware table knows."""
    device = find(name)
    if device is None:
        known = ", ".join(sorted(each.name for each in DEVICES))
        raise UsageError(f"the hardware table has no device {name!r}", hint=f"it has {known}")
    peak = _peak(device, dtype)
    if not peak:
        raise UsageError(f"no source gives {device.name} a peak for {dtype}", hint="choose another --dtype")
    return Cluster(
        device.name,
        peak,
        device.memory_bytes,
        device.memory_rate,
        device.link_rate or NETWORK_RATE,
        network_rate=NETWORK_OF_LINK.get(device.link, NETWORK_RATE),
        devices_per_node=NODE_OF_DEVICE.get(device.name, DEVICES_PER_NODE),
    )


def _peak(device: Device, dtype: str) -> float:
    return {"bf16": device.bf16, "fp16": device.fp16, "fp8": device.fp8, "fp32": device.tf32 or device.fp32}.get(
        dtype, 0.0
    )
