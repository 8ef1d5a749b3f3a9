"""Stalls: what a pipeline's sends between nodes cost beyond their bytes, and how likely a run stalls on them.

Measured in one sweep (Ultra-Scale Playbook: nanotron on 8 to 128 H100 with EFA); profiles of other trainers have
neither. The cause is not documented. What the 710 pipelines over several nodes show:

    held up   A layer takes at least as long as its launches, and these take longer the more ranks of tp there are:
              about 9 ms without tp, 15 with 4, 24 with 8, 52 with 16 and 140 with 32, forward and backward together,
              whatever the model, the micro-batch and the depth. Without a pipeline, or inside a node: 5 ms.
    stalled   Some runs lose 1.3 s x (p-1)/p more for each micro-batch. A few do anywhere, more the more links there
              are (one of them is enough); most do that reduce whole gradients (ZeRO-0) after 16 micro-batches or more,
              and most whose memory is full.

A chance is no prediction: where it is below one half, the step is that of a run that does not stall, and the choice
weighs the chance (`expected`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.configuration import FULL
from usp_prof.planner import memory

if TYPE_CHECKING:
    from usp_prof.model.shape import Column
    from usp_prof.planner.cases import Cases
    from usp_prof.planner.stages import Stages

TENSOR_POWER = 1.5
"""How a held-up layer grows with tp: 4, 8, 16 and 32 ranks were measured to add 6, 15, 42 and 125 ms."""
MANY_MICRO_BATCHES = 16
"""From so many on whole gradients stall: 61 of 74 runs, of those with fewer 2 of 18."""
LIKELY = 0.5


def crosses_nodes(c: Cases) -> Column:
    """Tell which pipelines send between nodes."""
    return np.asarray((c.pp > 1) & (c.devices > c.machine.node))


def held_up(c: Cases, layer: Column) -> Column:
    """Give what a layer's launches take beyond `layer` seconds, forward and backward together."""
    p = c.profile
    launches = p.host_pipeline + p.host_pipeline_tensor * c.tp**TENSOR_POWER
    # Full recomputation launches forward, a third of all, once more.
    launches = launches * np.where(c.recompute == FULL, 4 / 3, 1.0)
    launches = np.where(crosses_nodes(c), launches, 0.0)
    return np.asarray((layer**4 + launches**4) ** 0.25 - layer)


def seconds(c: Cases) -> Column:
    """Give what a step takes longer where it stalls."""
    return np.where(c.pp > 1, c.profile.stall * c.chunks * (c.pp - 1) / c.pp * c.micro_batches, 0.0)


def chance(c: Cases, stages: Stages) -> Column:
    """Give how likely a step stalls: 0 where nobody measured that it can."""
    p = c.profile
    if not np.any(np.asarray(p.stall) > 0):
        return np.zeros(np.shape(c.pp))
    each = np.where(reduces_whole_gradients(c), p.stall_of_whole_gradients, p.stall_of_link)
    of_links = np.where(crosses_nodes(c), 1 - (1 - each) ** links(c), 0.0)
    return np.where(np.asarray(p.stall) > 0, np.maximum(of_links, chance_of_full_memory(c, stages)), 0.0)


def chance_of_full_memory(c: Cases, stages: Stages) -> Column:
    """Give how likely the memory of a pipeline is full, as the planner predicts it."""
    peak = memory.total(memory.fullest(memory.of_stages(c, stages)))
    room = np.asarray(c.machine.memory_bytes) - c.profile.context_bytes
    return np.where(c.pp > 1, 1 - memory.fit_probability(peak, room, c.profile.memory_spread), 0.0)


def reduces_whole_gradients(c: Cases) -> Column:
    """Tell which reduce whole gradients after many micro-batches."""
    return np.asarray((c.zero == 0) & (c.dp * c.cp > 1) & (c.micro_batches >= MANY_MICRO_BATCHES))


def links(c: Cases) -> Column:
    """Count the pairs of neighbours in all pipelines."""
    return np.asarray(c.dp * c.cp * c.tp * (c.pp - 1))


def running(step: Column, stall: Column, chance: Column) -> Column:
    """Give the step where nothing stalls; `step` holds the stall where that is more likely than not."""
    return step - np.where(np.asarray(chance) > LIKELY, stall, 0.0)


def expected(step: Column, stall: Column, chance: Column) -> Column:
    """Give the step of the mean speed, of runs that stall and of those that do not."""
    runs = running(step, stall, chance)
    return 1 / ((1 - chance) / runs + chance / (runs + stall))
