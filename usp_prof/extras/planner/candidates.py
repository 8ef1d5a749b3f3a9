"""Candidates: the legal configurations of a model on a number of devices, as columns, with partial recomputation.

Rows that equal another row or are not modeled are omitted.

Full recomputation is searched first, with every layer and one layer at a time. If it fits but keeping everything does
not, bisection finds the smallest number of recomputed layers per stage that fits, because fewer are faster. If it does
not fit, groups of layers keep one input together (Megatron's `uniform`), which takes no more time.

    recomputed layers per stage   0 (none)  1  2  3  4 (all)
    fits                          no        no no yes yes      -> 3
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from usp_prof.extras.planner import memory
from usp_prof.extras.planner.cases import Cases, concatenated, rows_of, selected
from usp_prof.extras.planner.model_rules import breaks_rule, modules_named, modules_of_code, rule_broken_by_all
from usp_prof.extras.planner.profiles import expert_tp_of, gradient_bytes_of
from usp_prof.extras.planner.question import Question
from usp_prof.extras.planner.stages import Stages, leaves_rank_empty
from usp_prof.model.configuration import (
    FULL,
    INTEGERS,
    MODULES,
    NONE,
    RECOMPUTES,
    SCHEDULES,
    Columns,
    Configuration,
    Offload,
    Recompute,
    code_of_modules,
)
from usp_prof.model.shape import Column, shape_of
from usp_prof.schedule import Schedule, schedule_by_name

Bytes = NDArray[np.float64]


PIPELINES = (
    (Schedule.ONE_F_ONE_B, 1), (Schedule.INTERLEAVED, 2), (Schedule.INTERLEAVED, 4), (Schedule.ZB_H1, 1),
    (Schedule.ZBV, 2), (Schedule.DUALPIPE_V, 2),
)  # fmt: skip
"""Schedules tried for pipelines, with their stages per rank."""
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
KNOBS = {
    "dp": "data-parallel ranks",
    "tp": "tensor-parallel ranks",
    "cp": "context-parallel ranks",
    "pp": "pipeline ranks",
    "ep": "expert-parallel ranks, borrowed from dp x cp",
    "etp": "tensor-parallel ranks per expert; 0: as the trainer does, usually tp",
    "zero": "ZeRO stage, 0 to 3",
    "micro_batch": "sequences per micro-batch",
    "micro_batches": "micro-batches per step and data-parallel rank",
    "chunks": "pipeline stages per rank",
    "schedule": "pipeline schedule",
    "recompute": "activations recomputed in backward",
    "replicas": "replicas of hybrid sharding (ZeRO-3 within each replica)",
    "sequence_parallel": "sequence parallelism with tensor parallelism",
    "recompute_layers": "layers per stage that full recomputation repeats; 0: all",
    "recompute_group": "layers that share one stored input",
    "recompute_modules": f"what selective recomputation repeats: {', '.join(MODULES)}",
    "offload_layers": "layers per rank whose activations are in host memory until backward",
    "expert_overlap": "expert exchange during the compute of another micro-batch",
    "loss_chunks": "chunks of tokens whose logits are in memory one at a time; 0: as the trainer does",
    "offload": "state kept in host memory",
}
"""Settings that a question may pin, with their help texts."""
COUNTS = ("dp", "tp", "cp", "pp", "ep", "micro_batch", "micro_batches", "chunks")
MOST_TRIED = 4
"""Number of batch sizes tried in either direction to find a legal one."""


def legal(question: Question) -> Columns:
    """Return the legal configurations as columns; those that differ only in recomputation are adjacent."""
    columns = _candidates(question)
    if not len(columns.dp):
        return columns
    keep = ~breaks_rule(question.model, columns)
    if question.profile.uneven:
        shape, depths = shape_of(question.model), np.unique(columns.pp)
        keep &= ~np.isin(columns.pp, [depth for depth in depths.tolist() if leaves_rank_empty(shape, depth)])
    return rows_of(columns, np.flatnonzero(keep))


def rule_against(question: Question) -> str:
    """Return the rule that makes all configurations of a question impossible; empty if there is no single one."""
    columns = _candidates(question)
    if not len(columns.dp):
        return ""
    return rule_broken_by_all(question.model, columns, configuration_of(columns, 0, question.dtype))


def _candidates(question: Question) -> Columns:
    """Return all configurations with the devices, the batch and the fixed settings; they may break a rule."""
    pinned = question.pinned
    pipelines = _pipelines(pinned)
    degrees, variants = _degrees(question), _variants(question, pipelines)
    # Every row of degrees with every variant: the variants of one row of degrees are adjacent.
    dp, tp, cp, pp, size = np.repeat(degrees, len(variants), axis=0).T
    ep, zero, hybrid, schedule, chunks, parallel, recompute = np.tile(variants, (len(degrees), 1)).T
    first_schedule, first_chunks = SCHEDULES.index(pipelines[0][0]), pipelines[0][1]

    def alike(value: Column) -> NDArray[Any]:
        return np.full(len(dp), value)

    expert_tp = expert_tp_of(question.profile, alike(pinned.get("etp", 0)), ep)
    width = 4 if question.dtype == "fp32" else 2
    of_trainer = float(gradient_bytes_of(question.profile, question.cluster.product_bytes))
    gradient = question.gradient_bytes or (4.0 if width == 4 else of_trainer)
    # Hybrid sharding: whole nodes shard, and their copies are reduced between nodes.
    ranks_of_node = np.maximum(question.cluster.devices_per_node // tp, 1)
    copies = np.maximum(dp * cp // ranks_of_node, 1)
    columns = Columns(
        dp=dp, tp=tp, cp=cp, pp=pp, ep=ep, etp=np.asarray(expert_tp),
        zero=zero, micro_batch=size,
        micro_batches=question.batch // (dp * size),
        chunks=np.where(pp > 1, chunks, 1),
        schedule=np.where(pp > 1, schedule, first_schedule),
        recompute=recompute,
        recompute_layers=alike(pinned.get("recompute_layers", 0)),
        recompute_group=alike(pinned.get("recompute_group", 1)),
        recompute_modules=alike(code_of_modules(modules_named(pinned.get("recompute_modules", ())))),
        offload_layers=alike(pinned.get("offload_layers", 0)),
        loss_chunks=alike(pinned.get("loss_chunks") or question.profile.loss_chunks),
        replicas=np.where(hybrid == 1, copies, pinned.get("replicas", 1)),
        width=alike(width), gradient_bytes=alike(gradient),
        optimizer_bytes=alike(question.optimizer_bytes),
        sequence_parallel=(parallel == 1), fused_attention=np.ones(len(dp), bool),
        offload=alike(pinned.get("offload", Offload.NONE) == Offload.OPTIMIZER),
        expert_overlap=alike(bool(pinned.get("expert_overlap", False))),
    )  # fmt: skip
    keep = _worth_trying(columns, hybrid == 1, schedule == first_schedule, chunks == first_chunks)
    if "zero" not in pinned:  # without shards, all stages are the same
        keep &= (zero == 0) | (dp * cp > 1)
    for name in ("dp", "tp", "cp", "pp", "micro_batches"):
        if name in pinned:
            keep &= getattr(columns, name) == pinned[name]
    return rows_of(columns, np.flatnonzero(keep))


def configuration_of(c: Columns, row: int, dtype: str) -> Configuration:
    """Return a row of the columns as a configuration."""
    degrees: dict[str, Any] = {name: int(getattr(c, name)[row]) for name in INTEGERS}
    return Configuration(
        **degrees,
        schedule=str(SCHEDULES[int(c.schedule[row])]),
        recompute=RECOMPUTES[int(c.recompute[row])],
        recompute_modules=modules_of_code(int(c.recompute_modules[row])),
        dtype=dtype,
        sequence_parallel=bool(c.sequence_parallel[row]),
        expert_overlap=bool(c.expert_overlap[row]),
        gradient_bytes=float(c.gradient_bytes[row]),
        optimizer_bytes=float(c.optimizer_bytes[row]),
        offload=Offload.OPTIMIZER if c.offload[row] else Offload.NONE,
    )


def nearest_legal(question: Question) -> str:
    """Return changes that make a question legal: other batch sizes, or values of one pinned knob; empty if none do."""
    pinned = question.pinned
    # The batch must be a multiple of the sequences of all dp ranks; 0 means any batch.
    rows = _degrees(replace(question, batch=0))
    for place, name in enumerate(("dp", "tp", "cp", "pp")):
        rows = rows[rows[:, place] == pinned.get(name, rows[:, place])]
    together = np.unique(rows[:, 0] * rows[:, 4])
    smaller = np.unique(question.batch // together * together)[::-1]
    larger = np.unique((question.batch // together + 1) * together)
    batches = [batch for side in (smaller, larger) for batch in side.tolist()[:MOST_TRIED] if batch]
    legal_batches = [batch for batch in batches if len(legal(replace(question, batch=batch)).dp)]
    if legal_batches:
        return f"batch {_around(np.unique(legal_batches), question.batch)}"
    for name in [name for name in COUNTS if name in pinned]:
        other_pins = {other: value for other, value in pinned.items() if other != name}
        values = np.unique(getattr(legal(replace(question, pinned=other_pins)), name))
        if values.size:
            return f"{name} {_around(values, pinned[name])}"
    return ""


def _around(values: NDArray[np.int64], wanted: int) -> str:
    """Return the nearest values below and above."""
    below, above = values[values < wanted], values[values > wanted]
    return " or ".join(str(value) for value in (*below[-1:], *above[:1]))


def _degrees(question: Question) -> NDArray[np.int64]:
    """Return the divisions of the devices, one row each: dp, tp, cp, pp and the sequences per micro-batch."""
    devices = question.devices
    sizes = _pinned(question.pinned, "micro_batch", MICRO_BATCHES)
    rows = [
        (devices // (pp * tp * cp), tp, cp, pp, size)
        for pp in _divisors(devices)
        for tp in _divisors(devices // pp)
        for cp in _divisors(devices // pp // tp)
        for size in sizes
    ]
    dividing_rows = [(dp, *degrees, size) for dp, *degrees, size in rows if question.batch % (dp * size) == 0]
    return np.array(dividing_rows, np.int64).reshape(-1, 5)


def _variants(question: Question, pipelines: Sequence[tuple[Schedule, int]]) -> NDArray[np.int64]:
    """Return the variants that can be combined with any degrees, one row each.

    Columns are ep, ZeRO stage, 1 for hybrid sharding, schedule, stages per rank, 1 for sequence parallelism, and
    recomputation. Schedule and recomputation are indexes in SCHEDULES and RECOMPUTES.
    """
    pinned = question.pinned
    experts = _divisors(question.model.experts) if question.model.experts else (1,)
    recomputes = _pinned(pinned, "recompute", list(Recompute))
    rows = product(
        _pinned(pinned, "ep", experts),
        _pinned(pinned, "zero", (0, 1, 2, 3)),
        (0,) if "replicas" in pinned else (0, 1),
        [(SCHEDULES.index(schedule), chunks) for schedule, chunks in pipelines],
        _pinned(pinned, "sequence_parallel", (1, 0)),
        [RECOMPUTES.index(Recompute(word)) for word in recomputes],
    )
    return np.array(
        [
            (ep, zero, hybrid, schedule, chunks, parallel, recompute)
            for ep, zero, hybrid, (schedule, chunks), parallel, recompute in rows
        ],
        np.int64,
    )


def _worth_trying(
    c: Columns, hybrid: NDArray[np.bool_], first_schedule: NDArray[np.bool_], first_chunks: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Mark rows that differ from all others and are modeled."""
    keep = (c.pp > 1) | (first_schedule & first_chunks)
    # With fewer micro-batches than ranks, some ranks are always idle, and PyTorch rejects them.
    keep &= (c.pp == 1) | (c.micro_batches >= c.pp)
    keep &= c.sequence_parallel | (c.tp > 1)
    # Hybrid sharding applies to ZeRO-3 without experts, over more than one node and fewer than all ranks.
    keep &= ~hybrid | (
        (c.zero == 3)
        & (c.replicas > 1)
        & (c.replicas < c.dp * c.cp)
        & (c.dp * c.cp % np.maximum(c.replicas, 1) == 0)
        & (c.ep == 1)
    )
    # ZeRO-3 with schedules that split backward would gather a third time.
    splits = np.array([schedule.traits.splits_backward for schedule in SCHEDULES])
    keep &= ~((c.zero == 3) & splits[c.schedule])
    return np.asarray(keep)


def _pipelines(pinned: Mapping[str, Any]) -> list[tuple[Schedule, int]]:
    chosen = [pair for pair in PIPELINES if pair[1] == pinned.get("chunks", pair[1])]
    if "schedule" in pinned:
        schedule = schedule_by_name(str(pinned["schedule"])) or Schedule.ONE_F_ONE_B
        chosen = [pair for pair in chosen if pair[0] is schedule]
        if not chosen:
            chosen = [(schedule, int(pinned.get("chunks", schedule.traits.usual_stages_per_rank)))]
    elif not chosen:
        chosen = [(Schedule.INTERLEAVED, int(pinned["chunks"]))]
    return chosen


def _pinned(pinned: Mapping[str, Any], name: str, choices: Sequence[Any]) -> Sequence[Any]:
    return (pinned[name],) if name in pinned else choices


def _divisors(number: int) -> tuple[int, ...]:
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return tuple(sorted({*small, *(number // divisor for divisor in small)}))


GROUPS = (2, 4, 8)


def refined(c: Cases, stages: Stages, need: Bytes, room: float) -> tuple[Columns, Bytes]:
    """Return further rows that fit, and their memory: with partial or grouped recomputation, unless fixed."""
    is_full = (c.recompute == FULL) & (c.recompute_layers == 0) & (c.recompute_group == 1)
    fits = need <= room
    in_part, their_need = _least_layers(*_rows(c, stages, np.flatnonzero(is_full & fits)), room)
    grouped, grouped_need = _least_group(*_rows(c, stages, np.flatnonzero(is_full & ~fits)), room)
    return concatenated(in_part, grouped), np.concatenate([their_need, grouped_need])


def _least_layers(c: Cases, stages: Stages, room: float) -> tuple[Columns, Bytes]:
    """Return rows with the fewest recomputed layers per stage that fit, if that is neither none nor all."""
    keeps_all = replace(c, recompute=np.full_like(c.recompute, NONE))
    c, stages = _rows(c, stages, np.flatnonzero(needs(keeps_all, stages) > room))
    too_few, enough = np.zeros(len(c.dp), np.int64), layers_of_stage(c)
    most = enough.copy()
    while (enough - too_few > 1).any():
        middle = (too_few + enough + 1) // 2  # rounded up, so that rows that are done stay as they are
        fits = needs(replace(c, recompute_layers=middle), stages) <= room
        enough, too_few = np.where(fits, middle, enough), np.where(fits, too_few, middle)
    c = replace(c, recompute_layers=enough)
    c, stages = _rows(c, stages, np.flatnonzero(enough < most))
    return concatenated(c), needs(c, stages)


def _least_group(c: Cases, stages: Stages, room: float) -> tuple[Columns, Bytes]:
    """Return rows with the smallest group of `GROUPS` that fits."""
    least = np.ones(len(c.dp), np.int64)
    for group in GROUPS:
        fits = needs(replace(c, recompute_group=np.full_like(least, group)), stages) <= room
        least = np.where((least == 1) & fits & (group <= layers_of_stage(c)), group, least)
    c = replace(c, recompute_group=least)
    c, stages = _rows(c, stages, np.flatnonzero(least > 1))
    return concatenated(c), needs(c, stages)


def layers_of_stage(c: Cases) -> NDArray[np.int64]:
    """Return the number of layers of the largest stage."""
    stages = c.pp * c.stages_of_rank
    return np.asarray(-(-np.asarray(c.shape.layers) // stages), np.int64)


def needs(c: Cases, stages: Stages) -> Bytes:
    """Return the peak memory of the fullest rank of each case."""
    return np.max([memory.total(rank_parts) for rank_parts in memory.stage_parts(c, stages)], axis=0)  # type: ignore[no-any-return]


def _rows(c: Cases, stages: Stages, rows: NDArray[np.int64]) -> tuple[Cases, Stages]:
    return selected(c, rows), Stages(**{field.name: getattr(stages, field.name)[:, rows] for field in fields(Stages)})
