"""Can what was asked for be trained? Every rule is checked before any process group starts.

`settle` fills in what was left to choose, and refuses the impossible by naming the rule and the nearest legal choice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch

from trainer.config import Options
from trainer.errors import OptionError
from trainer.faults import KINDS, Fault, parse_faults
from trainer.model.shape import ModelShape, load_shape
from trainer.pace import Pace
from trainer.parallel.mesh import Layout

DEFAULT_MESHES = {
    1: {},
    2: {"dp": 2},
    4: {"pp": 2, "dp": 2},
    8: {"pp": 2, "dp": 2, "tp": 2},
    16: {"pp": 2, "dp": 2, "cp": 2, "tp": 2, "ep": 2},
}
"""What each number of processes becomes when no axis is given; others become data parallel."""
V_SHAPED = ("zbv", "dualpipev")
SPLIT_BACKWARD = ("interleaved-zb", *V_SHAPED)
"""Schedules that compute weight gradients apart from input gradients."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Options that agree with each other, and what follows from them."""

    options: Options
    layout: Layout
    shape: ModelShape
    rounds: int
    """Passes before an update."""
    micro_batch: int
    """Sequences in a micro-batch."""
    faults: tuple[Fault, ...] = ()

    @property
    def stages(self) -> int:
        """Pipeline stages over all ranks."""
        options = self.options
        return self.layout.pp * stages_per_rank(options.schedule, options.stages_per_rank) if self.layout.pp > 1 else 1

    @property
    def on_cuda(self) -> bool:
        """Whether it computes on GPUs; paced compute is waits of the host and asks for none."""
        wanted = self.options.device or ("cpu" if self.options.pace else "cuda")
        return wanted == "cuda" and torch.cuda.is_available()

    @property
    def local_batch(self) -> int:
        """Sequences of a data-parallel rank in an update."""
        return self.options.batch // self.layout.dp

    @property
    def tokens(self) -> int:
        """Tokens in an update over all ranks."""
        return self.options.batch * self.shape.sequence


def stages_per_rank(schedule: str, virtual: int) -> int:
    """Say how many stages a rank holds under a schedule."""
    return 2 if schedule in V_SHAPED else virtual if schedule.startswith("interleaved") else 1


def settle(options: Options, world: int) -> Settled:
    """Choose what was left open; raise `OptionError` for what cannot be."""
    layout = _layout(options, world)
    if layout.ep > 1 and not options.experts:
        options.experts = max(4, layout.ep)
    shape = load_shape(
        options.model,
        layers=options.layers or None,
        sequence=options.sequence or None,
        experts=options.experts or None,
        top_k=options.top_k if options.experts else None,
    )
    if not options.layers and options.model == "tiny" and layout.pp > 1:
        needed = layout.pp * stages_per_rank(options.schedule, options.stages_per_rank)
        shape = load_shape(shape.name, **{**_sizes(shape), "layers": max(shape.layers, needed)})
    unit = _settle_batch(options, layout)
    faults = tuple(parse_faults(options.fault))
    if options.micro_batch and options.batch != unit * options.micro_batch:
        raise OptionError(
            f"--batch {options.batch} is not dp x micro-batches x accumulate x micro-batch "
            f"= {unit * options.micro_batch}",
            hint=f"--batch {unit * options.micro_batch}",
        )
    settled = Settled(options, layout, shape, options.accumulate, options.batch // unit, faults)
    if options.pace:
        Pace.of(options.pace, load_shape(options.pace_model), tokens=1)  # says itself what it does not know
    for message, hint in _broken(settled):
        raise OptionError(message, hint)
    return settled


def _settle_batch(options: Options, layout: Layout) -> int:
    """Choose micro-batches, passes and the batch; gives how many micro-batches an update has over all dp ranks."""
    if not options.micro_batches:
        options.micro_batches = 2 * layout.pp if layout.pp > 1 else 1
    if layout.pp == 1 and options.micro_batches > 1:
        # Without a pipeline a micro-batch is a pass.
        options.accumulate, options.micro_batches = options.micro_batches * max(options.accumulate, 1), 1
    pass_size = layout.dp * options.micro_batches
    if not options.batch:
        options.batch = (options.micro_batch or 2) * pass_size * max(options.accumulate, 1)
    if options.micro_batch and not options.accumulate:
        options.accumulate = max(options.batch // (pass_size * options.micro_batch), 1)
    if not options.accumulate:
        options.accumulate = 1
    unit = pass_size * options.accumulate
    if options.batch % unit:
        below = max(options.batch // unit, 1) * unit
        raise OptionError(
            f"--batch {options.batch} must be a multiple of dp x micro-batches x accumulate = {unit}",
            hint=f"--batch {below}",
        )
    return unit


def rank_of_stage(settled: Settled, stage: int) -> int:
    """Give the pipeline coordinate that holds a stage."""
    if settled.options.schedule in V_SHAPED:
        return min(stage, 2 * settled.layout.pp - 1 - stage)
    return stage % settled.layout.pp


def _sizes(shape: ModelShape) -> dict[str, int]:
    return {"sequence": shape.sequence, "experts": shape.experts, "top_k": shape.top_k}


def _layout(options: Options, world: int) -> Layout:
    asked = {axis: getattr(options, axis) for axis in ("dp", "tp", "cp", "pp", "ep")}
    for axis, size in asked.items():
        if size < 0:
            raise OptionError(f"--{axis} {size}: an axis has at least one rank", hint=f"--{axis} 1")
    if not any(asked.values()) and options.dp_replicate == 1:
        asked.update(DEFAULT_MESHES.get(world, {}))
    sizes = {axis: size or 1 for axis, size in asked.items()}
    others = prod(sizes[axis] for axis in ("tp", "cp", "pp"))
    if not asked["dp"]:
        if world % others:
            raise OptionError(
                f"pp x cp x tp = {others} must divide the {world} processes",
                hint=f"torchrun --nproc-per-node {max(round(world / others), 1) * others}, or smaller axes",
            )
        sizes["dp"] = world // others
    if others * sizes["dp"] != world:
        raise OptionError(
            f"pp x dp x cp x tp = {others * sizes['dp']}, but there are {world} processes",
            hint=f"torchrun --nproc-per-node {others * sizes['dp']}"
            + (f", or --dp {world // others}" if world % others == 0 else ""),
        )
    if options.dp_replicate < 1 or sizes["dp"] % options.dp_replicate:
        raise OptionError(
            f"--dp-replicate {options.dp_replicate} must divide dp = {sizes['dp']}",
            hint=f"--dp-replicate {_nearest_divisor(sizes['dp'], options.dp_replicate)}",
        )
    pool = sizes["dp"] // options.dp_replicate * sizes["cp"] * sizes["tp"]
    if pool % sizes["ep"]:
        raise OptionError(
            f"--ep {sizes['ep']} borrows ranks of dp_shard x cp x tp = {pool} and must divide it",
            hint=f"--ep {_nearest_divisor(pool, sizes['ep'])}",
        )
    return Layout(
        pp=sizes["pp"],
        dp_replicate=options.dp_replicate,
        dp_shard=sizes["dp"] // options.dp_replicate,
        cp=sizes["cp"],
        tp=sizes["tp"],
        ep=sizes["ep"],
        ep_outer=options.ep_layout == "outer",
    )


def _nearest_divisor(number: int, wanted: int) -> int:
    return min((part for part in range(1, number + 1) if number % part == 0), key=lambda part: abs(part - wanted))


def _broken(settled: Settled) -> Iterator[tuple[str, str]]:
    """Give each broken rule with the nearest legal choice."""
    yield from _model_rules(settled)
    if settled.layout.pp > 1:
        yield from _pipeline_rules(settled)
    yield from _fault_rules(settled)
    yield from _device_rules(settled)


def _model_rules(settled: Settled) -> Iterator[tuple[str, str]]:
    options, layout, shape = settled.options, settled.layout, settled.shape
    for what, size in (
        ("heads", shape.heads),
        ("kv_heads", shape.kv_heads),
        ("ffn", shape.ffn),
        ("vocab", shape.vocab),
    ):
        if size % layout.tp:
            yield (
                f"--tp {layout.tp} must divide the model's {what} = {size}",
                f"--tp {_nearest_divisor(size, layout.tp)}",
            )
    runs = layout.cp * (2 if options.cp_layout == "zigzag" and layout.cp > 1 else 1)
    unit = runs * layout.tp
    if shape.sequence % unit:
        rule = "tp x cp (x 2 for zigzag)"
        yield (
            f"the sequence of {shape.sequence} must be a multiple of {rule} = {unit}",
            (f"--sequence {max(round(shape.sequence / unit), 1) * unit}"),
        )
    if layout.cp > 1 and options.cp_method == "ulysses" and shape.heads // layout.tp % layout.cp:
        local = shape.heads // layout.tp
        yield (
            f"--cp-method ulysses splits heads / tp = {local} over cp = {layout.cp}",
            (f"--cp {_nearest_divisor(local, layout.cp)}, or --cp-method ring"),
        )
    if shape.experts % layout.ep:
        fit = max(round(shape.experts / layout.ep), 1) * layout.ep
        yield f"--ep {layout.ep} must divide the {shape.experts} experts", f"--experts {fit}"
    if shape.experts and not 1 <= options.top_k <= shape.experts:
        yield (
            f"--top-k {options.top_k} of {shape.experts} experts",
            f"--top-k {min(max(options.top_k, 1), shape.experts)}",
        )
    if options.data and shape.vocab < 256:
        yield f"a text is bytes, but the model's vocabulary is {shape.vocab}", "a model whose vocab is at least 256"


def _pipeline_rules(settled: Settled) -> Iterator[tuple[str, str]]:
    options, layout, shape = settled.options, settled.layout, settled.shape
    stages, micro = settled.stages, options.micro_batches
    if shape.layers < stages:
        yield f"{stages} pipeline stages need a layer each, the model has {shape.layers}", f"--layers {stages}"
    least = stages if options.schedule == "dualpipev" else 1 if options.schedule == "gpipe" else layout.pp
    if micro < least:
        yield (
            f"--schedule {options.schedule} over {layout.pp} ranks needs at least {least} micro-batches",
            (f"--micro-batches {least}"),
        )
    rounds = max(1, micro // layout.pp)
    if options.schedule.startswith("interleaved") and micro % rounds:
        yield (
            f"--schedule {options.schedule}: {micro} micro-batches do not split into {rounds} rounds of one size",
            (f"--micro-batches {rounds * layout.pp}"),
        )
    if options.compile and options.schedule in SPLIT_BACKWARD:
        yield f"--schedule {options.schedule} splits a backward that --compile makes one piece", "--schedule 1f1b"
    if options.schedule.startswith("interleaved") and options.stages_per_rank < 2:
        yield f"--schedule {options.schedule} needs several stages on each rank", "--stages-per-rank 2"


def _fault_rules(settled: Settled) -> Iterator[tuple[str, str]]:
    layout, shape = settled.layout, settled.shape
    axes = {axis for axis, size in layout.axes().items() if size > 1} | {"dp", "dp_shard", "dp_replicate"}
    for fault in settled.faults:
        limits = {"rank": layout.world, "stage": settled.stages, "dp": layout.dp, "host": fault.settings.get("hosts")}
        for key, limit in limits.items():
            if key in fault.settings and not min(0, KINDS[fault.kind][key]) <= fault[key] < limit:
                yield f"--fault {fault.kind}: {key}={fault[key]} is none of 0 to {limit - 1}", f"{key}={limit - 1}"
        if fault.kind == "expert-imbalance" and not shape.experts:
            yield "--fault expert-imbalance needs routed experts", "--experts 8"
        if fault.kind == "slow-link" and fault["axis"] not in axes:
            yield f"--fault slow-link: axis={fault['axis']} has one rank here", f"axis={min(axes)}"
        if fault.kind == "unequal-lengths":
            if layout.cp > 1:
                yield "--fault unequal-lengths cuts sequences that cp holds together", "--cp 1"
            if shape.sequence % fault["documents"]:
                fit = _nearest_divisor(shape.sequence, fault["documents"])
                yield (
                    f"--fault unequal-lengths: {fault['documents']} documents in {shape.sequence} tokens",
                    f"documents={fit}",
                )
        if fault.kind in {"unbucketed", "unoverlapped"} and settled.options.zero >= 2:
            yield f"--fault {fault.kind} is about gradient buckets, which ZeRO-2 and -3 do not have", "--zero 1"


def _device_rules(settled: Settled) -> Iterator[tuple[str, str]]:
    options = settled.options
    if options.device == "cuda" and not settled.on_cuda:
        yield "--device cuda: torch finds no GPU here", "--device cpu"
    shared = settled.on_cuda and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > torch.cuda.device_count()
    if shared and (settled.layout.pp > 1 or (settled.layout.cp > 1 and options.cp_method == "ring")):
        rule = "processes that share a GPU talk through gloo, which sends nothing of a GPU to one rank alone"
        yield rule, "--device cpu, or --pp 1 and --cp-method allgather"
    if options.dtype == "fp8" and not (settled.on_cuda and torch.cuda.get_device_capability() >= (8, 9)):
        yield "--dtype fp8 needs a GPU that multiplies in fp8 (Ada, Hopper, Blackwell or later)", "--dtype bf16"
    if options.resume and not options.checkpoint:
        yield "--resume needs the folder of the checkpoints", "--checkpoint FOLDER"
