"""Building: from checked options to this rank's stages, its data parallelism and its update."""

from __future__ import annotations

import torch

from trainer import fp8
from trainer.configuration.load import load_shape
from trainer.configuration.settled import Settled
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


def wanted_groups(settled: Settled) -> set[str]:
    """Name the groups that this configuration talks in."""
    zero, experts = settled.options.zero, bool(settled.shape.experts)
    dense, sparse = ({"data"}, {"edata"}) if zero == 0 else ({"fsdp", "dp_replicate"}, {"efsdp"})
    wanted = {"log", "pp", "tp", "cp", "ep"} | dense | (sparse if experts else set())
    if settled.shape.tied and not settled.traits.is_v_shaped:  # these hold the first and the last stage on one rank
        wanted.add("tied")
    alone = {name for name in wanted if len(settled.layout.groups(*SERVED[name])[0]) == 1}
    return wanted - alone


def build(settled: Settled, mesh: Mesh, device: torch.device, faults: Faults) -> Update:
    """Make this rank's stages, its data parallelism and its update."""
    chunks = {stage: build_stage(settled, mesh, device, faults, stage) for stage in settled.held(mesh.place["pp"])}
    return Update(settled, mesh, chunks, build_data(settled, mesh, device, chunks, faults), faults)


def build_stage(settled: Settled, mesh: Mesh, device: torch.device, faults: Faults, stage: int) -> Decoder:
    """Make one stage of the decoder; its weights are on paper until data parallelism creates what the rank keeps."""
    options, shape, layout = settled.options, settled.shape, settled.layout
    drag = faults.drag(stage)
    sequences = settled.micro_batch / (layout.cp * layout.tp)
    postponed = Postponed() if settled.traits.splits_backward else None
    pace = brake = None
    if options.pace:
        played = load_shape(options.pace_model)
        packed = any(fault.kind == "unequal-lengths" for fault in settled.faults)
        pace = Pace.of(options.pace, played, int(sequences * played.sequence), attention_apart=packed)
        pace.drag, pace.postponed = drag, postponed
    elif drag is not None:
        flop = 2.0 * sequences * shape.sequence * shape.layer_parameters(shape.top_k)
        brake = Brake(drag, flop, device, settled.compute)
    attention = ContextAttention(mesh["cp"], settled, device)
    if pace is not None and attention.method == "ring":
        attention.ring.block_computed = pace.block_of_ring
    product = fp8.PRODUCT if options.dtype == "fp8" else LINEAR
    plan = Plan(
        settled=settled,
        mesh=mesh,
        device=device,
        dtype=settled.compute,
        product=product,
        edges=block_edges(settled, mesh["tp"], product, postponed, pace),
        attention=attention,
        crowd=faults.crowd(shape.experts, device),
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
    settled: Settled, group: Group, product: Product, postponed: Postponed | None, pace: Pace | None
) -> BlockEdges:
    """Choose what tensor-parallel ranks do at the edges of a block."""
    if not settled.options.sequence_parallel:
        return BlockEdges(group)
    if not settled.options.tp_async:
        return SequenceParallelEdges(group)
    layer_parameters = settled.shape.layer_parameters(settled.shape.top_k)

    def multiplied(what: str, weights: int) -> None:
        # Each rank has 1/n of a weight, and a chunk is 1/n of its rows; a layer's time is that of all its rows here.
        if pace is not None:
            pace.product(what, weights / layer_parameters)

    return AsyncEdges(ChunkedProducts(group, product, postponed, multiplied))


def build_data(
    settled: Settled, mesh: Mesh, device: torch.device, chunks: dict[int, Decoder], faults: Faults
) -> DataParallel:
    """Choose who sums gradients and who keeps the optimizer's state; brings the weights into memory."""
    options = settled.options
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
