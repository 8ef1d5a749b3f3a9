"""Cluster: peaks, memory and links of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from usp_prof.model.errors import UsageError
from usp_prof.model.hardware import Device, Precision, device_by_name

DEVICES_PER_NODE = 8
EFFICIENCY = 0.75
"""Share of the dense peak that a large matrix product reaches, if it was not measured."""
REACHED = {
    ("A100 SXM 80GB", "bf16"): 271.2, ("A100 SXM 40GB", "bf16"): 271.2, ("A100 PCIe 80GB", "bf16"): 252.9,
    ("H100 SXM", "bf16"): 794.5, ("H100 SXM", "fp8"): 1402.6, ("H200 SXM", "bf16"): 794.5, ("H200 SXM", "fp8"): 1453.4,
    ("GH200 144GB", "bf16"): 828.6, ("GH200 144GB", "fp8"): 1535.0, ("B200 SXM", "bf16"): 1745.0,
    ("B200 SXM", "fp8"): 3432.5, ("B300 SXM", "bf16"): 1769.0, ("B300 SXM", "fp8"): 3353.3, ("GB200", "bf16"): 1822.0,
    ("GB200", "fp8"): 3615.6, ("MI300X", "bf16"): 668.4, ("MI325X", "bf16"): 784.9, ("MI355X", "bf16"): 1565.0,
    ("Gaudi2", "bf16"): 418.7, ("Gaudi2", "fp8"): 826.5, ("Gaudi3", "bf16"): 1243.0, ("Gaudi3", "fp8"): 1289.5,
    # The same chips with other links or memory: A800 like A100, H800 like H100.
    ("A800 SXM 80GB", "bf16"): 271.2, ("H800 SXM", "bf16"): 794.5, ("H800 SXM", "fp8"): 1402.6,
    ("GH200 96GB", "bf16"): 828.6, ("GH200 96GB", "fp8"): 1535.0,
    ("MI300A", "bf16"): 504.2,  # 228 of the MI300X's 304 compute units
    # Estimated, not measured: cards limited to 5/7 of the power keep about 0.82 of the clock. They are an H100 SXM of
    # 500 W instead of 700, and an MI355X of 1,000 W instead of 1,400.
    ("H100 96GB HBM2e", "bf16"): 650.0, ("H100 96GB HBM2e", "fp8"): 1150.0, ("MI350X", "bf16"): 1283.0,
}  # fmt: skip
"""TFLOP/s of the fastest matrix product measured (stas00/ml-engineering, MAMF table, 744d01e)."""
SUSTAINED = dict.fromkeys((("B200 SXM", "bf16"), ("B200 SXM", "fp16")), 0.488 * 2250)
"""TFLOP/s of products with shapes from training, if these were measured rather than the fastest product.

B200: 514 shapes on an 8-GPU node, mean 48.8% of the peak, standard deviation 7.8 (MooreThreads/SimuMax, 4dcaae513).
"""
BLACKWELL = ("B200 SXM", "GB200", "B300 SXM", "GB300")
BLACKWELL_CORE, BLACKWELL_MEMORY = 0.43, 0.8
"""SimuMax's measurements on B200, for devices of the same generation.

Attention kernels reach 0.87 (forward) and 0.73 (backward) of the peak over all FLOP of 4,096 tokens, thus 0.43 over a
long causal mask's. Memory reaches 66.6% of 8 TB/s, 0.8 of the rate assumed by `rest_scale`.
"""
BLACKWELL_SUSTAINED = 0.8
"""Share of the fastest product that training sustains on Blackwell: chosen with rows of DGXC, Bridge and MLPerf."""
CORE_SHARE = 0.43
"""Share of the fastest product's rate that attention reaches on other devices, by causal FLOP: fitted."""
DRIVER_MIB = {
    "V100 SXM2": 32_768, "A100 SXM 80GB": 81_920, "A100 PCIe 80GB": 81_920, "A100 SXM 40GB": 40_960,
    "A100 PCIe 40GB": 40_960, "A800 SXM 80GB": 81_920, "H100 SXM": 81_559, "H100 PCIe": 81_559, "H800 SXM": 81_559,
    "H200 SXM": 143_771, "H100 96GB HBM2e": 97_871, "GH200 96GB": 97_871, "B200 SXM": 183_359, "B300 SXM": 275_040,
    "GB200": 189_471, "GB300": 284_208, "MI300X": 196_592,
    "MI325X": 262_128, "MI350X": 294_896, "MI355X": 294_896,
}  # fmt: skip
"""Memory that the driver reports (`nvidia-smi`, `rocm-smi`), in MiB; data sheets round it to GB."""
WIDER = {"fp16": "bf16", "fp8": "bf16", "fp4": "fp8"}
"""Type whose share of the peak holds for another one that was not measured on the device: the chip is limited alike."""
NARROW = ("fp8", "fp4")
"""Types of products with which attention's core and the head keep 16 bits."""
LINK_SHARE = 0.75
"""Share of a link's rate that a ring of eight reaches: 336 of 450 GB/s (H100), 205 of 300 (A100), 617 of 900 (B200)."""
NETWORK_RATE = 50e9
"""Bytes per second and direction of one device's share of the network: a 400 Gb/s card each."""
LEAST_NETWORK = 1e-6
"""Minimum network rate in GB/s: at less than a kilobyte per second, a step is too long for a finite number."""
NETWORK_OF_LINK = {"NVLink2": 12.5e9, "NVLink3": 25e9, "PCIe3": 3e9, "PCIe4": 12.5e9, "PCIe5": 25e9}
"""Network rate per device in nodes of older generations: a DGX A100 has 200 Gb/s per device."""
NODE_OF_DEVICE = {"GB200": 72, "GB300": 72}
"""Devices per NVLink domain, if more than a box of eight."""
DEVICES_OF_HOST = {"GB200": 4, "GB300": 4}
"""Devices per host, if fewer than share an NVLink domain."""
HOST_OF_LINK = {
    "NVLink2": (12e9, 256e9 / 8), "PCIe3": (12e9, 256e9 / 8), "NVLink3": (25e9, 410e9 / 8), "PCIe4": (25e9, 410e9 / 8),
}  # fmt: skip
"""Older hosts: bytes per second between device and host, and a device's share of the host's memory rate.

PCIe of 16 lanes reaches about 0.8 of its rate. Nodes of two sockets have six channels of DDR4-2666 each (DGX-2), or
eight of DDR4-3200 (DGX A100).
"""
HOST = (50e9, 614e9 / 8)
"""The same rates for a node with PCIe 5 and eight channels of DDR5-4800 on each of two sockets."""
HOST_OF_DEVICE = {"GH200 144GB": (450e9, 500e9), "GH200 96GB": (450e9, 500e9), "GB200": (225e9, 250e9),
                  "GB300": (225e9, 250e9)}  # fmt: skip
"""The same rates for devices in a package with their host: NVLink-C2C and LPDDR5X; two GB200 share one host."""
HOST_SHARE = 0.45
"""Share of the host memory's rate that Adam on a CPU reaches: 4.5 billion weights of 28 bytes per second on a DGX-2
(1 billion in 0.22 s, ZeRO-Offload, arXiv 2101.06840, table of CPU-Adam), whose sockets read 256 GB/s."""
NODE_LATENCY_NS, NETWORK_LATENCY_NS = 4_000, 10_000
"""Latency per ring step inside a node (nccl-tests of 2 to 8 H100: 1 to 4 microseconds, including the start of the
call), and between nodes on InfiniBand; a slower network is in its trainer's profile."""
MEMORY_SHARE = 0.92
"""Share of the driver's memory that tensors can fill. The rest is the CUDA context, NCCL's buffers and fragments:
6.4 GiB of an H100's 80. There the playbook's sweep has as many runs that are refused as failures that are accepted."""
MOST_RESERVED = (1 - MEMORY_SHARE) * DRIVER_MIB["H100 SXM"] * 2**20
"""Bytes that are left out of larger devices: context and buffers do not grow with the memory."""
PRODUCT_BYTES = {"fp32": 4.0, "fp8": 1.0, "fp4": 0.5625}
"""Bytes of a value in the type of products, 2 where not listed; 16 values of fp4 share a scale of 1 byte."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices and their links; rates per second and device, in one direction."""

    device: str
    peak_flops: float
    memory_bytes: float
    memory_rate: float
    link_rate: float
    network_rate: float = NETWORK_RATE
    devices_per_node: int = DEVICES_PER_NODE
    efficiency: float = EFFICIENCY
    core_efficiency: float = CORE_SHARE * EFFICIENCY
    """Share of the peak that attention's core reaches over the FLOP of a causal mask."""
    link_share: float = LINK_SHARE
    memory_share: float = MEMORY_SHARE
    product_bytes: float = 2.0
    """Bytes per value in the type of products."""
    core_flops: float = 0.0
    """Peak of the type used for attention's core and the head; 0: `peak_flops`."""
    node_latency_ns: float = NODE_LATENCY_NS
    network_latency_ns: float = NETWORK_LATENCY_NS
    host_link_rate: float = HOST[0]
    host_memory_rate: float = HOST[1] * HOST_SHARE
    basis: str = "assumed"

    def __post_init__(self) -> None:
        """Raise if the network is too slow for a finite step."""
        if self.network_rate < 1e9 * LEAST_NETWORK:
            raise UsageError(
                f"network is at least {LEAST_NETWORK:g} GB/s, not {self.network_rate / 1e9:g}",
                hint="give GB/s per device",
            )

    @property
    def room_bytes(self) -> float:
        """Memory available to a configuration."""
        return self.memory_bytes * self.memory_share

    @property
    def devices_per_host(self) -> int:
        """Devices for which one launcher starts the processes."""
        return min(self.devices_per_node, DEVICES_OF_HOST.get(self.device, self.devices_per_node))


def cluster_of(name: str, dtype: str = "bf16") -> Cluster:
    """Build the cluster of a device in the hardware table."""
    device = device_by_name(name)
    if device.link == "ICI":
        raise UsageError(
            f"{device.name} cannot be planned: no supported trainer runs on TPUs", hint="choose a GPU (--devices-known)"
        )
    peak = _peak(device, dtype)
    if not peak:
        raise UsageError(f"no peak of {device.name} is known for {dtype}", hint="choose another dtype")
    measured_type = _measured_type(device, dtype)
    best = _reached(device, measured_type)
    measured = 1e12 * SUSTAINED.get((device.name, dtype), 0.0) / peak
    is_blackwell = device.name in BLACKWELL
    reached = measured or (best or EFFICIENCY) * (BLACKWELL_SUSTAINED if is_blackwell else 1.0)
    best_half = _reached(device, _measured_type(device, "bf16" if dtype in NARROW else dtype))
    half = device.peak(Precision.BF16) or device.peak(Precision.FP16)
    host_link, host_memory = HOST_OF_DEVICE.get(device.name, HOST_OF_LINK.get(device.link, HOST))
    memory_bytes = DRIVER_MIB.get(device.name, device.memory_bytes / 2**20) * 2**20
    return Cluster(
        device.name,
        peak,
        memory_bytes,
        device.memory_rate * (BLACKWELL_MEMORY if is_blackwell else 1.0),
        device.link_rate or NETWORK_RATE,
        network_rate=NETWORK_OF_LINK.get(device.link, NETWORK_RATE),
        efficiency=reached,
        memory_share=max(MEMORY_SHARE, 1 - MOST_RESERVED / memory_bytes),
        core_efficiency=BLACKWELL_CORE if is_blackwell else CORE_SHARE * (best_half or EFFICIENCY),
        basis=f"products measured in {measured_type}" if measured_type else "assumed",
        product_bytes=PRODUCT_BYTES.get(dtype, 2.0),
        core_flops=half if dtype in NARROW and half else peak,
        host_link_rate=host_link,
        host_memory_rate=host_memory * HOST_SHARE,
        devices_per_node=NODE_OF_DEVICE.get(device.name, DEVICES_PER_NODE),
    )


def _measured_type(device: Device, dtype: str) -> str:
    """Return this type, or the next wider one, in which products were measured on the device; empty if none was."""
    if (device.name, dtype) in REACHED:
        return dtype
    return _measured_type(device, WIDER[dtype]) if dtype in WIDER else ""


def _reached(device: Device, measured_type: str) -> float:
    """Return the measured share of the peak, or 0 without a measured type."""
    return 1e12 * REACHED[device.name, measured_type] / _peak(device, measured_type) if measured_type else 0.0


def _peak(device: Device, dtype: str) -> float:
    if dtype == "fp32":  # float32 products in training run in TF32 if the device has matrix cores
        return device.peak(Precision.TF32) or device.peak(Precision.FP32)
    return device.peak(Precision(dtype)) if dtype in ("bf16", "fp16", "fp8", "fp4") else 0.0
