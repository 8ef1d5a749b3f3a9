"""Rules of a configuration: the degrees and options that are impossible for a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from usp_prof.contract import ModelEntry
from usp_prof.model.configuration import (
    ENDS,
    FULL,
    IS_LOOPED,
    IS_V_SHAPED,
    MODULES,
    NONE,
    SCHEDULES,
    SELECTIVE,
    Columns,
    Configuration,
    columns_of,
)
from usp_prof.model.errors import unknown_name
from usp_prof.model.shape import Column


def broken_rule(model: ModelEntry, configuration: Configuration) -> str:
    """Return the first rule that makes a configuration impossible for a model, or an empty text."""
    c = configuration
    counts = (c.micro_batch, c.micro_batches, c.chunks, c.replicas, c.recompute_group)
    if min(*c.degrees().values(), *counts) < 1 or min(c.etp, c.recompute_layers, c.offload_layers, c.loss_chunks) < 0:
        return "every degree and count is at least 1"
    columns = columns_of([c])
    return next((sentence for broken, sentence in _rules(model, columns, c) if np.any(broken)), "")


def breaks_rule(model: ModelEntry, columns: Columns) -> NDArray[np.bool_]:
    """Return for each configuration whether it breaks a rule; all degrees and counts are at least 1."""
    is_broken = np.zeros(len(np.atleast_1d(columns.dp)), bool)
    for broken, _ in _rules(model, columns, None):
        is_broken |= np.asarray(broken, bool)
    return is_broken


def rule_broken_by_all(model: ModelEntry, columns: Columns, first: Configuration) -> str:
    """Return a rule that all configurations break, in the words for the first one, or an empty text."""
    return next((sentence for broken, sentence in _rules(model, columns, first) if np.all(broken)), "")


def _rules(model: ModelEntry, columns: Columns, configuration: Configuration | None) -> Iterator[tuple[Column, str]]:
    """Yield for each rule where it is broken, and its sentence for one configuration."""
    c, say = columns, configuration or Configuration()
    looped = IS_LOOPED[c.schedule]
    least = np.array([schedule.traits.micro_batches_per_rank for schedule in SCHEDULES])[c.schedule]
    yield model.heads % c.tp != 0, f"tp={say.tp} does not divide the {model.heads} attention heads"
    if model.kv_heads:
        uneven = np.maximum(model.kv_heads, c.tp) % np.minimum(model.kv_heads, c.tp) != 0
        yield uneven, f"tp={say.tp} and {model.kv_heads} key/value heads do not divide one another"
    yield (c.cp > 1) & (model.sequence % (2 * c.cp) != 0), f"cp={say.cp} needs a sequence that 2 x cp divides"
    yield model.sequence % c.tp != 0, f"tp={say.tp} does not divide the sequence of {model.sequence} tokens"
    yield from _rules_of_stages(model, columns, say)
    if model.experts:
        yield model.experts % c.ep != 0, f"ep={say.ep} does not divide the {model.experts} experts"
    else:
        yield c.ep > 1, f"ep={say.ep} needs a model with experts"
    ranks = c.dp * c.cp
    expert_ranks = np.where(np.asarray(c.etp) == 1, ranks * c.tp, np.where(ranks % c.ep == 0, ranks, ranks * c.tp))
    yield expert_ranks % c.ep != 0, f"ep={say.ep} divides neither dp x cp = {say.shards} nor dp x cp x tp"
    yield (np.asarray(c.etp) > 0) & (c.tp % np.maximum(c.etp, 1) != 0), f"etp={say.etp} does not divide tp={say.tp}"
    yield c.expert_overlap & (c.ep == 1), "overlapping the expert exchange needs ep above 1"
    yield ranks % c.replicas != 0, f"{say.replicas} replicas do not divide dp x cp"
    yield (c.zero < 0) | (c.zero > 3), "ZeRO has stages 0 to 3"
    yield from _rules_of_recomputation(model, columns, say)
    several = (c.chunks > 1) & looped & (c.micro_batches % c.pp != 0)
    yield several, f"{say.schedule} needs micro-batches in multiples of pp={say.pp}, not {say.micro_batches}"
    few = (c.pp > 1) & (least > 1) & (c.micro_batches < least * c.pp)
    yield few, f"{say.schedule} needs more micro-batches than {say.micro_batches} for pp={say.pp}"


def _rules_of_stages(model: ModelEntry, c: Columns, say: Configuration) -> Iterator[tuple[Column, str]]:
    # V-shaped schedules have two stages per rank, even if the option is missing.
    fixed = np.where(IS_V_SHAPED[c.schedule] & (c.chunks > 1), 2, 1)
    refused = (c.pp > 1) & ~IS_LOOPED[c.schedule] & (c.chunks != fixed)
    has = "two stages" if IS_V_SHAPED[np.ravel(c.schedule)[0]] else "one stage"
    yield refused, f"{say.schedule} has {has} on each rank, not {say.chunks}"
    stages = c.pp * c.stages_of_rank
    of_rank = int(np.ravel(c.stages_of_rank)[0])
    # Megatron and torchtitan can count the embedding and the head as one layer each; they are then separate stages.
    too_many = stages > model.layers + ENDS
    yield too_many, f"{say.pp} x {of_rank} stages are more than the {model.layers} layers, embedding and head"


def _rules_of_recomputation(model: ModelEntry, c: Columns, say: Configuration) -> Iterator[tuple[Column, str]]:
    in_part, in_groups = c.recompute_layers > 0, c.recompute_group > 1
    yield (
        (in_part | in_groups) & (c.recompute != FULL),
        "recompute-layers and recompute-group need full recomputation",
    )
    yield (c.recompute_modules > 0) & (c.recompute != SELECTIVE), "recompute-modules needs selective recomputation"
    yield (c.offload_layers > 0) & (c.recompute != NONE), "layers are either recomputed or offloaded"
    yield c.offload_layers >= model.layers, f"offload-layers={say.offload_layers} leaves no layer on the device"
    yield in_part & in_groups, "recompute-layers and recompute-group exclude each other"
    most = -(-model.layers // (c.pp * c.stages_of_rank))
    sentence = f"a stage has fewer layers than recompute-layers={say.recompute_layers}"
    yield c.recompute_layers > most, sentence
    yield c.recompute_group > most, f"a stage has fewer layers than recompute-group={say.recompute_group}"


def modules_named(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return modules in the order of `MODULES`, from their names or from a text that lists them."""
    words = re.findall(r"\w+", names) if isinstance(names, str) else list(names)
    for name in words:
        if name not in MODULES:
            raise unknown_name("module", name, MODULES)
    return tuple(sorted(set(words), key=MODULES.index))


def modules_of_code(code: int) -> tuple[str, ...]:
    """Return the modules in a number of `code_of_modules`."""
    return tuple(module for place, module in enumerate(MODULES) if code >> place & 1)
