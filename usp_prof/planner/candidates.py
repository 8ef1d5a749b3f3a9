"""Candidates: the legal configurations of a model on so many devices, as columns.

What is the same as another row, and what is not modelled, is left out.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from usp_prof.model.configuration import RECOMPUTES, SCHEDULES, Columns, Offload, Recompute, breaks_rule
from usp_prof.model.errors import unknown_name
from usp_prof.planner import partial_recompute
from usp_prof.schedule import Schedule, named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from usp_prof.planner.search import Question

PIPELINES = (
    (Schedule.ONE_F_ONE_B, 1), (Schedule.INTERLEAVED, 2), (Schedule.INTERLEAVED, 4), (Schedule.ZB_H1, 1),
    (Schedule.ZBV, 2), (Schedule.DUALPIPE_V, 2),
)  # fmt: skip
"""The schedules tried where there is a pipeline, with their stages on a rank."""
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
PINNABLE = (
    "dp", "tp", "cp", "pp", "ep", "etp", "zero", "micro_batch", "micro_batches", "chunks", "schedule", "recompute",
    "replicas", "sequence_parallel", "recompute_layers", "recompute_group", "offload",
)  # fmt: skip
"""Knobs that a question may hold fast."""


def legal(question: Question) -> Columns:
    """List the legal configurations as columns; those that differ only in recomputation are neighbours."""
    pinned = question.pinned
    for name, kind in (("recompute", Recompute), ("offload", Offload)):
        if name in pinned and pinned[name] not in list(kind):
            raise unknown_name(name, str(pinned[name]), list(kind))
    devices = question.devices
    degrees = np.array(
        [
            (devices // (pp * tp * cp), tp, cp, pp, size)
            for pp in _divisors(devices)
            for tp in _divisors(devices // pp)
            for cp in _divisors(devices // pp // tp)
            for size in _pinned(pinned, "micro_batch", MICRO_BATCHES)
            if question.batch % (devices // (pp * tp * cp) * size) == 0
        ],
        np.int64,
    ).reshape(-1, 5)
    experts = _divisors(question.model.experts) if question.model.experts else (1,)
    schedules = [(SCHEDULES.index(schedule), chunks) for schedule, chunks in _pipelines(pinned)]
    recomputes = [RECOMPUTES.index(Recompute(word)) for word in _pinned(pinned, "recompute", list(Recompute))]
    variants = np.array(
        [
            (ep, zero, split, schedule, chunks, parallel, recompute)
            for ep, zero, split, (schedule, chunks), parallel, recompute in product(
                _pinned(pinned, "ep", experts),
                _pinned(pinned, "zero", (0, 1, 2, 3)),
                (0, 1),
                schedules,
                _pinned(pinned, "sequence_parallel", (1, 0)),
                recomputes,
            )
        ],
        np.int64,
    )
    many, few = len(degrees), len(variants)
    dp, tp, cp, pp, size = np.repeat(degrees, few, axis=0).T
    ep, zero, split, schedule, chunks, parallel, recompute = np.tile(variants, (many, 1)).T
    width = 4 if question.dtype == "fp32" else 2
    # Hybrid sharding: whole nodes shard, and their copies are reduced between nodes.
    inside = np.maximum(question.cluster.devices_per_node // tp, 1)
    replicas = np.where(split == 1, np.maximum(dp * cp // inside, 1), pinned.get("replicas", 1))
    gradient = question.gradient_bytes or (4.0 if width == 4 else question.profile.gradient_bytes)
    columns = Columns(
        dp=dp, tp=tp, cp=cp, pp=pp, ep=ep, etp=np.full(len(dp), pinned.get("etp", 0)), zero=zero, micro_batch=size,
        micro_batches=question.batch // (dp * size), chunks=np.where(pp > 1, chunks, 1),
        schedule=np.where(pp > 1, schedule, schedules[0][0]), recompute=recompute, width=np.full(len(dp), width),
        sequence_parallel=(parallel == 1), fused_attention=np.ones(len(dp), bool), replicas=replicas,
        gradient_bytes=np.full(len(dp), gradient),
        recompute_layers=np.full(len(dp), pinned.get("recompute_layers", 0)),
        recompute_group=np.full(len(dp), pinned.get("recompute_group", 1)),
        offload=np.full(len(dp), pinned.get("offload", Offload.NONE) == Offload.OPTIMIZER),
    )  # fmt: skip
    keep = _worth_trying(columns, split == 1, schedule == schedules[0][0], chunks == schedules[0][1])
    keep &= ~breaks_rule(question.model, columns)
    for name in ("dp", "tp", "cp", "pp", "micro_batches"):
        if name in pinned:
            keep &= getattr(columns, name) == pinned[name]
    return partial_recompute.rows_of(columns, np.flatnonzero(keep))


def _worth_trying(
    c: Columns, hybrid: NDArray[np.bool_], first_schedule: NDArray[np.bool_], first_chunks: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Leave out what is the same as another row, and what is not modelled."""
    keep = (c.pp > 1) | (first_schedule & first_chunks)
    # Fewer micro-batches than ranks leave ranks idle throughout, and PyTorch refuses them.
    keep &= (c.pp == 1) | (c.micro_batches >= c.pp)
    keep &= c.sequence_parallel | (c.tp > 1)
    keep &= (c.zero == 0) | (c.dp * c.cp > 1)
    # Hybrid sharding is ZeRO-3's, over more than one node and less than all ranks, with no experts to place.
    keep &= ~hybrid | (
        (c.zero == 3)
        & (c.replicas > 1)
        & (c.replicas < c.dp * c.cp)
        & (c.dp * c.cp % np.maximum(c.replicas, 1) == 0)
        & (c.ep == 1)
    )
    # ZeRO-3 beside schedules that split backward would gather a third time.
    splits = np.array([schedule.traits.splits_backward for schedule in SCHEDULES])
    keep &= ~((c.zero == 3) & splits[c.schedule])
    return np.asarray(keep)


def _pipelines(pinned: Mapping[str, Any]) -> list[tuple[Schedule, int]]:
    chosen = [pair for pair in PIPELINES if pair[1] == pinned.get("chunks", pair[1])]
    if "schedule" in pinned:
        schedule = named(str(pinned["schedule"]))
        if schedule is None:
            raise unknown_name("schedule", str(pinned["schedule"]), list(Schedule))
        chosen = [pair for pair in chosen if pair[0] is schedule]
        if not chosen:
            chosen = [(schedule, int(pinned.get("chunks", schedule.traits.usual_stages_per_rank)))]
    elif not chosen:
        chosen = [(Schedule.INTERLEAVED, int(pinned["chunks"]))]
    return chosen


def _pinned(pinned: Mapping[str, Any], name: str, choices: Sequence[Any]) -> Sequence[Any]:
    return (pinned[name],) if name in pinned else choices


def _divisors(number: int) -> tuple[int, ...]:
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return tuple(sorted({*small, *(number // each for each in small)}))
