"""Split layers: steps of tensor parallelism and of mixtures of experts."""

from __future__ import annotations

import numpy as np

from simulated_jobs.devices import Program
from simulated_jobs.hosts import Host
from simulated_jobs.layers import (
    ATTENTION,
    GEMM,
    GEMM_2,
    MLP,
    SILU,
    Operation,
    backward,
    fault_at,
    forward,
    load_batch,
    log,
    loss,
    optimize,
)
from simulated_jobs.messages import awaited_collective, collective

EXPERT = (
    Operation("aten::_grouped_mm", "", GEMM, 300, "GroupedMmBackward0"),
    Operation("aten::silu", "", SILU, 40, "SiluBackward0"),
    Operation("aten::_grouped_mm", "", GEMM_2, 160, "GroupedMmBackward0"),
)
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 6, false, false>(float*, int)"
TOP_K = "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(float const*, unsigned int)"
HISTOGRAM = "void at::native::kernelHistogram1D<float, long>()"
SELECT = "void at::native::indexSelectLargeIndex<c10::BFloat16>()"
SCATTER_ADD = "void at::native::_scatter_gather_elementwise_kernel<128, 8>()"
COUNTS_US = 12.0
"""Length of the exchange of token counts."""


def tensor_step(host: Host) -> Program[None]:
    """Run one step of tensor parallelism with sequence parallelism, and one all-reduce of gradients."""
    options = host.options
    yield from load_batch(host)
    for layer in range(options.layers):
        yield from fault_at(host, "forward", layer, options.layers)
        yield from forward(host, ATTENTION[:1], options.scale)
        yield from _gather(host)
        yield from forward(host, ATTENTION[1:5], options.scale)
        yield from _scatter(host)
        yield from forward(host, ATTENTION[5:] + MLP[:1], options.scale)
        yield from _gather(host)
        yield from forward(host, MLP[1:4], options.scale)
        yield from _scatter(host)
        yield from forward(host, MLP[4:], options.scale)
    yield from loss(host)
    with host.autograd():
        for layer in reversed(range(options.layers)):
            yield from fault_at(host, "backward", layer, options.layers)
            for part, between in ((MLP[1:], ATTENTION[5:] + MLP[:1]), (ATTENTION[1:5], ATTENTION[:1])):
                yield from _gather(host)
                yield from backward(host, part, options.scale)
                yield from _scatter(host)
                yield from backward(host, between, options.scale)
    if "dp" in host.groups:
        yield from awaited_collective(host, host.groups["dp"], "allreduce", options.message_us * 8)
    yield from optimize(host)
    yield from log(host)


def _gather(host: Host) -> Program[None]:
    yield from awaited_collective(host, host.groups["tp"], "_allgather_base", host.options.message_us)


def _scatter(host: Host) -> Program[None]:
    yield from awaited_collective(host, host.groups["tp"], "_reduce_scatter_base", host.options.message_us)


def expert_step(host: Host) -> Program[None]:
    """Run one step of a mixture of experts: four exchanges of tokens per layer, and the counts that hosts read."""
    options, group = host.options, host.groups["ep"]
    yield from load_batch(host)
    loads = [load_of_experts(host, layer) for layer in range(options.layers)]
    for layer, load in enumerate(loads):
        yield from fault_at(host, "forward", layer, options.layers)
        yield from forward(host, ATTENTION, options.scale)
        yield from _route(host)
        yield from awaited_collective(host, group, "all_to_allv", options.message_us)
        yield from forward(host, EXPERT, options.scale * load)
        yield from awaited_collective(host, group, "all_to_allv", options.message_us)
        with host.op("aten::scatter_add_", 4, 2):
            yield from host.launch(SCATTER_ADD, 25 * options.scale + 2)
    yield from loss(host)
    reduced = []
    with host.autograd():
        for layer in reversed(range(options.layers)):
            yield from fault_at(host, "backward", layer, options.layers)
            yield from awaited_collective(host, group, "all_to_allv", options.message_us)
            yield from backward(host, EXPERT, options.scale * loads[layer])
            yield from awaited_collective(host, group, "all_to_allv", options.message_us)
            yield from backward(host, ATTENTION, options.scale)
            if layer % options.bucket == 0:
                us = options.message_us * options.bucket
                reduced.append((yield from collective(host, host.groups["dp"], "allreduce", us)))
        for work in reduced:
            host.order_after([work])
    yield from optimize(host)
    yield from log(host)


def _route(host: Host) -> Program[None]:
    """Choose experts, exchange the counts of tokens, and read them."""
    with host.op("aten::softmax", 3, 2):
        yield from host.launch(SOFTMAX, 8)
    with host.op("aten::topk", 4, 2):
        yield from host.launch(TOP_K, 12)
    with host.op("aten::histc", 4, 2):
        yield from host.launch(HISTOGRAM, 6)
    yield from awaited_collective(host, host.groups["ep"], "all_to_allv", COUNTS_US)
    with host.op("aten::to", 3, 2), host.op("aten::_to_copy", 2, 2), host.op("aten::copy_", 2, 2):
        yield from host.copy("to host, pageable", 1.5, 512, blocks=True)
        yield from host.synchronize(host.last_work())
    host.spend(25)
    with host.op("aten::index_select", 4, 2):
        yield from host.launch(SELECT, 25 * host.options.scale + 2)


def load_of_experts(host: Host, layer: int) -> float:
    """Return the load of this rank's experts in a layer; the group's mean is 1."""
    options, group, fault = host.options, host.groups["ep"], host.options.fault
    drawn = np.random.default_rng([options.seed, 3, host.step + 1, layer, group.number])
    loads = np.maximum(drawn.normal(1, options.routing_spread, len(group.ranks)), 0.5)
    if fault and fault.kind == "experts" and fault.is_active(host.step - options.warmup):
        loads /= loads.mean()
        loads[np.isin(group.ranks, fault.ranks)] *= fault.size
    return float(loads[group.ranks.index(host.rank)] / loads.mean())
