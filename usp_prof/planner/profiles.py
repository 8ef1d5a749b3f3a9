"""Profiles: what each trainer keeps in memory and sends by habit, and what its runs were measured to reach.

`benchmarks/planner_fit.py` fits the constants anew from tables of measured runs; `benchmarks/planner.py` judges them on
rows that they were not fitted to. Shares of what a machine offers are at most 1; `*_exposed` and `*_scale` may be more:
they say that more shows, or moves, than the formula counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.errors import unknown_name

if TYPE_CHECKING:
    from usp_prof.model.shape import Column


@dataclass(frozen=True, slots=True)
class Profile:
    """One trainer. Times in seconds, shares of what the machine offers."""

    name: str = ""

    gradient_bytes: Column = 2.0
    """Bytes of a gradient in memory: 2, or 6 with a float32 sum beside the half-precision gradient."""
    narrow_gradient_bytes: Column = 0.0
    """The same with 8-bit products, where it differs (0: it does not)."""
    sent_gradient_bytes: Column = 2.0
    activation_scale: Column = 1.0
    """Of the activations of `model/footprint.py`: copies and casts that the trainer keeps beside them."""
    casts_stored_inputs: Column = 0
    """1: backward keeps inputs of 8-bit products in 8 bits (Transformer Engine); 0: in 16 bits (torchao)."""
    inner_bytes: Column = 8.0
    """Stored bytes per value inside of a gated feed-forward block: both halves, the activation and the product; 6
    where the activation and the product are one kernel (Megatron's `bias_swiglu_fusion`)."""
    is_selective_by_op: Column = 0
    """1: selective recomputation keeps attention's result and every second product (torchtitan's policy `op`)."""
    logit_bytes: Column = 10.0
    overhead_bytes: Column = 0.1e9
    """Allocated besides all that is counted."""
    buffer_fraction: Column = 0.0
    uneven: Column = 0
    """1: layers are dealt to stages by cost, the head's included (nanotron); 0: as evenly as they go."""
    gemm_share: Column = 1.0
    """Of the efficiency that single matrix products were measured to reach, in training."""
    core_share: Column = 1.0
    """Of the rate at which the cluster's devices compute attention's core."""
    rest_scale: Column = 1.3
    """Bytes that pass through memory outside of products, over those counted in `compute.py`."""
    rest_kernels: Column = 7
    """Kernels of a layer's forward outside of products and attention: two norms, two rotary embeddings, two residuals,
    the activation. Compiled, the residuals go into the norms and the two embeddings are one."""
    is_eager: Column = 0
    """1: each operation outside of products is a kernel of its own, as PyTorch has them; 0: fused, or compiled."""
    eager_scale: Column = 1.5
    """Bytes of the rest where they are not fused, over those where they are."""
    cast_passes: Column = 2.0
    """How often casting to 8 bits reads or writes the inputs of products, in 16 bits: they are read once, and written
    twice in 8 bits, the second time transposed for the gradients of weights."""
    unfused_scale: Column = 1.5
    """The same where neither attention nor what stands around it is fused."""
    selective_forward: Column = 0.0
    """Share of forward that selective recomputation repeats; 0: attention's core alone."""
    imbalance: Column = 1.2
    """Of a grouped product of experts: the fullest rank and what grouping costs, over the mean."""
    host_layer: Column = 0.5e-3
    """Launching forward and backward of a layer, the same unfused; what tensor parallelism and a mixture add."""
    host_unfused: Column = 2.5e-3
    host_tensor: Column = 0.5e-3
    host_experts: Column = 1.0e-3
    tensor_latency: Column = 15e-6
    """Of each collective of tensor parallelism beyond its bytes: start and synchronisation."""
    tensor_exposed: Column = 0.9
    """Share of their time that no compute hides."""
    network_share: Column = 1.0
    network_wait: Column = 0.0
    """Seconds that every member of a ring between nodes adds to the cluster's latency. nanotron's sweep ran on EFA:
    all-gathers of 256 MB over 16 to 512 H100 take 40 microseconds per member more than their bytes need."""
    pipeline_hop: Column = 1e-4
    """Handing a micro-batch to the next stage, beyond its bytes."""
    host_pipeline: Column = 0.0
    """Launching a layer where the pipeline's sends cross nodes: at least this, and `host_pipeline_tensor` x tp^1.5."""
    host_pipeline_tensor: Column = 0.0
    stall: Column = 0.0
    """Of a micro-batch where those sends stall (`stalls.py`); then how likely one link does, and how likely where whole
    gradients are reduced after many micro-batches."""
    stall_of_link: Column = 0.0
    stall_of_whole_gradients: Column = 0.0
    bucket_bytes: Column = 25e6
    """Bytes of a bucket of gradients: PyTorch's `bucket_cap_mb` of 25 where nothing else is known."""
    bucket_parameters: Column = 0.0
    bucket_parameters_per_rank: Column = 0.0
    """Megatron's rule instead: parameters of a bucket, at least this and at least this per rank of dp and cp
    (`DistributedDataParallelConfig.bucket_size`: max(40,000,000, 1,000,000 x ranks))."""
    least_buckets: Column = 1.0
    """Of gradients in any case, however small they are."""
    data_share: Column = 1.0
    """Share of the rings' rate that gradients reach."""
    data_overlap: Column = 1.0
    """Share of backward that hides the reductions of gradients."""
    sums_once: Column = 0
    """1: ZeRO-2 and -3 sum gradients once a step, of all micro-batches (ours); 0: those of each. With the next three it
    says how often a step sends what: `messages.py` has the table and its sources."""
    layer_by_layer: Column = 0
    """1: ZeRO-2, too, gathers and sums layer by layer; 0: in buckets, after the optimizer and beside backward."""
    is_fsdp2: Column = 0
    """1: whole weights are freed after each backward, but for pipelines."""
    ends_are_units: Column = 0
    """1: FSDP2 frees embedding and head after each forward, too (torchtitan); 0: its root keeps them for backward."""
    data_latency: Column = 1.0
    """Of the rings' latency; 0 where a recorded run taught the rate of whole calls."""
    gloo: Column = 0
    """1: ranks compute on their host and talk over gloo (`data_parallel.py`)."""
    is_paced: Column = 0
    """1: compute is a timed wait, which a layer's gradients do not wait for: they travel beside their own backward."""
    gather_overlap: Column = 0.8
    """Share of compute that hides ZeRO-3's gathers; `gather_exposed` is what shows of ZeRO-1's after the optimizer."""
    gather_exposed: Column = 1.0
    gathers_beside: Column = 0
    """1: new weights are gathered beside the next step's first forward (Megatron's `--overlap-param-gather`)."""
    context_exposed: Column = 1.0
    expert_exposed: Column = 1.0
    data_exposed: Column = 1.0
    """Of data parallelism in buckets; `sharded_exposed` is of what travels layer by layer."""
    sharded_exposed: Column = 1.0
    work_scale: Column = 1.0
    """Of all device work, where a recorded run taught it."""
    optimizer_scale: Column = 1.5
    offload_keeps: Column = 0.0
    """Bytes of a weight's optimizer that stay on the device beside an offloaded one, under ZeRO-2 and -3."""
    fixed: Column = 0.02
    """Of a step, whatever its size."""
    time_spread: Column = 0.4
    """Logarithm of the factor around the step that holds 80% of measured runs."""
    mixture_spread: Column = 0.3
    """The same, in addition, for mixtures of experts: their speed also depends on the release and on the routing."""
    unmeasured_spread: Column = 0.0
    """The same, in addition, for devices and sizes outside the sweep that the profile was fitted to."""
    memory_spread: Column = 0.25
    """Logarithm of the factor around the peak memory that holds 80% of measured runs."""
    jitter: Column = 0.01
    """Share that each doubling of devices adds: the slowest of more ranks."""


# fmt: off
NANOTRON = Profile(
    "nanotron", gradient_bytes=5.0, sent_gradient_bytes=2.0, uneven=1, activation_scale=1.31, logit_bytes=16.4,
    overhead_bytes=0.5e9, buffer_fraction=0.05, gemm_share=0.882, rest_scale=1.75, host_layer=0.876e-3,
    host_tensor=2.44e-3, tensor_latency=12.2e-6, tensor_exposed=0.871, network_share=0.558, network_wait=35e-6,
    pipeline_hop=83.3e-6, host_pipeline=5.88e-3, host_pipeline_tensor=0.596e-3, stall=1.28, stall_of_link=1.44e-3,
    stall_of_whole_gradients=0.0555, bucket_bytes=159e6, gather_exposed=1.45, optimizer_scale=4.27, fixed=18.2e-3,
    jitter=0.0165, time_spread=0.15, unmeasured_spread=0.3, memory_spread=0.22,
)
"""Fitted to 1,060 rows of the Ultra-Scale Playbook's sweep (1B to 8B, 8 to 128 H100 with EFA), those that stalled
included where a stall was to be expected."""
PUBLISHED = Profile(
    rest_scale=1.05, eager_scale=1.82, cast_passes=1.74, unfused_scale=1.21, host_unfused=2.67e-3, imbalance=1.10,
    tensor_exposed=0.712, gather_overlap=0.800, expert_exposed=0.836, optimizer_scale=1.39, fixed=16.3e-3,
    jitter=0.0079, time_spread=0.17, memory_spread=0.23,
)
"""Fitted to published speeds of DGXC, Megatron-Bridge, NeMo, llm-foundry, torchtitan and vTrain (1,993 rows)."""
PROFILES: dict[str, Profile] = {
    "nanotron": NANOTRON,
    "megatron": replace(
        PUBLISHED, name="megatron", gradient_bytes=4.0, activation_scale=1.055, logit_bytes=7.9, overhead_bytes=36e6,
        narrow_gradient_bytes=2.0, casts_stored_inputs=1, inner_bytes=6.0, gathers_beside=1, bucket_parameters=40e6,
        bucket_parameters_per_rank=1e6,
    ),
    "torchtitan": replace(
        PUBLISHED, name="torchtitan", selective_forward=0.4, is_selective_by_op=1, logit_bytes=12.0,
        rest_kernels=4, tensor_exposed=1.0,
        is_fsdp2=1, time_spread=0.28,
        layer_by_layer=1, ends_are_units=1, gradient_bytes=4.0, sent_gradient_bytes=4.0,
    ),
    "fsdp": replace(PUBLISHED, name="fsdp", is_eager=1, is_fsdp2=1, layer_by_layer=1),
    "usp-prof": replace(
        PUBLISHED, name="usp-prof", is_eager=1, offload_keeps=4.0, least_buckets=4.0,
        sums_once=1, layer_by_layer=1, gradient_bytes=4.0, sent_gradient_bytes=4.0,
    ),
}
# fmt: on


def gradient_bytes_of(profile: Profile, product_bytes: Column) -> Column:
    """Return the bytes of a gradient in memory. NVIDIA's 8-bit recipes add up gradients in bf16."""
    has_own = np.logical_and(np.asarray(product_bytes) < 2, np.asarray(profile.narrow_gradient_bytes) > 0)
    return np.where(has_own, profile.narrow_gradient_bytes, profile.gradient_bytes)


DEFAULT_TRAINER = "megatron"
"""Whose habits are taken where none is named."""
DEFAULT_PROFILE = PROFILES[DEFAULT_TRAINER]


def profile_named(name: str) -> Profile:
    """Find a trainer's profile."""
    if name not in PROFILES:
        raise unknown_name("trainer", name, PROFILES)
    return PROFILES[name]
