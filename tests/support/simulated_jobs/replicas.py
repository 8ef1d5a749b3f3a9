"""Replicas: data-parallel steps, eager, compiled, and as CUDA graphs."""

from __future__ import annotations

from simulated_jobs.devices import Program, Work
from simulated_jobs.hosts import Host
from simulated_jobs.layers import (
    COPY,
    FLASH,
    GEMM,
    GEMM_2,
    LAYER,
    backward,
    backward_kernel,
    fault_at,
    forward,
    load_batch,
    log,
    loss,
    optimize,
)
from simulated_jobs.messages import collective, collective_in_graph

COMPILED = (
    ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_{}", 30),
    (GEMM, 180),
    ("triton_poi_fused_cat_mul_{}", 20),
    (FLASH, 160),
    (GEMM_2, 80),
    ("triton_red_fused_add_native_layer_norm_{}", 35),
    (GEMM, 300),
    ("triton_poi_fused_mul_silu_{}", 40),
    (GEMM_2, 160),
)
"""Kernels of a compiled layer, and their microseconds."""


def ddp_step(host: Host) -> Program[None]:
    """Run one step of DDP, with gradients accumulated over several batches if the options say so."""
    options = host.options
    layers = options.layers * options.accumulation
    for batch in range(options.accumulation):
        first, is_last = batch * options.layers, batch == options.accumulation - 1
        yield from load_batch(host)
        host.spend(20)
        for layer in range(options.layers):
            yield from fault_at(host, "forward", first + layer, layers)
            yield from forward(host, LAYER, options.scale)
        yield from loss(host)
        host.spend(25)
        reduced = []
        with host.autograd():
            for layer in reversed(range(options.layers)):
                yield from fault_at(host, "backward", first + layer, layers)
                yield from backward(host, LAYER, options.scale)
                if is_last and layer % options.bucket == 0:
                    with host.op("torch::distributed::reducer::mul_out", 3, 1):
                        yield from host.launch(COPY, 10 * options.scale + 2)
                    reduced.append((yield from _reduce(host)))
            for work in reduced:
                host.order_after([work])
    yield from optimize(host)
    yield from log(host)


def _reduce(host: Host) -> Program[Work]:
    us = host.options.message_us * host.options.bucket
    work = yield from collective(host, host.groups["dp"], "allreduce", us)
    return work


def compiled_step(host: Host) -> Program[None]:
    """Run one step of a model compiled by `torch.compile`."""
    options = host.options
    yield from load_batch(host)
    with host.op("Torch-Compiled Region: 0/0", 40, 5), host.op("CompiledFunction", 30, 5):
        for layer in range(options.layers):
            yield from fault_at(host, "forward", layer, options.layers)
            for place, (kernel, us) in enumerate(COMPILED):
                yield from _compiled_forward(host, kernel.format(place), us * options.scale)
    yield from loss(host)
    reduced = []
    with host.autograd(), host.op("CompiledFunctionBackward", 60, 10):
        for layer in reversed(range(options.layers)):
            yield from fault_at(host, "backward", layer, options.layers)
            for place, (kernel, us) in reversed(list(enumerate(COMPILED))):
                yield from _compiled_backward(host, kernel.format(place + 20), us * options.scale)
            if layer % options.bucket == 0:
                reduced.append((yield from _reduce(host)))
    with host.autograd():
        for work in reduced:
            host.order_after([work])
    yield from optimize(host, kernels=4)
    yield from log(host)


def _compiled_forward(host: Host, kernel: str, us: float) -> Program[None]:
    host.spend(1.5)
    if kernel.startswith("triton"):
        with host.op(kernel, 1, 0.5):
            yield from host.launch(kernel, us, call="cuLaunchKernel")
    else:
        op = "aten::_scaled_dot_product_flash_attention" if kernel == FLASH else "extern_kernels.mm"
        with host.op(op, 3, 1):
            yield from host.launch(kernel, us)


def _compiled_backward(host: Host, kernel: str, us: float) -> Program[None]:
    host.spend(1.5)
    if kernel.startswith("triton"):
        yield from host.launch(kernel, us * 2, call="cuLaunchKernel")
    else:
        for _ in range(2):
            yield from host.launch(backward_kernel(kernel), us)


def graph_step(host: Host) -> Program[None]:
    """Run one step whose forward and backward, with their collectives, are one CUDA graph."""
    options = host.options
    yield from load_batch(host)
    yield from fault_at(host, "forward", options.layers // 2, options.layers)
    host.spend(30)
    graph = host.call("cudaGraphLaunch", 90)
    for _ in range(options.layers):
        for operation in LAYER:
            yield from host.launch(operation.kernel, operation.us * options.scale, correlation=graph)
    reduced = []
    for layer in reversed(range(options.layers)):
        for operation in reversed(LAYER):
            for _ in range(2):
                yield from host.launch(operation.kernel, operation.us * options.scale, correlation=graph)
        if layer % options.bucket == 0:
            us = options.message_us * options.bucket
            reduced.append((yield from collective_in_graph(host, host.groups["dp"], "allreduce", us, graph)))
    host.order_after(reduced, calls=False)
    yield from optimize(host, kernels=6)
    yield from log(host)
