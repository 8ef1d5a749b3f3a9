"""How do options become a model on a mesh?"""

from __future__ import annotations

from dataclasses import replace

import torch

from trainer import fp8
from trainer.faults import Drag, Faults
from trainer.model.decoder import Decoder, Plan
from trainer.model.shape import load_shape
from trainer.pace import Pace
from trainer.parallel.data import Buckets, DataParallel
from trainer.parallel.mesh import Layout, Mesh
from trainer.parallel.pipeline import Pipeline, layers_of, stages_of
from trainer.parallel.sharding import Sharded
from trainer.rules import Settled
from trainer.slow import Brake
from trainer.step import Update

COMPUTE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.bfloat16, "fp64": torch.float64}


def wanted_groups(settled: Settled) -> set[str]:
    """Name the groups that this configuration talks in; FSDP2 wants its own even where a rank is alone."""
    zero, experts = settled.options.zero, bool(settled.shape.experts)
    groups = {"log", "pp", "tp", "cp", "ep"}
    groups |= {"data"} | ({"edata"} if experts else set()) if zero == 0 else {"fsdp", "dp_replicate"}
    groups |= {"efsdp"} if zero and experts else set()
    sharding = {"fsdp", "efsdp"} if zero >= 2 else set()
    return {name for name in groups if name in sharding or settled.layout.group_size(name) > 1}


def build(settled: Settled, mesh: Mesh, device: torch.device, faults: Faults) -> Update:
    """Make this rank's stages, its data parallelism and its update."""
    chunks = build_chunks(settled, mesh, device, faults)
    data = build_data(settled, mesh, chunks, faults)
    update = Update(settled, mesh, chunks, data, None)
    update.blocking = bool(faults.of_kind("blocking-sync"))
    if settled.layout.pp > 1:
        sequence = settled.shape.sequence // (settled.layout.cp * settled.layout.tp)
        sizes = (sequence, settled.micro_batch, settled.shape.hidden)
        between = torch.empty(sizes, dtype=COMPUTE[settled.options.dtype], device="meta", requires_grad=True)
        options = settled.options
        update.pipeline = Pipeline(chunks, mesh["pp"], options.schedule, options.micro_batches, between, update.loss)
    return update


def build_chunks(settled: Settled, mesh: Mesh, device: torch.device, faults: Faults) -> dict[int, Decoder]:
    """Make the decoder's stages that this rank holds."""
    options, shape, layout = settled.options, settled.shape, settled.layout
    held = stages_of(options.schedule, layout.pp, mesh.place["pp"], options.stages_per_rank) if layout.pp > 1 else [0]
    compute = COMPUTE[options.dtype]
    plan = Plan(
        shape=shape,
        mesh=mesh,
        seed=options.seed,
        device=device,
        dtype=torch.promote_types(compute, torch.float32) if options.zero >= 2 else compute,
        cp_method=options.cp_method,
        cp_layout=options.cp_layout,
        recompute=options.recompute,
        documents=faults.documents(),
        pace=None,
        brake=None,
        multiply=fp8.linear if options.dtype == "fp8" else torch.nn.functional.linear,
        crowd=faults.crowd(shape.experts, device) if shape.experts else 0.0,
    )
    chunks = {}
    for stage in held:
        drag = faults.drag(stage)
        pace = _pace(settled, drag, faults.documents())
        flop = 2.0 * settled.micro_batch * shape.sequence * shape.active_layer_parameters / (layout.cp * layout.tp)
        brake = Brake(drag, flop, device) if drag is not None and pace is None else None
        own = replace(plan, pace=pace, brake=brake)
        chunks[stage] = Decoder(
            own, layers_of(stage, settled.stages, shape.layers), first=stage == 0, last=stage + 1 == settled.stages
        )
        if options.compile:
            for layer in chunks[stage].layers.values():
                layer.compile()
    return chunks


def _pace(settled: Settled, drag: Drag | None, documents: int) -> Pace | None:
    options, layout = settled.options, settled.layout
    if not options.pace:
        return None
    shape = load_shape(options.pace_model)
    tokens = settled.micro_batch * shape.sequence // (layout.cp * layout.tp)
    pace = Pace.of(options.pace, shape, tokens, documents)
    pace.drag = drag
    return pace


def build_data(settled: Settled, mesh: Mesh, chunks: dict[int, Decoder], faults: Faults) -> DataParallel:
    """Choose who sums gradients and who keeps the optimizer's state."""
    options = settled.options
    if options.zero >= 2:
        compute = COMPUTE[options.dtype]
        return Sharded(chunks, mesh, compute, free_after_forward=options.zero == 3, prefetch=options.prefetch)
    limit = int(options.bucket_mb * 2**20) or min(25 * 2**20, _bytes(chunks) // 4)
    if faults.of_kind("unbucketed"):
        limit = 0
    overlap = not faults.of_kind("unoverlapped")
    return Buckets(chunks, mesh, limit, sharded=options.zero == 1, overlap=overlap)


def _bytes(chunks: dict[int, Decoder]) -> int:
    return sum(
        parameter.numel() * parameter.element_size() for chunk in chunks.values() for parameter in chunk.parameters()
    )


def layout_title(layout: Layout) -> str:
    """Name the mesh for people."""
    sizes = " x ".join(f"{axis} {size}" for axis, size in layout.axes().items() if size > 1 and axis != "ep")
    borrowed = f", ep {layout.ep} borrowed" if layout.ep > 1 else ""
    return (sizes or "one process") + borrowed
