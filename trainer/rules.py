"""Rules: which options can be trained together, checked before any process group starts.

`resolve` chooses the options that the user left open. It refuses impossible options, and names the rule and the nearest
legal choice.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from math import gcd
from pathlib import Path

from trainer.batches import read_text
from trainer.configuration.config import Config, stages_per_rank
from trainer.configuration.faults import parse_fault
from trainer.configuration.layout import Layout
from trainer.configuration.load import load_shape
from trainer.configuration.options import OptionError, Options, check_ranges, refuse
from trainer.device import multiplies_in_fp8, rank_memory
from trainer.instrumentation.pacing import Pace
from trainer.metric_writers import check_installed
from trainer.unused_options import check_effects, check_faults
from usp_prof.schedule import Schedule

DEFAULT_MESHES = {
    1: {},
    2: {"dp": 2},
    4: {"pp": 2, "dp": 2},
    8: {"pp": 2, "dp": 2, "tp": 2},
    16: {"pp": 2, "dp": 2, "cp": 2, "tp": 2, "ep": 2},
}
"""Default mesh by number of processes; other numbers become data parallel."""


def resolve(options: Options, world: int) -> Config:
    """Choose open options; raise `OptionError` for impossible ones."""
    check_ranges(options)
    layout = _layout(options, world)
    if layout.ep > 1 and not options.experts and not load_shape(options.model).experts:
        options.experts = max(4, layout.ep)
    shape = load_shape(
        options.model,
        layers=options.layers or None,
        sequence=options.sequence or None,
        experts=options.experts or None,
        top_k=options.top_k or None,
    )
    if options.model == "tiny" and layout.pp > 1 and not options.layers:
        shape = replace(shape, layers=max(shape.layers, layout.pp * stages_per_rank(options.schedule, options)))
    micro_batch = _choose_batch(options, layout)
    faults = tuple(parse_fault(text) for text in options.fault)
    if options.pace:
        played = load_shape(options.pace_model, flag="--pace-model")
        Pace.parse(options.pace, played, tokens=1)  # refuses an unknown device
    config = Config(options, layout, shape, micro_batch, faults)
    _check_tensor_parallel(config)
    _check_sequence(config)
    if shape.experts:
        _check_experts(config)
    if layout.pp > 1:
        _check_pipeline(config)
    check_faults(config)
    _check_device(config)
    check_effects(config)
    _check_folders(options)
    check_installed(options.metrics)
    if options.data:
        read_text(options.data, shape.sequence)
    return config


def _layout(options: Options, world: int) -> Layout:
    degrees = {axis: getattr(options, axis) for axis in ("dp", "tp", "cp", "pp", "ep")}
    if not any(degrees.values()) and options.dp_replicate == 1:
        degrees.update(DEFAULT_MESHES.get(world, {}))
    pp, cp, tp, ep = (degrees[axis] or 1 for axis in ("pp", "cp", "tp", "ep"))
    replica_size, replicas = pp * cp * tp, options.dp_replicate
    if not degrees["dp"]:
        suggestion = f"torchrun --nproc-per-node {_nearest_multiple(world, replica_size)}, or smaller axes"
        refuse(world % replica_size, f"pp x cp x tp = {replica_size} must divide the {world} processes", suggestion)
    dp = degrees["dp"] or world // replica_size
    hint = f"torchrun --nproc-per-node {replica_size * dp}" + (
        "" if world % replica_size else f", or --dp {world // replica_size}"
    )
    refuse(
        replica_size * dp != world, f"pp x dp x cp x tp = {replica_size * dp}, but there are {world} processes", hint
    )
    _divides("--dp-replicate", replicas, "dp", dp)
    layout = Layout(pp, replicas, dp // replicas, cp, tp, ep, ep_outer=options.ep_layout == "outer")
    _divides("--ep", ep, "dp_shard x cp x tp, whose ranks it borrows,", layout.expert_pool)
    return layout


def _choose_batch(options: Options, layout: Layout) -> int:
    """Choose micro-batches, passes and the batch; return the sequences in a micro-batch."""
    if not options.micro_batches:
        options.micro_batches = 2 * layout.pp if layout.pp > 1 else 1
    if layout.pp == 1 and options.micro_batches > 1:
        # Without a pipeline a micro-batch is a pass.
        options.accumulate, options.micro_batches = options.micro_batches * max(options.accumulate, 1), 1
    in_a_pass, accumulate = layout.dp * options.micro_batches, options.accumulate
    if not options.accumulate:
        suggestion = options.batch // (in_a_pass * options.micro_batch) if options.micro_batch else 1
        options.accumulate = max(suggestion, 1)
    unit = in_a_pass * options.accumulate
    if not options.batch:
        options.batch = (options.micro_batch or 2) * unit
    if size := options.micro_batch:
        # Without --accumulate, any number of passes is allowed.
        suggestion = unit * size if accumulate else _nearest_multiple(options.batch, in_a_pass * size)
        rule = f"--batch {options.batch} is not dp x micro-batches x accumulate x micro-batch = {unit * size}"
        refuse(options.batch != unit * size, rule, f"--batch {suggestion}")
    _multiple("--batch", options.batch, "dp x micro-batches x accumulate", unit)
    return options.batch // unit


def _check_tensor_parallel(config: Config) -> None:
    options, shape, tp = config.options, config.shape, config.layout.tp
    # Tensor-parallel ranks have equal parts of each of these.
    split = {"heads": shape.heads, "kv_heads": shape.kv_heads, "ffn": shape.ffn, "vocab": shape.vocab}
    if shape.shared_ffn:
        split["shared experts' width"] = shape.shared_ffn
    uneven = next((f"{name} = {size}" for name, size in split.items() if size % tp), "")
    suggestion = _nearest_divisor(gcd(*split.values()), tp)
    refuse(uneven, f"--tp {tp} must divide the model's {uneven}", f"--tp {suggestion}")
    if not options.sequence_parallel:
        rule = "--no-sequence-parallel: each of the --tp ranks would send the same tokens to the experts"
        refuse(shape.experts and tp > 1, rule, "leave --no-sequence-parallel out")
        rule = "--tp-async needs sequence parallelism"
        refuse(options.tp_async, rule, "leave --no-sequence-parallel out")
    rule = "--tp-async communicates within a layer, which --compile cannot do"
    refuse(options.tp_async and options.compile, rule, "leave --tp-async out")


def _check_sequence(config: Config) -> None:
    options, shape, tp, cp = config.options, config.shape, config.layout.tp, config.layout.cp
    slices = tp if options.sequence_parallel else 1
    runs = 2 if options.cp_layout == "zigzag" and cp > 1 else 1  # of the sequence per context-parallel rank
    unit = slices * cp * runs
    longest = shape.window or shape.learned_positions
    phrase = "attention looks back on" if shape.window else "positions are learned for"
    rule = f"the model's {phrase} {longest} tokens, fewer than tp x cp (x 2 for zigzag) = {unit}"
    refuse(0 < longest < unit, rule, "--cp 1 --tp 1")
    _multiple("--sequence", shape.sequence, "tp x cp (x 2 for zigzag)", unit, most=longest)
    rule = f"--sequence {shape.sequence}: the model's {phrase} {longest} tokens"
    refuse(longest and shape.sequence > longest, rule, f"--sequence {longest // unit * unit}")
    if options.cp_method == "ulysses":
        phrase = "heads / tp, which --cp-method ulysses splits,"
        _divides("--cp", cp, phrase, shape.heads // tp, ", or --cp-method ring")
    rule = f"--data {options.data}: text needs a vocabulary of 256 bytes, but the model's is {shape.vocab}"
    refuse(options.data and shape.vocab < 256, rule, "a model whose vocab is at least 256")


def _check_experts(config: Config) -> None:
    shape = config.shape
    suggestion = "--ep 1" if config.layout.ep > 1 else "leave --experts out"
    rule = "experts are gated and have no biases, unlike this model's layers"
    refuse(not shape.can_have_experts, rule, suggestion)
    _multiple("--experts", shape.experts, "ep", config.layout.ep)
    suggestion = min(max(shape.top_k, 1), shape.experts)
    refuse(
        shape.top_k != suggestion,
        f"--top-k {shape.top_k} must be 1 to {shape.experts}, the number of experts",
        f"--top-k {suggestion}",
    )
    options, layout = config.options, config.layout
    pairs = config.micro_batch * shape.sequence // (layout.cp * layout.tp) * shape.top_k
    slots = options.capacity * pairs / shape.experts
    rule = f"--capacity {options.capacity:g} leaves each expert {slots:.2g} tokens of a rank's micro-batch"
    refuse(0 < slots < 1, rule, "--capacity 1.25")
    largest = shape.experts / shape.top_k
    rule = f"--capacity {options.capacity:g} drops nothing: no expert gets more than {largest:g} equal shares"
    refuse(options.capacity > largest, rule, "leave --capacity out")


def _check_pipeline(config: Config) -> None:
    options, pp, stages = config.options, config.layout.pp, config.stages
    layers, micro, title = config.shape.layers, options.micro_batches, f"--schedule {options.schedule}"
    refuse(layers < stages, f"{stages} pipeline stages need a layer each, the model has {layers}", f"--layers {stages}")
    traits = Schedule(options.schedule).traits
    least = traits.least_micro_batches(pp)
    rule = f"{title} over {pp} ranks needs at least {least} micro-batches"
    refuse(micro < least, rule, f"--micro-batches {least}")
    if traits.is_looped:
        rounds = max(1, micro // pp)
        rule = f"{title}: {micro} micro-batches do not split into {rounds} rounds of one size"
        refuse(micro % rounds, rule, f"--micro-batches {rounds * pp}")
        refuse(options.stages_per_rank < 2, f"{title} needs several stages on each rank", "--stages-per-rank 2")
    rule = f"{title} splits backward, which --compile cannot do"
    refuse(options.compile and traits.splits_backward, rule, "--schedule 1f1b")


def _check_device(config: Config) -> None:
    options = config.options
    lacking = options.device == "cuda" and config.device == "cpu"
    refuse(lacking, "--device cuda: torch finds no GPU here", "--device cpu")
    apart = options.backend == "nccl" and config.device == "cpu"
    refuse(apart, "--backend nccl needs GPUs", "--backend gloo")
    if options.dtype == "fp8":
        able = config.device == "cuda" and multiplies_in_fp8()
        refuse(not able, "--dtype fp8 needs a GPU that multiplies in fp8 (Ada, Hopper or later)", "--dtype bf16")


def _check_folders(options: Options) -> None:
    """Refuse a folder that cannot be written, before training."""
    for flag, path in (("--checkpoint", options.checkpoint), ("--output", options.output)):
        if not path:
            continue
        # The folder itself is created later; now its nearest existing parent must accept a new file.
        place = Path(path).absolute()
        while not place.exists() and place != place.parent:
            place = place.parent
        try:
            with tempfile.TemporaryFile(dir=place):
                pass
        except OSError as error:
            rule = f"{flag} {path} cannot be written: {error.strerror}"
            raise OptionError(rule, hint=f"{flag} /tmp/run") from error


def check_memory(config: Config) -> None:
    """Refuse a model that cannot fit into memory, by a lower bound: one copy of the state, one micro-batch's logits."""
    options, shape, layout = config.options, config.shape, config.layout
    state = 4 * (8 if options.dtype == "fp64" else 4)  # bytes per weight: master, gradient and two moments
    tokens = config.micro_batch * shape.sequence
    needs = {
        "a smaller --model, or fewer --layers": shape.parameters * state / layout.world,
        "a smaller --batch": 16 * config.local_batch * shape.sequence / layout.cp,  # tokens and targets
        "a smaller --micro-batch": tokens * shape.vocab * config.compute.itemsize / (layout.cp * layout.tp),
    }
    room, needed = rank_memory(config.device), sum(needs.values())
    rule = f"each rank needs at least {needed / 2**30:,.1f} GiB of memory, and has {room / 2**30:,.1f} GiB"
    refuse(needed > room, rule, max(needs, key=needs.__getitem__))


def check_gloo(config: Config) -> None:
    """Refuse messages that gloo cannot send between processes that share a GPU; all processes have started."""
    options, layout = config.options, config.layout
    rule = "gloo, which processes on one GPU use, cannot send a GPU's tensors from rank to rank"
    passed_on = layout.pp > 1 or (layout.cp > 1 and options.cp_method == "ring")
    refuse(passed_on or options.tp_async, rule, "--backend nccl")


def check_links(config: Config) -> None:
    """Refuse the fault `slow-link` if the processes communicate over NCCL."""
    slow = any(fault.kind == "slow-link" for fault in config.faults)
    refuse(slow, "--fault slow-link acts on the sockets of gloo; GPUs talk through NCCL", "--device cpu")


def _divides(flag: str, size: int, phrase: str, number: int, otherwise: str = "") -> None:
    suggestion = _nearest_divisor(number, size)
    refuse(size != suggestion, f"{flag} {size} must divide {phrase} = {number}", f"{flag} {suggestion}{otherwise}")


def _multiple(flag: str, number: int, phrase: str, unit: int, *, most: int = 0) -> None:
    """Refuse a number that is not a multiple of a unit; the hint is the nearest multiple, at most `most` if given."""
    suggestion = _nearest_multiple(number, unit)
    if most:
        suggestion = min(suggestion, most // unit * unit)
    refuse(number % unit, f"{flag} {number} must be a multiple of {phrase} = {unit}", f"{flag} {suggestion}")


def _nearest_divisor(number: int, wanted: int) -> int:
    return min((part for part in range(1, number + 1) if number % part == 0), key=lambda part: abs(part - wanted))


def _nearest_multiple(number: int, unit: int) -> int:
    return max(round(number / unit), 1) * unit
