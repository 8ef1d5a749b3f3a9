"""Pipeline stalls: time of sends between nodes beyond their bytes, and the probability that a run stalls on them.

Both are measured in one sweep: the Ultra-Scale Playbook's, with nanotron on 8 to 128 H100 with EFA. Its 710 pipelines
over several nodes show two effects without a documented cause. Profiles of other trainers have neither.

1. Slow launches (`held_up`). A layer takes at least as long as its launches. In a pipeline between nodes they take this
   time, forward and backward together, independent of the model, the micro-batch and the depth:

       ranks of tp        1   4   8   16   32
       ms per layer       9  15  24   52  140      (5 ms without a pipeline, or inside one node)

2. Stalls (`seconds`, `chance`). Some runs lose 1.3 s x (p-1)/p more for each micro-batch. Stalls are likely with
       many links      one stalled link is enough, so the probability grows with their number
       ZeRO-0          most runs that reduce whole gradients, after 16 micro-batches or more
       full memory     most runs whose memory is full

Both apply only to the sweep's hardware (`was_measured`): H100, up to 512 devices in nodes of 8. Elsewhere stalls are
not predicted, and the interval is wider.

A probability is not a prediction: below one half, the predicted step is that of a run without a stall. The choice
between configurations uses the probability (`expected`).

    step 10 s, a stall costs 5 s, probability 0.2:   predicted 10 s,  expected 1 / (0.8/10 + 0.2/15) = 10.7 s
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from usp_prof.extras.planner import memory
from usp_prof.extras.planner.cases import Cases
from usp_prof.extras.planner.compute import smooth_maximum
from usp_prof.extras.planner.stages import Stages
from usp_prof.model.shape import Column

TENSOR_POWER = 1.5
"""Power of tp with which launches grow: 4, 8, 16 and 32 ranks add 6, 15, 42 and 125 ms per layer (measured)."""
MANY_MICRO_BATCHES = 16
"""Micro-batches from which stalls are likely: 61 of 74 such ZeRO-0 runs stalled; with fewer, 2 of 18."""
SWEEP_PEAK, SWEEP_MEMORY_RATE, SWEEP_NODE, SWEEP_DEVICES = 989e12, 3.35e12, 8, 512
"""The sweep's devices: H100 by their bf16 peak and memory rate, in nodes of 8."""
LIKELY = 0.5
"""Probability above which the predicted step includes the stall."""


def crosses_nodes(c: Cases) -> Column:
    """Mark the pipelines that send between nodes."""
    return np.asarray((c.pp > 1) & (c.devices > c.machine.node))


def was_measured(c: Cases) -> NDArray[np.bool_]:
    """Return whether the sweep behind the profile's stalls covers the device and the number of devices."""
    p = c.profile
    same_device = np.isclose(c.machine.core_peak, SWEEP_PEAK) & np.isclose(c.machine.memory_rate, SWEEP_MEMORY_RATE)
    same_device = same_device & (np.asarray(c.machine.node) == SWEEP_NODE)
    return np.asarray((np.asarray(p.stall) > 0) & same_device & (c.devices <= SWEEP_DEVICES), bool)


def held_up(c: Cases, layer: Column) -> Column:
    """Return the seconds by which launches delay a layer of `layer` seconds, forward and backward together."""
    p = c.profile
    launches = p.host_pipeline + p.host_pipeline_tensor * c.tp**TENSOR_POWER
    # Full recomputation repeats the launches of forward, a third of all.
    launches = launches * (1 + c.recomputed_share / 3)
    launches = np.where(np.logical_and(crosses_nodes(c), was_measured(c)), launches, 0.0)
    return np.asarray(smooth_maximum(layer, launches) - layer)


def seconds(c: Cases) -> Column:
    """Return the seconds that a stall adds to a step."""
    return np.where(c.pp > 1, c.profile.stall * c.chunks * (c.pp - 1) / c.pp * c.micro_batches, 0.0)


def chance(c: Cases, stages: Stages) -> Column:
    """Return the probability that a step stalls, by its links or full memory; 0 if no stall was measured."""
    p = c.profile
    if not np.any(was_measured(c)):
        return np.zeros(np.shape(c.pp))
    of_one_link = np.where(reduces_whole_gradients(c), p.stall_of_whole_gradients, p.stall_of_link)
    of_any_link = np.where(crosses_nodes(c), 1 - (1 - of_one_link) ** links(c), 0.0)
    return np.where(was_measured(c), np.maximum(of_any_link, chance_of_full_memory(c, stages)), 0.0)


def chance_of_full_memory(c: Cases, stages: Stages) -> Column:
    """Return the probability that a pipeline's memory is full, by the planner's own prediction and its spread."""
    peak = memory.total(memory.fullest(memory.stage_parts(c, stages)))
    fits = memory.fit_probability(peak, c.machine.room_bytes, c.profile.memory_spread)
    return np.where(c.pp > 1, 1 - fits, 0.0)


def reduces_whole_gradients(c: Cases) -> Column:
    """Mark the runs that reduce whole gradients after many micro-batches."""
    return np.asarray((c.zero == 0) & (c.dp * c.cp > 1) & (c.micro_batches >= MANY_MICRO_BATCHES))


def links(c: Cases) -> Column:
    """Return the number of pairs of adjacent ranks in all pipelines."""
    return np.asarray(c.dp * c.cp * c.tp * (c.pp - 1))


def running(step: Column, stall: Column, chance: Column) -> Column:
    """Return the step without a stall; `step` includes the stall if its probability is above `LIKELY`."""
    return step - np.where(np.asarray(chance) > LIKELY, stall, 0.0)


def expected(step: Column, stall: Column, chance: Column) -> Column:
    """Return the step at the mean speed: speeds, not times, of runs that stall and runs that do not are averaged."""
    without = running(step, stall, chance)
    return 1 / ((1 - chance) / without + chance / (without + stall))
