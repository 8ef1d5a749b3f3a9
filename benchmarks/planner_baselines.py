"""What a planner has to beat: a plain roofline of six constants fitted to the same rows, and rules of thumb.

The roofline knows the model's FLOP, the bytes of tensor and data parallelism over the link that they cross, a launch a
layer and micro-batch, and the bubble (p-1)/m. The rule of thumb for the choice: no pipeline if it can be, then the
least tensor parallelism, then the largest micro-batch. The textbook's formula for memory: weights, gradients and Adam
of one rank, 34 bytes of activations for each token and hidden value of a layer, and the micro-batches in flight.
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

    from usp_prof.planner.cases import Cases

ROUNDS = 4
START = np.log([1.5, 1.0, 1e-3, 1.0, 0.05, 1.0])
"""Over the peak; of the bytes of tp; seconds a layer and micro-batch; of the bytes of dp; fixed; optimizer's bytes."""


def features(c: Cases) -> NDArray[np.float64]:
    """Give the seconds of each part before its constant, one row a part, and last the factor of the bubble."""
    s, m = c.shape, c.machine
    tokens = np.asarray(c.tokens, float)
    weights = s.shared_parameters + s.mixed * s.experts_per_token * s.matrices * s.hidden * s.expert_width
    flops = c.micro_batches * 3 * tokens * (s.layers * (2 * weights + s.core_flops) + 2 * s.vocabulary * s.hidden)
    compute = flops / (c.tp * c.pp) / m.peak
    layers = s.layers / c.pp * c.micro_batches
    link = np.where(c.tp > m.node, m.network_rate, m.link_rate)
    tensor = np.where(c.tp > 1, 8 * tokens * s.hidden * c.width * layers * (c.tp - 1) / c.tp / link, 0.0)
    held = (s.layers * (s.shared_parameters + s.routed_parameters / c.ep) / c.pp + s.vocabulary * s.hidden) / c.tp
    slow = np.where(c.tp * c.shards > m.node, m.network_rate, m.link_rate)
    data = np.where(c.shards > 1, 4 * held * (c.shards - 1) / c.shards / slow, 0.0)
    optimizer = held * 36 / np.where(c.zero > 0, c.shards, 1) / m.memory_rate
    bubble = 1 + (c.pp - 1) / c.micro_batches
    parts = (compute, tensor, layers, data, np.ones_like(compute), optimizer, bubble)
    return np.stack(np.broadcast_arrays(*(np.asarray(part, float) for part in parts)))


def seconds(parts: NDArray[np.float64], logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Join the parts: what the pipeline repeats is stretched by its bubble."""
    compute, tensor, launch, data, fixed, optimizer = np.exp(logarithms)[:, None] * parts[:-1]
    return (compute + tensor + launch) * parts[-1] + data + fixed + optimizer  # type: ignore[no-any-return]


def roofline(rows: Measured, keep: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Fit the roofline to the rows kept, without those far slower than it, and predict all rows."""
    parts, measured = features(rows.columns()), np.log(rows.seconds)
    used = keep.copy()
    for _ in range(ROUNDS):
        part, target = parts[:, used], measured[used]
        fitted = least_squares(lambda x: np.log(seconds(part, x)) - target, START, 0.05)  # noqa: B023 - used at once
        predicted = seconds(parts, fitted)
        used = keep & (measured - np.log(predicted) < np.log(SLOW))
    return predicted


def roofline_of_sources(sources: dict[str, Measured], judged: Measured) -> NDArray[np.float64]:
    """Fit the roofline to several sources, a source of many rows weighing as 60 of them, and predict other rows."""
    parts = [
        (features(rows.columns()), np.log(rows.seconds), min(1.0, (60 / len(rows.cases)) ** 0.5))
        for rows in sources.values()
    ]
    fitted = least_squares(
        lambda x: np.concatenate([(np.log(seconds(part, x)) - target) * weight for part, target, weight in parts]),
        START,
        0.05,
    )
    return seconds(features(judged.columns()), fitted)


def textbook_memory(c: Cases) -> NDArray[np.float64]:
    """Give the peak of the first pipeline rank by the formulas of the Ultra-Scale Playbook (full recomputation: 2)."""
    s = c.shape
    held = (s.layers / c.pp * (s.shared_parameters + s.routed_parameters / c.ep) + s.vocabulary * s.hidden) / c.tp
    shards = c.dp * c.cp
    state = held * (2 + c.gradient_bytes + 12 / np.where(c.zero > 0, shards, 1))
    each = np.where(
        c.recompute == FULL, 2, 34 / c.tp + np.where(c.fused_attention, 0, 5 * s.heads * s.sequence / s.hidden / c.tp)
    )
    layers = s.layers / c.pp * np.minimum(c.micro_batches, c.pp)
    return np.asarray(state + layers * c.tokens * s.hidden * each, float)


def rule_of_thumb(rows: pd.DataFrame) -> NDArray[np.float64]:
    """Score configurations, the first choice highest."""
    return -(rows.pp * 1e6 + rows.tp * 1e3 - rows.mbs).to_numpy(float)  # type: ignore[no-any-return]
