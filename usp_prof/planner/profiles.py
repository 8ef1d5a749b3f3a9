"""Profiles: what each trainer keeps in memory and sends by habit, and what its runs were measured to reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof.model.errors import unknown_name

if TYPE_CHECKING:
    from usp_prof.model.shape import Column


@dataclass(frozen=True, slots=True)
class Profile:
    """One trainer. Times in seconds, shares of what the machine offers."""

    name: str = ""

    gradient_bytes: Column = 2.0
    """Bytes of a gradient in memory: 2, or 6 with a float32 sum beside the half-precision gradient."""
    sent_gradient_bytes: Column = 2.0
    activation_scale: Column = 1.0
    """Of the activations of `model/footprint.py`: copies and casts that the trainer keeps beside them."""
    logit_bytes: Column = 10.0
    overhead_bytes: Column = 2e9
    buffer_fraction: Column = 0.0
    uneven: Column = 0
    """1: layers are dealt to stages by cost, the head's included (nanotron); 0: as evenly as they go."""
    gemm_share: Column = 0.8
    """Of the efficiency that single matrix products were measured to reach, in training."""
    core_share: Column = 0.45
    """Of the peak that fused attention reaches on the FLOP of a causal mask."""
    rest_scale: Column = 1.3
    """Bytes that pass through memory outside of products, over those counted in `compute.py`."""
    imbalance: Column = 1.2
    """Of a grouped product of experts: the fullest rank and what grouping costs, over the mean."""
    host_layer: Column = 0.5e-3
    """Launching forward and backward of a layer, what tensor parallelism adds, and what a mixture adds."""
    host_tensor: Column = 0.5e-3
    host_experts: Column = 1.0e-3
    tensor_latency: Column = 15e-6
    """Of each collective of tensor parallelism beyond its bytes: start and synchronisation."""
    tensor_exposed: Column = 0.9
    """Share of their time that no compute hides."""
    network_share: Column = 0.8
    pipeline_hop: Column = 1e-4
    """Handing a micro-batch to the next stage, beyond its bytes."""
    bucket_bytes: Column = 100e6
    data_share: Column = 0.7
    """Of the rings' rate that gradients reach; `data_overlap` is the share of backward that hides them."""
    data_overlap: Column = 0.5
    gather_overlap: Column = 0.8
    """Share of compute that hides ZeRO-3's gathers; `gather_exposed` is what shows of ZeRO-1's after the optimizer."""
    gather_exposed: Column = 1.0
    context_exposed: Column = 1.0
    expert_exposed: Column = 1.0
    data_exposed: Column = 1.0
    work_scale: Column = 1.0
    """Of all device work, where a recorded run taught it."""
    optimizer_scale: Column = 1.5
    fixed: Column = 0.02
    """Of a step, whatever its size."""
    time_spread: Column = 0.4
    """Logarithm of the factor around the step, and around the memory, that holds 80 % of measured runs."""
    memory_spread: Column = 0.25
    jitter: Column = 0.01
    """Share that each doubling of devices adds: the slowest of more ranks."""


# fmt: off
PROFILES: dict[str, Profile] = {
    "nanotron": Profile(
        "nanotron",
        gradient_bytes=5.0, sent_gradient_bytes=4.0, uneven=1, activation_scale=1.31, logit_bytes=16.4,
        overhead_bytes=0.5e9, buffer_fraction=0.05, gemm_share=0.79, rest_scale=1.25, core_share=0.2,
        host_layer=1.6e-3, host_tensor=1.0e-3, tensor_latency=130e-6, tensor_exposed=0.81, network_share=0.38,
        pipeline_hop=1.1e-3, bucket_bytes=196e6, data_share=1.15, data_overlap=1.0, optimizer_scale=4.8, fixed=0.034,
        jitter=0.0185, time_spread=0.18, memory_spread=0.22,
    ),
    "megatron": Profile("megatron", gradient_bytes=4.0),
    "torchtitan": Profile("torchtitan"),
    "usp-prof": Profile("usp-prof"),
}
# fmt: on


DEFAULT_TRAINER = "megatron"
"""Whose habits are taken where none is named."""
DEFAULT_PROFILE = PROFILES[DEFAULT_TRAINER]


def profile_named(name: str) -> Profile:
    """Find a trainer's profile."""
    if name not in PROFILES:
        raise unknown_name("trainer", name, PROFILES)
    return PROFILES[name]
