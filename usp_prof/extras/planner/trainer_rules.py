"""Words and rules that the launch commands of several trainers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from usp_prof.contract import ModelEntry
from usp_prof.model.configuration import Configuration
from usp_prof.model.footprint import MASTER_AND_MOMENTS
from usp_prof.schedule import schedule_by_name

Rules = Iterator[tuple[bool, str]]
"""For each rule, whether the configuration breaks it, and the message."""
PLAIN_FORMS = ("full", "dense", "mixture")
"""Forms of layer blocks that a trainer's model options can describe."""


class Trainer(NamedTuple):
    """Command of a trainer, and its rules."""

    words: Callable[[ModelEntry, Configuration, int], list[str]]
    """Returns the words for a model, a configuration and a number of devices per node."""
    rules_of_model: Callable[[ModelEntry], Rules]
    """Yields why there is no command for a model, whatever the configuration."""
    rules: Callable[[ModelEntry, Configuration], Rules]
    """Yields why it cannot run a configuration."""


def torchrun(c: Configuration, node: int) -> str:
    """Return the torchrun words that start one process per device, on equally many devices of each node."""
    nodes = next(count for count in range(-(-c.devices // node), c.devices + 1) if c.devices % count == 0)
    words = f"torchrun --nproc-per-node {c.devices // nodes}"
    return f"{words} --nnodes {nodes}" if nodes > 1 else words


def has_other_optimizer(c: Configuration) -> bool:
    """Return whether the optimizer state is not the usual one: float32 moments, and a copy of 16-bit weights."""
    return c.optimizer_bytes not in (0, 8 if c.dtype == "fp32" else MASTER_AND_MOMENTS)


def rules_in_pytorch(model: ModelEntry, c: Configuration) -> Rules:
    """Yield the rules of trainers that use PyTorch's own pipelines and meshes: ours and torchtitan."""
    schedule = schedule_by_name(c.schedule)
    yield c.pp > 1 and not (schedule and schedule.traits.pytorch_name), f"PyTorch has no schedule {c.schedule}"
    key_values = model.kv_heads or model.heads
    yield key_values % c.tp != 0, f"tp={c.tp} does not divide {key_values} key/value heads"
    slices = (c.tp if c.sequence_parallel else 1) * (2 * c.cp if c.cp > 1 else 1)
    yield model.sequence % slices != 0, f"tp and cp need a sequence in multiples of {slices} tokens"
    yield c.replicas > 1 and c.dp % c.replicas != 0, f"{c.replicas} replicas do not divide dp={c.dp}"
    ranks = c.shards * c.tp
    yield bool(model.experts) and ranks % c.ep != 0, f"ep={c.ep} does not divide the {ranks} ranks of a replica's stage"


def rules_except_megatron(c: Configuration) -> Rules:
    """Yield the rules of every trainer except Megatron."""
    some = c.recompute_layers > 0 or c.recompute_group > 1
    yield some, "it cannot recompute only some layers, or groups of layers"
    yield bool(c.recompute_modules), "it cannot choose the modules to recompute"
    yield c.offload_layers > 0, "it does not offload activations"
    yield not c.fused_attention, "its attention is always fused"
    yield c.expert_overlap, "it does not overlap the expert exchange with another micro-batch"
    yield has_other_optimizer(c), "it keeps its optimizer state in float32"


def has_plain_layers(model: ModelEntry) -> bool:
    """Return whether all layers are equal, with plain attention."""
    return len(model.layer_kinds) < 2 and has_plain_blocks(model)


def has_plain_blocks(model: ModelEntry) -> bool:
    """Return whether all layers have the same plain attention, and a dense feed-forward block or experts."""
    kinds = model.layer_kinds
    forms = {block.form for kind in kinds for block in kind.blocks}
    return forms <= set(PLAIN_FORMS) and len(kinds) < 3 and all(kind.blocks[0] == kinds[0].blocks[0] for kind in kinds)
