"""Baselines that the planner has to beat: a roofline for the step, a textbook formula for memory, a rule of thumb.

step     (compute + tensor + launches) * bubble + data + fixed + optimizer, each part times one fitted constant:
           compute    the model's FLOP over the peak
           tensor     bytes of tensor parallelism over the link that they cross
           launches   one for each layer and micro-batch
           bubble     1 + (p-1)/m, no constant
           data       bytes of data parallelism over the link that they cross
           fixed      the same for every step
           optimizer  its bytes over the memory's rate
memory   weights, gradients and Adam of one rank, and for each micro-batch in flight 34 bytes of activations per
         token, hidden value and layer
choice   no pipeline if possible, then the lowest tensor parallelism, then the largest micro-batch
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from planner_fit import SLOW, least_squares

from usp_prof.model.configuration import FULL

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray
    from planner_rows import Measured

    from usp_prof.extras.planner.cases import Cases
    from usp_prof.model.shape import Column

ROUNDS = 4
"""Number of fits; each one after the first omits the rows that were far slower than the previous fit."""
START = np.log([1.5, 1.0, 1e-3, 1.0, 0.05, 1.0])
"""Start of a fit: logarithms of the constants of compute, tensor, launches, data, fixed and optimizer, in order."""
OPTIMIZER_BYTES = 36
"""Approximate bytes that Adam reads and writes per parameter, before the fitted constant."""
WEIGHT = 60
"""Maximum weight of a source, in rows."""


def features(c: Cases) -> NDArray[np.float64]:
    """Return the seconds of each part before its constant, one row per part; the last row is the bubble factor."""
    s, m = c.shape, c.machine
    tokens = np.asarray(c.tokens, float)
    # Parameters that a token uses per layer: those of all tokens, and of each chosen expert.
    weights = s.shared_parameters + s.mixed * s.experts_per_token * s.matrices * s.hidden * s.expert_width
    flops_of_token = s.layers * (2 * weights + s.core_flops) + 2 * s.vocabulary * s.hidden
    flops = c.micro_batches * 3 * tokens * flops_of_token  # backward takes twice as long as forward
    compute = flops / (c.tp * c.pp) / m.peak
    launches = s.layers / c.pp * c.micro_batches

    # Four all-reduces per layer, forward and backward, each of 2 (n-1)/n times its bytes.
    tensor_link = np.where(c.tp > m.node, m.network_rate, m.link_rate)
    tensor_bytes = 8 * tokens * s.hidden * c.width * launches * (c.tp - 1) / c.tp
    tensor = np.where(c.tp > 1, tensor_bytes / tensor_link, 0.0)

    # Gradients and weights, 2 bytes each, of the parameters that one rank holds.
    held = held_parameters(c)
    data_link = np.where(c.tp * c.shards > m.node, m.network_rate, m.link_rate)
    data = np.where(c.shards > 1, 4 * held * (c.shards - 1) / c.shards / data_link, 0.0)
    optimizer = held * OPTIMIZER_BYTES / np.where(c.zero > 0, c.shards, 1) / m.memory_rate

    bubble = 1 + (c.pp - 1) / c.micro_batches
    parts = (compute, tensor, launches, data, np.ones_like(compute), optimizer, bubble)
    return np.stack(np.broadcast_arrays(*(np.asarray(part, float) for part in parts)))


def held_parameters(c: Cases) -> Column:
    """Return the number of parameters on one rank of the first pipeline stage: its layers and the embedding."""
    s = c.shape
    return (s.layers * (s.shared_parameters + s.routed_parameters / c.ep) / c.pp + s.vocabulary * s.hidden) / c.tp


def seconds(parts: NDArray[np.float64], logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Combine the parts; those that the pipeline repeats are multiplied by its bubble."""
    compute, tensor, launch, data, fixed, optimizer = np.exp(logarithms)[:, None] * parts[:-1]
    return (compute + tensor + launch) * parts[-1] + data + fixed + optimizer  # type: ignore[no-any-return]


def roofline(rows: Measured, keep: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Fit the roofline to the selected rows, without those far slower than it, and predict all rows."""
    parts, measured = features(rows.columns()), np.log(rows.seconds)
    used = keep.copy()
    for _ in range(ROUNDS):
        part, target = parts[:, used], measured[used]
        fitted = least_squares(lambda x: np.log(seconds(part, x)) - target, START, 0.05)  # noqa: B023 - used at once
        predicted = seconds(parts, fitted)
        used = keep & (measured - np.log(predicted) < np.log(SLOW))
    return predicted


def roofline_of_sources(sources: dict[str, Measured], judged: Measured) -> NDArray[np.float64]:
    """Fit the roofline to several sources, each weighing at most `WEIGHT` rows, and predict other rows."""
    parts = [
        (features(rows.columns()), np.log(rows.seconds), min(1.0, (WEIGHT / len(rows.cases)) ** 0.5))
        for rows in sources.values()
    ]
    fitted = least_squares(
        lambda x: np.concatenate([(np.log(seconds(part, x)) - target) * weight for part, target, weight in parts]),
        START,
        0.05,
    )
    return seconds(features(judged.columns()), fitted)


def textbook_memory(c: Cases) -> NDArray[np.float64]:
    """Return the peak of the first pipeline rank by the Ultra-Scale Playbook (full recomputation: 2)."""
    s = c.shape
    shards = c.dp * c.cp
    state = held_parameters(c) * (2 + c.gradient_bytes + 12 / np.where(c.zero > 0, shards, 1))
    # Bytes of activations per token and hidden value of a layer; attention scores only if it is not fused.
    scores = np.where(c.fused_attention, 0, 5 * s.heads * s.sequence / s.hidden / c.tp)
    activation_bytes = np.where(c.recompute == FULL, 2, 34 / c.tp + scores)
    layers_in_flight = s.layers / c.pp * np.minimum(c.micro_batches, c.pp)
    return np.asarray(state + layers_in_flight * c.tokens * s.hidden * activation_bytes, float)


def rule_of_thumb(rows: pd.DataFrame) -> NDArray[np.float64]:
    """Score configurations; the first choice has the highest score."""
    return -(rows.pp * 1e6 + rows.tp * 1e3 - rows.mbs).to_numpy(float)  # type: ignore[no-any-return]
