"""Sharded weights: steps of FSDP, HSDP, and ZeRO-3 with an optimizer on the host."""

from __future__ import annotations

from simulated_jobs.devices import Program, Work
from simulated_jobs.hosts import COMPUTE, Host
from simulated_jobs.layers import CONCATENATE, COPY, LAYER, backward, fault_at, forward, load_batch, log, loss, optimize
from simulated_jobs.messages import collective

COPY_IN, OFFLOAD = 16, 33
"""Streams of copies before a gather, and of copies of gradients to the host."""
REPLICA_SHARE = 0.3
"""Length of an all-reduce between replicas, as a share of a gather."""


def fsdp_step(host: Host) -> Program[None]:
    """Run one step of FSDP2: gathers one layer ahead in backward; with replicas (HSDP), an all-reduce per layer."""
    options = host.options
    layers = options.layers * options.accumulation
    freed: list[Work] = []
    for batch in range(options.accumulation):
        first = batch * options.layers
        yield from load_batch(host)
        host.spend(20)
        for layer in range(options.layers):
            host.spend(15)
            yield from fault_at(host, "forward", first + layer, layers)
            gathered = yield from _gather(host, freed)
            freed = yield from _copy_out(host, gathered)
            yield from forward(host, LAYER, options.scale)
        yield from loss(host)
        host.spend(25)
        with host.autograd():
            gathered = yield from _gather(host, freed)
            scattered: list[Work] = []
            for layer in reversed(range(options.layers)):
                host.spend(15)
                yield from fault_at(host, "backward", first + layer, layers)
                freed = yield from _copy_out(host, gathered)
                if layer:
                    gathered = yield from _gather(host, freed)
                yield from backward(host, LAYER, options.scale)
                scattered = yield from _scatter(host, scattered)
            host.order_after(scattered)
    yield from optimize(host, share=0.5)
    yield from log(host)


def _gather(host: Host, freed: list[Work]) -> Program[Work]:
    """Gather a layer's weights into memory that the previous copy has freed."""
    group = host.groups["shard"]
    with host.op("FSDP::all_gather_copy_in", 6, 3):
        host.order_after(freed, COPY_IN)
        copied = yield from host.launch(CONCATENATE, 15 * host.options.scale + 3, COPY_IN)
    host.order_after([copied], group.stream())
    us = host.options.message_us
    work = yield from collective(host, group, "_allgather_base", us, after_stream=COPY_IN)
    return work


def _copy_out(host: Host, gathered: Work) -> Program[list[Work]]:
    with host.op("FSDP::all_gather_copy_out", 6, 3):
        host.order_after([gathered])
        copied = yield from host.launch(COPY, 20 * host.options.scale + 3)
    host.call("cudaEventRecord", 1.8)
    return [copied]


def _scatter(host: Host, previous: list[Work]) -> Program[list[Work]]:
    """Reduce and scatter a layer's gradients after those of the previous layer."""
    group, us = host.groups["shard"], host.options.message_us
    with host.op("FSDP::chunk_cat", 6, 3):
        if previous:
            host.order_after(previous)
        yield from host.launch(CONCATENATE, 25 * host.options.scale + 3)
    work = yield from collective(host, group, "_reduce_scatter_base", us, extra_stream=1)
    if "replicate" in host.groups:
        replicas, us = host.groups["replicate"], us * REPLICA_SHARE
        work = yield from collective(host, replicas, "allreduce", us, after_stream=group.stream(1))
    return [work]


def zero3_step(host: Host) -> Program[None]:
    """Run one step of DeepSpeed ZeRO-3 with Adam on the host."""
    options, group = host.options, host.groups["dp"]
    yield from load_batch(host)
    gathered = yield from _gather_zero3(host)
    for layer in range(options.layers):
        yield from fault_at(host, "forward", layer, options.layers)
        host.spend(60)
        host.order_after([gathered])
        if layer + 1 < options.layers:
            gathered = yield from _gather_zero3(host)
        yield from forward(host, LAYER, options.scale)
    yield from loss(host)
    with host.autograd():
        gathered = yield from _gather_zero3(host)
        for layer in reversed(range(options.layers)):
            yield from fault_at(host, "backward", layer, options.layers)
            host.spend(60)
            host.order_after([gathered])
            if layer:
                gathered = yield from _gather_zero3(host)
            yield from backward(host, LAYER, options.scale)
            us = options.message_us
            scattered = yield from collective(host, group, "_reduce_scatter_base", us, extra_stream=1)
            host.order_after([scattered], OFFLOAD)
            with host.op("aten::copy_", 4, 2):
                yield from host.copy("to host, pinned", 150.0 * options.scale, 3_000_000, OFFLOAD)
    yield from host.synchronize(host.last_work(OFFLOAD))
    yield from host.read_value()
    yield from fault_at(host, "optimizer")
    with host.annotation("Optimizer.step#DeepSpeedCPUAdam.step"):
        for _ in range(options.layers):
            with host.op("DeepSpeedCPUAdam::step", 5, 3):
                host.spend(400 * options.scale)
            with host.op("aten::copy_", 4, 2):
                yield from host.copy("to device, pinned", 80.0 * options.scale, 1_500_000, COMPUTE)
    yield from log(host)


def _gather_zero3(host: Host) -> Program[Work]:
    with host.annotation("DeepSpeedZeRO::all_gather", 20, 5):
        work = yield from collective(host, host.groups["dp"], "_allgather_base", host.options.message_us)
    return work
