"""Pipeline filling: wait of the busiest rank while stages fill and drain.

GPipe, 1F1B and interleaved pipelines have a closed form: all ranks but the busiest fill and drain once, and interleaved
ones faster by the number of stages per rank. Schedules that split backward hide part of it behind weight gradients; the
rest depends on the durations of F, I and W:

    remaining share of filling = (F + I - W) / (F + I + W)     ZB-H1 (Qi et al. 2023); 1/3 if all are equally long

The closed form is used to search a million configurations. Plans that are shown are simulated instead (`simulated`),
with the schedule's own order of actions, and each stage's F, I and W of its layers and of the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from usp_prof.extras.planner.cases import Cases
from usp_prof.extras.planner.stages import head_cost, layers_of_each_stage
from usp_prof.model.configuration import IS_LOOPED, IS_V_SHAPED, SCHEDULES
from usp_prof.model.shape import Column
from usp_prof.schedule import Schedule, Shape
from usp_prof.schedule_orders import Action, Kind, needs_of, order, simulate, stage_ranks

if TYPE_CHECKING:
    Seconds = NDArray[np.float64]

SPLITS = np.array([schedule.traits.splits_backward for schedule in SCHEDULES])
ENOUGH = 3
"""Micro-batches, as a multiple of the depth, after which each further one adds the busiest rank's time for it."""
MOST_ACTIONS = 20_000
"""Maximum number of actions to simulate, each one step of a loop; larger pipelines use the closed form."""


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of one micro-batch by action; each entry is for a layer, the head, or 0."""

    layer: Mapping[Kind, Column]
    head: Mapping[Kind, Column]


def closed(c: Cases, work: Work, most: Column, all_ranks: Column) -> Column:
    """Return the seconds of filling and draining of a micro-batch: `most` on the busiest rank, `all_ranks` on all."""
    inputs, weights = work.layer[Kind.INPUT_GRADIENT], work.layer[Kind.WEIGHT_GRADIENT]
    before_weights = work.layer[Kind.FORWARD] + inputs
    left = np.maximum(before_weights - weights, 0.0) / (before_weights + weights)
    left = np.where(SPLITS[c.schedule], left, 1.0)
    divided = np.where(IS_LOOPED[c.schedule] | IS_V_SHAPED[c.schedule], c.stages_of_rank, 1)
    return np.asarray(left * (all_ranks - most) / divided)


def simulated(c: Cases, work: Work, most: Column, closed_form: Column) -> Column:
    """Return the simulated filling for schedules that split backward, and `closed_form` for all others.

    Messages between stages are excluded. Cases with the same pipeline are simulated together, as columns.
    """
    idle = np.array(np.broadcast_to(closed_form, c.dp.shape), float)
    rows = np.flatnonzero(SPLITS[c.schedule] & (c.pp > 1))
    if not rows.size:
        return idle
    number = np.minimum(c.micro_batches, ENOUGH * c.pp)
    keys = (c.schedule, c.pp, c.stages_of_rank, number, c.shape.layers, c.profile.uneven, head_cost(c.shape))
    table = np.stack([np.broadcast_to(np.asarray(key, float), c.dp.shape)[rows] for key in keys])
    different, place = np.unique(table, axis=1, return_inverse=True)
    busiest = np.broadcast_to(np.asarray(most, float), c.dp.shape)
    for group, (schedule, ranks, chunks, micro_batches, layers, uneven, head) in enumerate(different.T.tolist()):
        shape = Shape(int(ranks), int(micro_batches), int(chunks))
        if 3 * shape.ranks * shape.chunks * shape.micro_batches > MOST_ACTIONS:
            continue
        of_group = rows[place.ravel() == group]
        held = layers_of_each_stage(int(layers), shape.ranks * shape.chunks, uneven=bool(uneven), head=head)
        seconds = _durations(work, held, c.dp.shape, of_group)
        window = _window(graph_of(SCHEDULES[int(schedule)], shape), seconds)
        idle[of_group] = np.maximum(window - busiest[of_group] * shape.micro_batches, 0.0)
    return idle


def _durations(
    work: Work, held: tuple[int, ...], size: tuple[int, ...], rows: NDArray[np.int64]
) -> dict[tuple[int, Kind], Seconds]:
    """Return the seconds of each stage's actions, one entry per row; B is I and W together."""
    of_layer, of_head = (
        {kind: np.broadcast_to(np.asarray(value, float), size)[rows] for kind, value in by_kind.items()}
        for by_kind in (work.layer, work.head)
    )
    seconds = {
        (stage, kind): layers * of_layer[kind] + (of_head[kind] if stage == len(held) - 1 else 0.0)
        for stage, layers in enumerate(held)
        for kind in of_layer
    }
    for stage in range(len(held)):
        seconds[stage, Kind.BACKWARD] = seconds[stage, Kind.INPUT_GRADIENT] + seconds[stage, Kind.WEIGHT_GRADIENT]
    return seconds


@dataclass(frozen=True, slots=True)
class Graph:
    """Actions of a schedule in topological order: each one follows all that it waits for."""

    actions: tuple[tuple[int, Kind], ...]
    """Stage and kind of each action."""
    waits_for: tuple[tuple[int, ...], ...]
    """Indexes of the actions that must end first: the previous one on its rank, and its inputs."""


@lru_cache(maxsize=64)
def graph_of(schedule: Schedule, shape: Shape) -> Graph:
    """Return the dependency graph of a schedule, which does not depend on durations."""
    actions = simulate(order(schedule, shape), lambda _: 1).actions
    home, stages = stage_ranks(schedule, shape), shape.ranks * shape.chunks
    # Indexes in the order: of each finished action, and of the last one on each rank (-1: none yet).
    ended: dict[Action, int] = {}
    last_of_rank = [-1] * shape.ranks
    waits_for = []
    for place, action in enumerate(actions):
        rank = home[action.stage]
        before = [ended[need] for need in needs_of(action, stages, ended)]
        waits_for.append(tuple(before + ([last_of_rank[rank]] if last_of_rank[rank] >= 0 else [])))
        ended[action] = last_of_rank[rank] = place
    return Graph(tuple((action.stage, action.kind) for action in actions), tuple(waits_for))


def _window(graph: Graph, seconds: Mapping[tuple[int, Kind], Seconds]) -> Seconds:
    """Return the time from first start to last end if every action starts when the last one it waits for has ended."""
    ends: list[Seconds] = []
    nothing = np.zeros_like(next(iter(seconds.values())))
    for action, before in zip(graph.actions, graph.waits_for, strict=True):
        start = ends[before[0]] if before else nothing
        for other in before[1:]:
            start = np.maximum(start, ends[other])
        ends.append(start + seconds[action])
    return np.asarray(np.max(ends, axis=0))
