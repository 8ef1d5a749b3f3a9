"""Search: every legal configuration of a model on so many devices, predicted at once and ranked by speed.

Configurations are columns from the start (`usp_prof.model.configuration.Columns`): a million of them are checked,
measured against memory and timed in a few array operations. Only those that are shown become records.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import product
from math import log
from typing import TYPE_CHECKING, Any

import numpy as np

from usp_prof.model.configuration import (
    RECOMPUTES,
    SCHEDULES,
    Columns,
    Configuration,
    Recompute,
    breaks_rule,
)
from usp_prof.model.errors import UsageError
from usp_prof.model.shape import shape_of
from usp_prof.planner import memory
from usp_prof.planner.cases import cases_of, machine_of, with_columns
from usp_prof.planner.choice import Barred, barred
from usp_prof.planner.predict import Prediction, records
from usp_prof.planner.profiles import DEFAULT_PROFILE, Profile
from usp_prof.planner.step import step
from usp_prof.schedule import Schedule, named

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from usp_prof.contract import ModelEntry
    from usp_prof.planner.cases import Cases
    from usp_prof.planner.cluster import Cluster

PIPELINES = (
    (Schedule.ONE_F_ONE_B, 1), (Schedule.INTERLEAVED, 2), (Schedule.INTERLEAVED, 4), (Schedule.ZB_H1, 1),
    (Schedule.ZBV, 2), (Schedule.DUALPIPE_V, 2),
)  # fmt: skip
"""The schedules tried where there is a pipeline, with their stages on a rank."""
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
EQUAL = 1.005
"""Steps whose ratio is smaller count as equally long."""
SHOWN = 1000
"""So many of the fastest become records, beside the fastest of each set of degrees and the Pareto front."""
PINNABLE = (
    "dp", "tp", "cp", "pp", "ep", "etp", "zero", "micro_batch", "micro_batches", "chunks", "schedule", "recompute",
    "replicas", "sequence_parallel",
)  # fmt: skip
"""Knobs that a question may hold fast."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be planned: `batch` counts sequences of a step over all devices; `pinned` knobs are held fast."""

    model: ModelEntry
    cluster: Cluster
    devices: int
    batch: int
    dtype: str = "bf16"
    convention: str = "palm"
    gradient_bytes: float = 0.0
    profile: Profile = DEFAULT_PROFILE
    pinned: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plans:
    """What was found: the plans that fit, fastest first; how many were tried and fit; the leanest where none fits."""

    question: Question
    best: tuple[Prediction, ...]
    tried: int
    fitting: int
    leanest_bytes: int
    barred: tuple[Barred, ...] = ()
    """Values of knobs with which nothing fits."""

    def pareto(self) -> tuple[Prediction, ...]:
        """Give the plans that no other beats in both speed and memory, fastest first."""
        found: list[Prediction] = []
        for plan in self.best:
            if not found or plan.footprint.total_bytes < found[-1].footprint.total_bytes:
                found.append(plan)
        return tuple(found)


def search(question: Question, progress: Callable[[int, int], None] | None = None) -> Plans:
    """Try every legal configuration; `progress` hears how many of those that fit have been predicted."""
    columns = legal(question)
    tried = len(columns.dp)
    if not tried:
        raise UsageError(
            f"no legal configuration spreads {question.batch} sequences over {question.devices} devices",
            hint="choose a batch that the number of devices divides, other devices, or pin less",
        )
    cases = with_columns(shape_of(question.model), machine_of(question.cluster), question.profile, columns)
    need = _totals(cases)
    fits = need <= question.cluster.room_bytes
    ruled_out = barred(columns, need, fits)
    fits &= ~_recomputes_needlessly(columns, fits)
    chosen = np.flatnonzero(fits)
    best: list[Prediction] = []
    if chosen.size:
        seconds = step(_rows(cases, chosen)).expected
        picked = chosen[_shown(seconds, need[chosen], columns, chosen)]
        configurations = [_configuration(columns, row, question.dtype) for row in picked.tolist()]
        subset = cases_of(cases.shape, cases.machine, cases.profile, configurations)
        made = records(subset, configurations, [question.model] * len(configurations), question.convention)
        best = sorted(made, key=_rank)
    if progress is not None:
        progress(len(best), len(best))
    return Plans(question, tuple(best), tried, int(chosen.size), int(need.min()), ruled_out)


def _totals(cases: Cases) -> NDArray[np.float64]:
    return np.max([memory.total(each) for each in memory.of_stages(cases)], axis=0)  # type: ignore[no-any-return]


def _recomputes_needlessly(c: Columns, fits: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark what recomputes although the same configuration fits with less of it: it is never faster.

    Rows that differ only in recomputation are neighbours, the least of it first (see `legal`).
    """
    alike = np.ones(len(fits), bool)
    alike[0] = False
    for name in (each.name for each in fields(Columns)):
        if name != "recompute":
            column = np.broadcast_to(getattr(c, name), fits.shape)
            alike[1:] &= column[1:] == column[:-1]
    group = np.cumsum(~alike)
    first = np.full(group[-1] + 1, len(fits))
    np.minimum.at(first, group[fits], np.flatnonzero(fits))
    return fits & (np.arange(len(fits)) > first[group])  # type: ignore[no-any-return]


def _shown(
    seconds: NDArray[np.float64], need: NDArray[np.float64], c: Columns, chosen: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Pick the fastest, the fastest of each set of degrees, and the Pareto front of speed and memory."""
    order = np.lexsort((need, seconds))
    front = order[need[order] < np.concatenate([[np.inf], np.minimum.accumulate(need[order])[:-1]])]
    degrees = np.stack([np.asarray(getattr(c, name))[chosen][order] for name in ("dp", "tp", "cp", "pp", "ep", "zero")])
    _, firsts = np.unique(degrees, axis=1, return_index=True)
    return np.unique(np.concatenate([order[:SHOWN], order[firsts[:SHOWN]], front[:SHOWN]]))


def _rank(plan: Prediction) -> tuple[int, int, int, float, str]:
    """Order by the speed to be expected; within half a percent, which nothing tells apart, the simpler, then leaner."""
    c = plan.configuration
    axes = sum(degree > 1 for degree in c.degrees().values())
    return round(log(plan.expected_step_ns) / log(EQUAL)), axes, c.devices // c.dp, plan.footprint.total_bytes, str(c)


def configurations(question: Question) -> list[Configuration]:
    """List the legal configurations, each once."""
    columns = legal(question)
    return [_configuration(columns, row, question.dtype) for row in range(len(columns.dp))]


def legal(question: Question) -> Columns:
    """List the legal configurations as columns; those that differ only in recomputation are neighbours."""
    pinned = question.pinned
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
    )  # fmt: skip
    keep = _worth_trying(columns, split == 1, schedule == schedules[0][0], chunks == schedules[0][1])
    keep &= ~breaks_rule(question.model, columns)
    for name in ("dp", "tp", "cp", "pp", "micro_batches"):
        if name in pinned:
            keep &= getattr(columns, name) == pinned[name]
    return _column_rows(columns, np.flatnonzero(keep))


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
        chosen = [pair for pair in chosen if pair[0] is schedule]
        if not chosen and schedule is not None:
            chosen = [(schedule, int(pinned.get("chunks", schedule.traits.usual_stages_per_rank)))]
    elif not chosen:
        chosen = [(Schedule.INTERLEAVED, int(pinned["chunks"]))]
    return chosen


def _pinned(pinned: Mapping[str, Any], name: str, choices: Sequence[Any]) -> Sequence[Any]:
    return (pinned[name],) if name in pinned else choices


def _column_rows(c: Columns, rows: NDArray[np.int64]) -> Columns:
    return Columns(**{each.name: np.asarray(getattr(c, each.name))[rows] for each in fields(Columns)})


def _rows(cases: Cases, rows: NDArray[np.int64]) -> Cases:
    return with_columns(cases.shape, cases.machine, cases.profile, _column_rows(cases, rows))


def _configuration(c: Columns, row: int, dtype: str) -> Configuration:
    names = ("dp", "tp", "cp", "pp", "ep", "etp", "zero", "micro_batch", "micro_batches", "chunks", "replicas")
    degrees: dict[str, Any] = {name: int(getattr(c, name)[row]) for name in names}
    return Configuration(
        **degrees,
        schedule=str(SCHEDULES[int(c.schedule[row])]),
        recompute=RECOMPUTES[int(c.recompute[row])],
        dtype=dtype,
        sequence_parallel=bool(c.sequence_parallel[row]),
        gradient_bytes=float(c.gradient_bytes[row]),
    )


def grid(plans: Plans, rows: str, columns: str) -> dict[tuple[int, int], Prediction]:
    """Give the fastest plan for each pair of `GRID_AXES`, such as rows `tp` and columns `pp`."""
    found: dict[tuple[int, int], Prediction] = {}
    for plan in plans.best:
        found.setdefault((getattr(plan.configuration, rows), getattr(plan.configuration, columns)), plan)
    return found


GRID_AXES = ("tp", "pp", "dp", "cp", "ep", "zero", "micro_batch")
"""What a grid may have on its sides."""


def _divisors(number: int) -> tuple[int, ...]:
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return tuple(sorted({*small, *(number // each for each in small)}))
