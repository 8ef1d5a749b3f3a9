"""Stages: number of layers on each pipeline rank, and of micro-batches it keeps at the same time.

Three ranks determine time and memory: the first (it keeps the most micro-batches, and the embedding), the last (the
head and the logits; in V-shaped schedules these are on the first rank), and the first rank between them with the most
layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from usp_prof.extras.planner.cases import Cases
from usp_prof.model.configuration import IS_V_SHAPED, SCHEDULES
from usp_prof.model.shape import Column
from usp_prof.model.shape import Shape as Model
from usp_prof.schedule import Schedule, Shape
from usp_prof.whatif.layout import in_flight, layers_of_stages

ENOUGH = 2
"""Micro-batches, as a multiple of the depth, after which the number kept no longer changes."""
TIE = 1e-9
"""Relative difference of costs that makes a tie an excess."""
WHERE = ("first", "middle", "last")


@dataclass(frozen=True, slots=True)
class Stages:
    """Arrays of three rows (first, middle, last rank) and one column per case."""

    layers: NDArray[np.float64]
    in_flight: NDArray[np.float64]
    """Micro-batches whose activations the rank keeps at its peak."""
    embedding: NDArray[np.bool_]
    head: NDArray[np.bool_]


def stages_of(c: Cases) -> Stages:
    """Return the layers of every case's stages."""
    s = c.shape
    head_layers = head_cost(s)
    keys = (s.layers, c.pp, c.chunks, c.schedule, c.micro_batches, c.profile.uneven, head_layers)
    columns = np.broadcast_arrays(*(np.asarray(key, float) for key in keys))
    table = np.stack([np.ravel(column) for column in columns])
    # More micro-batches only matter for GPipe, which keeps all, so only a few different pipelines remain.
    keeps_all = table[3] == SCHEDULES.index(Schedule.GPIPE)
    table[4] = np.where(keeps_all, table[4], np.minimum(table[4], ENOUGH * table[1]))
    different, place = np.unique(table, axis=1, return_inverse=True)
    laid = np.array([_laid(*column) for column in different.T.tolist()])
    laid_out = laid[place.ravel()].T
    alone, returns = table[1] == 1, IS_V_SHAPED[table[3].astype(int)]
    return Stages(
        layers=laid_out[:3],
        in_flight=laid_out[3:],
        embedding=np.stack([alone | True, alone, alone]),
        # V-shaped schedules bring the last stage back to the first rank.
        head=np.stack([alone | returns, alone, alone | ~returns]),
    )


def head_cost(s: Model) -> Column:
    """Return the ratio of the head's weights to those a token uses per layer, for splits by cost."""
    inner = s.dense_width + s.mixed * s.experts_per_token * s.expert_width
    layer = s.attention_in + s.attention_out + s.matrices * s.hidden * inner
    return np.asarray(s.vocabulary * s.hidden / layer)


@lru_cache(maxsize=65536)
def _laid(
    layers: float, ranks: float, chunks: float, schedule: float, micro_batches: float, uneven: float, head: float
) -> tuple[float, ...]:
    if ranks == 1:
        return (layers,) * 3 + (1.0,) * 3
    held, micro_batches_in_flight = ranks_of(
        int(layers), int(ranks), int(chunks), int(schedule), int(micro_batches), uneven=bool(uneven), head=head
    )
    between = held[1:-1] or held[:1]
    most = max(between)
    middle = 1 + between.index(most) if len(held) > 2 else 0
    return (
        held[0],
        most,
        held[-1],
        micro_batches_in_flight[0],
        micro_batches_in_flight[middle],
        micro_batches_in_flight[-1],
    )


def ranks_of(
    layers: int, ranks: int, chunks: int, schedule: int, micro_batches: int, *, uneven: bool, head: float
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the layers of each pipeline rank, and the micro-batches that it keeps; `head` is in layers' cost."""
    kind = SCHEDULES[schedule]
    if kind.traits.is_v_shaped and ranks > 1:
        chunks = 2
    stages = ranks * chunks
    layers_of_stage = layers_of_each_stage(layers, stages, uneven=uneven, head=head)
    home = [*range(ranks), *reversed(range(ranks))] if kind.traits.is_v_shaped else list(range(ranks)) * chunks
    held = [0] * ranks
    for stage, rank in enumerate(home[:stages]):
        held[rank] += layers_of_stage[stage]
    micro_batches_in_flight = _in_flight(kind, Shape(ranks, micro_batches, chunks)) if ranks > 1 else (1.0,)
    return tuple(held), micro_batches_in_flight


def layers_of_each_stage(layers: int, stages: int, *, uneven: bool, head: float) -> tuple[int, ...]:
    """Split layers over stages, by cost or as evenly as possible."""
    return by_cost(layers, stages, head) if uneven else layers_of_stages(layers, stages)


def _in_flight(kind: Schedule, shape: Shape) -> tuple[float, ...]:
    """Return the micro-batches that each rank keeps, in units of a whole rank's activations."""
    p, m, v = shape.ranks, shape.micro_batches, shape.chunks
    if kind is Schedule.ONE_F_ONE_B:
        return tuple(float(min(m, p - rank)) for rank in range(p))
    if kind is Schedule.GPIPE:
        return (float(m),) * p
    if kind is Schedule.INTERLEAVED:
        return tuple(min(m * v, (v - 1) * p + 2 * (p - 1 - rank) + 1) / v for rank in range(p))
    return tuple(count / v for count in in_flight(kind, shape))


def leaves_rank_empty(s: Model, ranks: int) -> bool:
    """Return whether nanotron's split by cost leaves a pipeline rank without any block, which it cannot run."""
    return ranks > 1 and _stages_of_blocks(int(s.layers), ranks, float(head_cost(s)))[-1] < ranks - 1


def by_cost(layers: int, stages: int, head: float) -> tuple[int, ...]:
    """Split layers so that each stage reaches its share of the cost, like nanotron; `head` is in layers' cost."""
    of_layers = _stages_of_blocks(layers, stages, head)[1 : layers + 1]
    return tuple(of_layers.count(stage) for stage in range(stages))


def _stages_of_blocks(layers: int, stages: int, head: float) -> list[int]:
    """Return the stage of each block: embedding, layers, last norm, head, cast and loss.

    The next stage starts when a stage's share of the cost is exceeded, or reached by a layer: in the sweep's 1B model
    the head weighs four layers, and four stages have 5, 5, 5 and 1 layers by their measured time and memory.
    """
    head *= 1 - TIE
    stage, cost, of_blocks = 0, 0.0, []
    for block in (0.0, *[1.0] * layers, 0.0, head, 0.0, 0.0):
        of_blocks.append(stage)
        cost += block
        if cost > (layers + head) * ((stage + 1) / stages):
            stage += 1
    return of_blocks
