"""Builder of this rank's stages, data parallelism and update, from checked options."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import nn

from trainer.configuration.config import Config
from trainer.configuration.load import load_shape
from trainer.foundation import fp8
from trainer.foundation.weight_gradients import LINEAR, Product, WeightGradStore
from trainer.instrumentation.attachment import attach, attach_blocking_sync
from trainer.instrumentation.injection import Faults
from trainer.instrumentation.pacing import ExtraWork, LayerTimer, Pace
from trainer.model.decoder import Decoder
from trainer.parallel.async_tensor_parallel import ChunkedProducts
from trainer.parallel.collectives import Group
from trainer.parallel.context_parallel import causal_attention, positions, runs
from trainer.parallel.data_parallel import Bucket, Buckets
from trainer.parallel.mesh import SERVED, Mesh
from trainer.parallel.ring_attention import AllGatherAttention, RingAttention
from trainer.parallel.sequence_parallel import AsyncEdges, SequenceParallelEdges
from trainer.parallel.stage import Attend, Plan
from trainer.parallel.tensor_parallel import BlockEdges
from trainer.parallel.ulysses import UlyssesAttention
from trainer.parallel.weights import FlatWeights, note_of
from trainer.parallel.zero import ShardedDataParallel, Unit
from trainer.step import Update


def wanted_groups(config: Config) -> set[str]:
    """Return the groups in which this configuration communicates."""
    zero, experts = config.options.zero, bool(config.shape.experts)
    dense, sparse = ({"data"}, {"edata"}) if zero == 0 else ({"fsdp", "dp_replicate"}, {"efsdp"})
    wanted = {"log", "pp", "pp_backward", "tp", "cp", "ep"} | dense | (sparse if experts else set())
    if config.shape.tied and not config.traits.is_v_shaped:  # these have the first and the last stage on one rank
        wanted.add("tied")
    alone = {name for name in wanted if len(config.layout.groups(*SERVED[name])[0]) == 1}
    return wanted - alone


def build(config: Config, mesh: Mesh, device: torch.device, faults: Faults) -> Update:
    """Build this rank's stages, its data parallelism and its update."""
    chunks = {stage: build_stage(config, mesh, device, faults, stage) for stage in config.stages_of(mesh.place["pp"])}
    update = Update(config, mesh, chunks, build_data(config, mesh, device, chunks, faults), faults.packing)
    if faults.of_kind("blocking-sync"):
        attach_blocking_sync(update, mesh["log"])
    return update


def build_stage(config: Config, mesh: Mesh, device: torch.device, faults: Faults, stage: int) -> Decoder:
    """Build one stage of the decoder; data parallelism allocates its weights later."""
    options, shape = config.options, config.shape
    grad_store = WeightGradStore() if config.traits.splits_backward else None
    product = fp8.PRODUCT if options.dtype == "fp8" else LINEAR
    timer = layer_timer(config, device, faults, stage, grad_store)
    edges = block_edges(config, mesh["tp"], product, grad_store, timer)
    plan = Plan(config, mesh, device, product, edges, build_attention(config, mesh["cp"], device), grad_store)
    decoder = Decoder(plan, stage)
    attach(decoder, timer, faults.router_bias(shape.experts, device), shape.sequence // config.layout.cp)
    if options.compile:
        for layer in decoder.layers.values():
            layer.compile()
    return decoder


def layer_timer(
    config: Config, device: torch.device, faults: Faults, stage: int, grad_store: WeightGradStore | None
) -> LayerTimer | None:
    """Return a timer that makes the layers of a stage take longer, for a pace or a fault; `None` without both."""
    options, shape, layout = config.options, config.shape, config.layout
    slowdown = faults.slowdown(stage)
    sequences = config.micro_batch / (layout.cp * layout.tp)
    if options.pace:
        paced_model = load_shape(options.pace_model)
        packed = any(fault.kind == "unequal-lengths" for fault in config.faults)
        pace = Pace.parse(options.pace, paced_model, int(sequences * paced_model.sequence), attention_apart=packed)
        pace.slowdown, pace.grad_store = slowdown, grad_store
        return pace
    if slowdown is None:
        return None
    flop = 2.0 * sequences * shape.sequence * shape.layer_parameters(shape.top_k)
    return ExtraWork(slowdown, flop, device, config.compute)


def build_attention(config: Config, group: Group, device: torch.device) -> Attend:
    """Choose the method of context parallelism."""
    if group.size == 1:
        return causal_attention
    ranks = [(config.shape.sequence, group.size, rank, config.options.cp_layout) for rank in range(group.size)]
    match config.options.cp_method:
        case "ring":
            return RingAttention(group, [runs(*rank) for rank in ranks])
        case "allgather":
            return AllGatherAttention(group, [runs(*rank) for rank in ranks])
    return UlyssesAttention(group, torch.cat([positions(*rank) for rank in ranks]).to(device))


def block_edges(
    config: Config, group: Group, product: Product, grad_store: WeightGradStore | None, timer: LayerTimer | None
) -> BlockEdges:
    """Choose how tensor-parallel ranks communicate at the edges of a block."""
    if not config.options.sequence_parallel:
        return BlockEdges(group)
    if not config.options.tp_async:
        return SequenceParallelEdges(group)
    if isinstance(timer, Pace):
        product = timer.pace_chunks(product, config.shape.layer_parameters(config.shape.top_k))
    return AsyncEdges(ChunkedProducts(group, product, grad_store))


def build_data(config: Config, mesh: Mesh, device: torch.device, chunks: dict[int, Decoder], faults: Faults) -> Buckets:
    """Allocate the weights, in gradient buckets."""
    options = config.options
    if options.zero >= 2:
        units = {stage: make_units(config, mesh, device, chunk) for stage, chunk in chunks.items()}
        return ShardedDataParallel(
            chunks, units, mesh["tp"], free_after_forward=options.zero == 3, prefetch=options.prefetch
        )
    weights = sum(parameter.nbytes for chunk in chunks.values() for parameter in chunk.parameters())
    limit = int(options.bucket_mb * 2**20) or min(25 * 2**20, weights // 4)
    if faults.of_kind("unbucketed"):
        limit = 0
    buckets = {stage: make_buckets(config, mesh, device, chunk, limit) for stage, chunk in chunks.items()}
    return Buckets(chunks, buckets, mesh["tp"], overlap=not faults.of_kind("unoverlapped"))


def make_buckets(config: Config, mesh: Mesh, device: torch.device, chunk: nn.Module, limit: int) -> list[Bucket]:
    """Fill buckets of up to `limit` bytes, in the order in which gradients are complete; buckets have one kind each."""
    parameters = dict(reversed(list(chunk.named_parameters())))
    full: list[list[str]] = []
    filling: dict[str, list[str]] = {}
    for name, parameter in parameters.items():
        kind = note_of(parameter).kind
        bucket = filling.setdefault(kind, [])
        if bucket and sum(parameters[other].nbytes for other in bucket) + parameter.nbytes > limit:
            full.append(bucket)
            bucket = filling[kind] = []
        bucket.append(name)
    return [make_bucket(Bucket, config, mesh, device, chunk, names) for names in [*full, *filling.values()]]


def make_units(config: Config, mesh: Mesh, device: torch.device, chunk: Decoder) -> list[Bucket]:
    """Make one unit per kind of weights and layer, and of the weights outside of layers.

    The last layer is first, because its gradients are complete first. Those of the embedding are complete last.
    """
    units: dict[tuple[int, str], list[str]] = defaultdict(list)
    for name, parameter in chunk.named_parameters():
        layer = int(name.split(".")[1]) if name.startswith("layers.") else -1
        kind = note_of(parameter).kind
        # With one tensor-parallel rank, replicated weights need no sum over tp.
        kind = "dense" if kind in {"partial", "copied"} and mesh["tp"].size == 1 else kind
        units[layer, kind].append(name)
    last_first = sorted(units, key=lambda unit: -unit[0])
    return [make_bucket(Unit, config, mesh, device, chunk, units[unit]) for unit in last_first]


def make_bucket(
    form: type[Bucket], config: Config, mesh: Mesh, device: torch.device, chunk: nn.Module, names: list[str]
) -> Bucket:
    """Allocate weights of one kind in a bucket; experts are sharded over the ranks with the same experts."""
    is_expert, zero = note_of(chunk.get_parameter(names[0])).kind == "expert", config.options.zero
    group = mesh[("efsdp" if is_expert else "fsdp") if zero else ("edata" if is_expert else "data")]
    return form(
        FlatWeights(chunk, names, device, multiple=group.size),
        group,
        replicas=mesh["dp_replicate"] if zero else None,
        tensor_ranks=mesh["tp"].size,
        on_host=config.options.offload == "optimizer",
    )
