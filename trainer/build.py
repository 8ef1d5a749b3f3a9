"""Building: from checked options to this rank's stages, its data parallelism and its update."""

from __future__ import annotations

import torch

from trainer import fp8
from trainer.configuration.config import Config
from trainer.configuration.load import load_shape
from trainer.foundation.weight_gradients import LINEAR, Postponed, Product
from trainer.instrumentation.injection import Faults
from trainer.instrumentation.pacing import Brake, Pace
from trainer.model.decoder import Decoder
from trainer.parallel.async_tensor_parallel import AsyncEdges, ChunkedProducts
from trainer.parallel.collectives import Group
from trainer.parallel.context_parallel import ContextAttention
from trainer.parallel.data_parallel import Buckets, DataParallel, make_buckets
from trainer.parallel.mesh import SERVED, Mesh
from trainer.parallel.sequence_parallel import SequenceParallelEdges
from trainer.parallel.stage import Plan
from trainer.parallel.tensor_parallel import BlockEdges
from trainer.parallel.zero import Sharded
from trainer.step import Update


def wanted_groups(config: Config) -> set[str]:
    """Name the groups that this configuration talks in."""
    zero, experts = config.options.zero, bool(config.shape.experts)
    dense, sparse = ({"data"}, {"edata"}) if zero == 0 else ({"fsdp", "dp_replicate"}, {"efsdp"})
    wanted = {"log", "pp", "tp", "cp", "ep"} | dense | (sparse if experts else set())
    if config.shape.tied and not config.traits.is_v_shaped:  # these hold the first and the last stage on one rank
        wanted.add("tied")
    alone = {name for name in wanted if len(config.layout.groups(*SERVED[name])[0]) == 1}
    return wanted - alone


def build(config: Config, mesh: Mesh, device: torch.device, faults: Faults) -> Update:
    """Make this rank's stages, its data parallelism and its update."""
    chunks = {stage: build_stage(config, mesh, device, faults, stage) for stage in config.stages_of(mesh.place["pp"])}
    return Update(config, mesh, chunks, build_data(config, mesh, device, chunks, faults), faults)


def build_stage(config: Config, mesh: Mesh, device: torch.device, faults: Faults, stage: int) -> Decoder:
    """Make one stage of the decoder; its weights are on paper until data parallelism creates what the rank keeps."""
    options, shape, layout = config.options, config.shape, config.layout
    slowdown = faults.slowdown(stage)
    sequences = config.micro_batch / (layout.cp * layout.tp)
    postponed = Postponed() if config.traits.splits_backward else None
    pace = brake = None
    if options.pace:
        played = load_shape(options.pace_model)
        packed = any(fault.kind == "unequal-lengths" for fault in config.faults)
        pace = Pace.of(options.pace, played, int(sequences * played.sequence), attention_apart=packed)
        pace.slowdown, pace.postponed = slowdown, postponed
    elif slowdown is not None:
        flop = 2.0 * sequences * shape.sequence * shape.layer_parameters(shape.top_k)
        brake = Brake(slowdown, flop, device, config.compute)
    attention = ContextAttention(mesh["cp"], config, device)
    if pace is not None and attention.method == "ring":
        attention.ring.block_computed = pace.block_of_ring
    product = fp8.PRODUCT if options.dtype == "fp8" else LINEAR
    plan = Plan(
        config=config,
        mesh=mesh,
        device=device,
        dtype=config.compute,
        product=product,
        edges=block_edges(config, mesh["tp"], product, postponed, pace),
        attention=attention,
        router_bias=faults.router_bias(shape.experts, device),
        postponed=postponed,
        pace=pace,
        brake=brake,
    )
    decoder = Decoder(plan, stage)
    if options.compile:
        for layer in decoder.layers.values():
            layer.compile()
    return decoder


def block_edges(
    config: Config, group: Group, product: Product, postponed: Postponed | None, pace: Pace | None
) -> BlockEdges:
    """Choose what tensor-parallel ranks do at the edges of a block."""
    if not config.options.sequence_parallel:
        return BlockEdges(group)
    if not config.options.tp_async:
        return SequenceParallelEdges(group)
    layer_parameters = config.shape.layer_parameters(config.shape.top_k)

    def multiplied(what: str, weights: int) -> None:
        # Each rank has 1/n of a weight, and a chunk is 1/n of its rows; a layer's time is that of all its rows here.
        if pace is not None:
            pace.product(what, weights / layer_parameters)

    return AsyncEdges(ChunkedProducts(group, product, postponed, multiplied))


def build_data(
    config: Config, mesh: Mesh, device: torch.device, chunks: dict[int, Decoder], faults: Faults
) -> DataParallel:
    """Choose who sums gradients and who keeps the optimizer's state; brings the weights into memory."""
    options = config.options
    on_host = options.offload == "optimizer"
    if options.zero >= 2:
        return Sharded(
            chunks,
            mesh,
            device,
            free_after_forward=options.zero == 3,
            prefetch=options.prefetch,
            on_host=on_host,
        )
    weights = sum(parameter.nbytes for chunk in chunks.values() for parameter in chunk.parameters())
    limit = int(options.bucket_mb * 2**20) or min(25 * 2**20, weights // 4)
    if faults.of_kind("unbucketed"):
        limit = 0
    overlap = not faults.of_kind("unoverlapped")
    buckets = {
        stage: make_buckets(chunk, mesh, device, limit, sharded=options.zero == 1, on_host=on_host)
        for stage, chunk in chunks.items()
    }
    return Buckets(buckets, mesh, overlap=overlap)
