"""What does the planner know of the machine? Peaks, memory and links, and how much of each training reaches."""

from __future__ import annotations

from dataclasses import dataclass

from usp_prof.model.errors import UsageError
from usp_prof.model.hardware import DEVICES, Device, find

DEVICES_PER_NODE = 8
EFFICIENCY = 0.5
"""Of the dense peak that a layer reaches, all its kernels together, where no recording says better."""
LINK_SHARE = 0.8
"""Of a link's rate that large messages reach: NCCL's bus bandwidth on NVLink over the link's figure."""
NETWORK_RATE = 50e9
"""Bytes per second and direction of one device's share of the network: a 400 Gb/s card each."""
NODE_LATENCY_NS, NETWORK_LATENCY_NS = 5_000, 15_000
"""What a hop of a collective costs whatever its size, inside a node and between nodes."""
MEMORY_SHARE = 0.8
"""Of the device's memory that a plan may use; none of 454 runs beneath it ran out (Fujii et al., arXiv 2411.06465)."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices and what joins them; rates per second and device, one direction.

    `host_layer_ns` is how long the host takes to launch forward and backward of one layer: no layer is faster.
    """

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
    host_layer_ns: float = 0.0
    basis: str = "assumed"

    @property
    def flops(self) -> float:
        """What a device is taken to reach."""
        return self.peak_flops * self.efficiency

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
    return Cluster(device.name, peak, device.memory_bytes, device.memory_rate, device.link_rate)


def _peak(device: Device, dtype: str) -> float:
    return {"bf16": device.bf16, "fp16": device.fp16, "fp8": device.fp8, "fp32": device.tf32 or device.fp32}.get(
        dtype, 0.0
    )
