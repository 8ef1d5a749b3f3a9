"""Memory: footprint of the fullest ranks, for many configurations at once, and the probability that they fit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from usp_prof.contract import ModelEntry
from usp_prof.extras.planner import messages
from usp_prof.extras.planner.cases import Cases, columns_by
from usp_prof.extras.planner.cluster import PRODUCT_BYTES
from usp_prof.extras.planner.profiles import Profile
from usp_prof.extras.planner.stages import WHERE, Stages, head_cost, ranks_of, stages_of
from usp_prof.model.configuration import SCHEDULES, Columns, Configuration
from usp_prof.model.footprint import (
    MASTER_AND_MOMENTS,
    Footprint,
    Habits,
    Parts,
    Stage,
    footprints,
    layer_activations,
    parameters,
)
from usp_prof.model.shape import Column, shape_of

LEAST_PROBABILITY, SAFE_PROBABILITY = 0.5, 0.9
"""Minimum probabilities for a configuration to fit, and to fit safely; between the two it is tight."""
NO_STAGE = 4
"""Value above all ZeRO stages, for tensors that are never sharded."""


def stage_parts(c: Cases, stages: Stages | None = None) -> tuple[Parts, ...]:
    """Return the footprint of the first, a middle and the last rank of each pipeline."""
    stages = stages or stages_of(c)
    habits = habits_of(c.profile, c, c.machine.product_bytes)
    rank_stages = [
        Stage(stages.layers[row], stages.embedding[row], stages.head[row], stages.in_flight[row])
        for row in range(len(WHERE))
    ]
    return tuple(footprints(c.shape, c, stage, habits) for stage in rank_stages)


def habits_of(p: Profile, c: Columns, product_bytes: Column) -> Habits:
    """Return a trainer's memory habits beyond the formulas; `product_bytes` are per value in the type of products."""
    keeps_gradients = (c.micro_batches > 1) & (messages.sums_per_step(p, c) == 1)
    # PyTorch's pipelines keep weights gathered in backward for the next forward.
    keeps_weights = np.logical_and(p.is_fsdp2, c.pp > 1)
    return Habits(
        p.activation_scale,
        p.logit_bytes,
        p.overhead_bytes,
        p.offload_keeps,
        first_stage_of_gradients=np.where(keeps_gradients, NO_STAGE, 2),
        first_stage_of_weights=np.where(keeps_weights, NO_STAGE, 3),
        input_bytes=np.where(p.casts_stored_inputs, np.minimum(product_bytes, 2.0), 2.0),
        inner_bytes=p.inner_bytes,
        expert_bytes=p.expert_bytes,
        is_selective_by_op=p.is_selective_by_op,
    )


def footprints_of_ranks(model: ModelEntry, configuration: Configuration, profile: Profile) -> tuple[Footprint, ...]:
    """Return the footprint of every pipeline rank of one configuration."""
    product_bytes = PRODUCT_BYTES.get(configuration.dtype, 2.0)
    shape, columns = shape_of(model), columns_by(profile, [configuration], product_bytes)
    schedule, chunks = int(columns.schedule[0]), configuration.chunks
    layers, micro_batches_in_flight = ranks_of(
        model.layers,
        configuration.pp,
        chunks,
        schedule,
        configuration.micro_batches,
        uneven=bool(profile.uneven),
        head=float(np.asarray(head_cost(shape))),
    )
    # V-shaped schedules bring the last stage back to the first rank.
    last = 0 if SCHEDULES[schedule].traits.is_v_shaped else configuration.pp - 1
    habits = habits_of(profile, columns, product_bytes)
    of_rank = []
    for rank, count in enumerate(layers):
        parts = footprints(shape, columns, Stage(count, rank == 0, rank == last, micro_batches_in_flight[rank]), habits)
        of_rank.append(Footprint(**{part: round(float(size[0])) for part, size in parts.items()}))
    return tuple(of_rank)


def total(parts: Parts) -> NDArray[np.float64]:
    """Return the sum of the parts."""
    return np.sum(list(parts.values()), axis=0)  # type: ignore[no-any-return]


def fullest(parts_by_rank: tuple[Parts, ...]) -> Parts:
    """Return the parts of the rank with the highest need, case by case."""
    worst = np.stack([total(rank_parts) for rank_parts in parts_by_rank]).argmax(axis=0)
    return {part: np.choose(worst, [rank_parts[part] for rank_parts in parts_by_rank]) for part in parts_by_rank[0]}


def weights_to_update(c: Cases, stages: Stages) -> NDArray[np.float64]:
    """Return the number of weights updated by the rank with the most of them."""
    counts = []
    for row in range(len(WHERE)):
        held = Stage(stages.layers[row], stages.embedding[row], stages.head[row], 1.0)
        dense, routed = parameters(c.shape, c, held)
        is_sharded = c.zero > 0
        counts.append(dense / np.where(is_sharded, c.shards, 1) + routed / np.where(is_sharded, c.expert_shards, 1))
    return np.max(counts, axis=0)  # type: ignore[no-any-return]


def offloaded_activations(c: Cases) -> Column:
    """Return the bytes of activations per micro-batch that wait in host memory."""
    if not np.any(c.offload_layers):
        return 0.0
    return c.offload_layers * layer_activations(c.shape, c, habits_of(c.profile, c, c.machine.product_bytes))


def host_bytes(c: Cases, stages: Stages) -> Column:
    """Return the host memory per device of an offloaded optimizer and of offloaded activations.

    The optimizer has the float32 master weight, two moments and the received gradient, and the weight before it is
    copied back.
    """
    optimizer = np.where(c.offload, weights_to_update(c, stages) * (MASTER_AND_MOMENTS + 4 + c.width), 0.0)
    return optimizer + offloaded_activations(c)


def fit_probability(peak: NDArray[np.float64], room: Column, spread: Column) -> NDArray[np.float64]:
    """Return the probability that a predicted peak is below the room: logistic, 80% of peaks within `spread`."""
    # A logistic distribution has 80% within 2.197 scales on either side.
    return np.asarray(1 / (1 + (peak / room) ** (2.197 / np.asarray(spread))))
