"""Profiles: memory and messages of each trainer, and the constants fitted to its measured runs.

`benchmarks/planner_fit.py` fits the constants again from tables of measured runs; `benchmarks/planner.py` evaluates
them on rows that were not used in the fit. Shares of the machine's rates are at most 1. `*_exposed` and `*_scale` may
be larger if more is exposed, or moved, than the formula counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from usp_prof.model.errors import unknown_name
from usp_prof.model.shape import Column


@dataclass(frozen=True, slots=True)
class Profile:
    """Rules and constants of one trainer. Times are in seconds, shares are relative to the machine."""

    name: str = ""

    gradient_bytes: Column = 2.0
    """Bytes of a gradient in memory: 2, or 6 with a separate float32 sum."""
    narrow_gradient_bytes: Column = 0.0
    """Bytes of a gradient with 8-bit products; 0: as `gradient_bytes`."""
    sent_gradient_bytes: Column = 2.0
    activation_scale: Column = 1.0
    """Factor on the activations of `model/footprint.py` for additional copies and casts."""
    casts_stored_inputs: Column = 0
    """1: backward keeps inputs of 8-bit products in 8 bits (Transformer Engine); 0: in 16 bits (torchao)."""
    inner_bytes: Column = 8.0
    """Stored bytes per value inside a gated feed-forward block: both halves, the activation and the product.

    It is 6 if the activation and the product are one kernel (Megatron's `bias_swiglu_fusion`).
    """
    expert_bytes: Column = 4.0
    """Stored bytes per hidden value of a token's copy at an expert: input and result.

    It is 2 if the router's weights are applied before the second product (megatron-core's
    `activation_func_with_probs`), so that backward does not need the result.
    """
    whole_experts: Column = 0
    """1: with expert parallelism, tp does not divide experts (torchtitan); 2: it never does (ours)."""
    is_selective_by_op: Column = 0
    """1: selective recomputation keeps attention's result and every second product (torchtitan's policy `op`)."""
    logit_bytes: Column = 10.0
    loss_chunks: Column = 1
    """Chunks of tokens whose logits are in memory one at a time."""
    overhead_bytes: Column = 0.1e9
    """Allocated bytes that no other part counts."""
    uneven: Column = 0
    """1: layers are assigned to stages by cost, including the head's (nanotron); 0: as evenly as possible."""
    gemm_share: Column = 1.0
    """Share of the measured efficiency of single matrix products that training reaches."""
    rest_scale: Column = 1.0
    """Factor on the bytes of `compute.py` that pass through memory outside of products."""
    rest_kernels: Column = 7
    """Kernels of a layer's forward outside of products and attention: two norms, two rotary embeddings, two residuals,
    the activation."""
    is_eager: Column = 0
    """1: each operation outside of products is a separate kernel (eager PyTorch); 0: fused or compiled."""
    eager_scale: Column = 1.5
    """Factor on these bytes if operations are not fused."""
    host_layer: Column = 0.5e-3
    """Host time to launch a layer, forward and backward; then: unfused, added by tp."""
    host_unfused: Column = 2.5e-3
    host_tensor: Column = 0.5e-3
    tensor_exposed: Column = 1.0
    """Share of tp collectives that is exposed, from a recorded run."""
    network_share: Column = 1.0
    network_wait: Column = 0.0
    """Seconds that every member of a ring between nodes adds to the cluster's latency. nanotron's sweep ran on EFA:
    all-gathers of 256 MB over 16 to 512 H100 take 40 microseconds per member more than their bytes need."""
    pipeline_hop: Column = 0.0
    """Time of a transfer to the next stage beyond its bytes, from a recorded run."""
    host_pipeline: Column = 0.0
    """Host time to launch a layer in a pipeline between nodes: this plus `host_pipeline_tensor` x tp^1.5."""
    host_pipeline_tensor: Column = 0.0
    stall: Column = 0.0
    """Time that a stall adds per micro-batch (`stalls.py`); then the chance per link, and the chance per link if whole
    gradients are reduced after many micro-batches."""
    stall_of_link: Column = 0.0
    stall_of_whole_gradients: Column = 0.0
    bucket_bytes: Column = 25e6
    """Bytes of a bucket of gradients: default: PyTorch's `bucket_cap_mb` of 25."""
    bucket_parameters: Column = 0.0
    bucket_parameters_per_rank: Column = 0.0
    """Megatron's rule instead: parameters of a bucket, at least this and at least this per rank of dp and cp
    (`DistributedDataParallelConfig.bucket_size`: max(40,000,000, 1,000,000 x ranks))."""
    least_buckets: Column = 1.0
    """Minimum number of buckets."""
    data_share: Column = 1.0
    """Share of the rings' rate that gradients reach."""
    data_overlap: Column = 1.0
    """Share of backward that hides the reductions of gradients."""
    sums_once: Column = 0
    """1: ZeRO-2 and -3 sum gradients once per step (ours); 0: once per micro-batch. This and the next three determine
    the number of messages per step; `messages.py` has the table and its sources."""
    layer_by_layer: Column = 0
    """1: ZeRO-2 also gathers and sums layer by layer; 0: in buckets, after the optimizer and during backward."""
    is_fsdp2: Column = 0
    """1: complete weights are freed after each backward, except in pipelines."""
    ends_are_units: Column = 0
    """1: FSDP2 also frees embedding and head after each forward (torchtitan); 0: its root keeps them for backward."""
    data_latency: Column = 1.0
    """Factor on the rings' latency; 0 if a recorded run provided the rate of complete calls."""
    gloo: Column = 0
    """1: ranks compute on their host and talk over gloo (`data_parallel.py`)."""
    is_paced: Column = 0
    """1: compute is a timed wait; a layer's gradients travel during its own backward."""
    gather_overlap: Column = 1.0
    """Share of compute that hides ZeRO-3's gathers, from a recorded run."""
    gather_exposed: Column = 1.0
    """Exposed share of ZeRO-1's gathers."""
    gathers_beside: Column = 0
    """1: new weights are gathered during the next step's first forward (Megatron's `--overlap-param-gather`)."""
    context_exposed: Column = 1.0
    expert_exposed: Column = 1.0
    data_exposed: Column = 1.0
    """Factor on exposed data parallelism in buckets; `sharded_exposed`: of messages layer by layer."""
    sharded_exposed: Column = 1.0
    work_scale: Column = 1.0
    """Factor on all device work, from a recorded run."""
    offload_keeps: Column = 0.0
    """Bytes per weight that stay on the device with an offloaded optimizer, under ZeRO-2 and -3."""
    fixed: Column = 0.02
    """Time added to every step."""
    time_spread: Column = 0.4
    """Logarithm of the factor around the step that contains 80% of measured runs."""
    mixture_spread: Column = 0.35
    """Additional spread for mixtures of experts, whose speed depends on the release and on routing: 80% of 142 rows."""
    unmeasured_spread: Column = 0.0
    """Additional spread for devices and sizes outside the sweep that the profile was fitted to."""
    memory_spread: Column = 0.25
    """Logarithm of the factor around the peak memory that contains 80% of measured runs."""


# fmt: off
NANOTRON = Profile(
    # Gradients are added up and reduced in float32 (`optim/gradient_accumulator.py`, get_fp32_accum_hook).
    # Products hide part of the messages of tp (`tp_linear_async_communication`).
    "nanotron", gradient_bytes=4.0, sent_gradient_bytes=4.0, uneven=1, activation_scale=1.40, logit_bytes=16.6,
    overhead_bytes=0.64e9, gemm_share=0.8, rest_scale=1.67, host_tensor=3.13e-3, tensor_exposed=0.9,
    network_share=0.495, network_wait=35e-6, host_pipeline=6.78e-3, host_pipeline_tensor=0.642e-3, stall=1.34,
    stall_of_link=1.47e-3, stall_of_whole_gradients=0.0567, bucket_bytes=260e6, fixed=42.4e-3,
    time_spread=0.14, unmeasured_spread=0.3, memory_spread=0.18,
)
"""Fitted to 1,059 rows of the Ultra-Scale Playbook's sweep (1B to 8B, 8 to 128 H100 with EFA)."""
PUBLISHED = Profile(host_unfused=2.78e-3, time_spread=0.17, memory_spread=0.23)
"""The host's time is fitted to vTrain's rows; with more fitted constants, sources that are left out are further off."""
PROFILES: dict[str, Profile] = {
    "nanotron": NANOTRON,
    "megatron": replace(
        PUBLISHED, name="megatron", gradient_bytes=4.0, logit_bytes=6.55, overhead_bytes=120e6,
        narrow_gradient_bytes=2.0, casts_stored_inputs=1, inner_bytes=6.0, expert_bytes=2.0, gathers_beside=1,
        bucket_parameters=40e6, bucket_parameters_per_rank=1e6, time_spread=0.135,
    ),
    "torchtitan": replace(
        PUBLISHED, name="torchtitan", is_selective_by_op=1, logit_bytes=12.0, loss_chunks=8, is_fsdp2=1,
        whole_experts=1, time_spread=0.28, layer_by_layer=1, ends_are_units=1, gradient_bytes=4.0,
        sent_gradient_bytes=4.0,
    ),
    # Fused cross entropy, as in llm-foundry: 16-bit logits and their gradient.
    "fsdp": replace(PUBLISHED, name="fsdp", logit_bytes=4.0, is_eager=1, is_fsdp2=1, layer_by_layer=1),
    "usp-prof": replace(
        PUBLISHED, name="usp-prof", is_eager=1, offload_keeps=4.0, least_buckets=4.0, whole_experts=2,
        sums_once=1, layer_by_layer=1, gradient_bytes=4.0, sent_gradient_bytes=4.0,
    ),
}
# fmt: on


def gradient_bytes_of(profile: Profile, product_bytes: Column) -> Column:
    """Return the bytes of a gradient in memory. NVIDIA's 8-bit recipes add up gradients in bf16."""
    has_own = np.logical_and(np.asarray(product_bytes) < 2, np.asarray(profile.narrow_gradient_bytes) > 0)
    return np.where(has_own, profile.narrow_gradient_bytes, profile.gradient_bytes)


def expert_tp_of(profile: Profile, expert_tp: Column, ep: Column) -> Column:
    """Return the tensor-parallel degree of experts if it was not set (0): 1 if the trainer does not divide them."""
    is_whole = np.logical_or(np.asarray(profile.whole_experts) > 1, np.asarray(profile.whole_experts) * (ep > 1) > 0)
    return np.where((np.asarray(expert_tp) == 0) & is_whole, 1, expert_tp)


DEFAULT_TRAINER = "megatron"
"""Trainer that is assumed by default."""
DEFAULT_PROFILE = PROFILES[DEFAULT_TRAINER]


def profile_named(name: str) -> Profile:
    """Return a trainer's profile."""
    if name not in PROFILES:
        raise unknown_name("trainer", name, PROFILES)
    return PROFILES[name]
