"""How long would a step take that was never run? Its pipeline simulated; gradients and optimizer after it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from usp_prof.model import flops
from usp_prof.planner import layers
from usp_prof.planner.messages import gathered, sent
from usp_prof.schedule import Schedule, Shape
from usp_prof.schedules.orders import Action, Kind, order, stage_ranks
from usp_prof.schedules.simulation import simulate
from usp_prof.whatif.reordering.stages import layers_of_stages, schedule_of, worst

if TYPE_CHECKING:
    from collections.abc import Mapping

    from usp_prof.contract import ModelEntry
    from usp_prof.model.configuration import Configuration
    from usp_prof.model.footprint import Footprint
    from usp_prof.planner.cluster import Cluster

STEADY = 4
"""So many times the depth in micro-batches are simulated; each further one adds what the fullest rank needs.

Against simulating all of them the window is then off by 0.8 % at most (interleaved, uneven stages).
"""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a configuration would need and give. The parts are the busiest rank's and add up to the step.

    `bubble_ns` is all of its waiting in the pipeline, for messages too; `exposed_ns` is by axis.
    """

    configuration: Configuration
    step_ns: float
    compute_ns: float
    exposed_ns: Mapping[str, float]
    bubble_ns: float
    optimizer_ns: float
    tokens_per_second: float
    mfu: float
    convention: str
    footprint: Footprint

    @property
    def tokens_per_device(self) -> float:
        """Tokens per second of one device."""
        return self.tokens_per_second / self.configuration.devices

    @property
    def bubble_fraction(self) -> float:
        """The share of the step in which the busiest rank waits for the pipeline."""
        return self.bubble_ns / self.step_ns


def predict(
    model: ModelEntry, configuration: Configuration, cluster: Cluster, convention: str = "palm", gradient_bytes: int = 0
) -> Prediction:
    """Predict a configuration that breaks no rule."""
    schedule, shape = schedule_of(configuration)
    forward, backward = layers.layer(model, configuration, cluster)
    head_forward, head_backward = layers.head(model, configuration, cluster)
    spread = layers_of_stages(model.layers, shape.ranks * shape.chunks)
    last = len(spread) - 1
    times = tuple(
        (
            round(count * forward.total + (head_forward.total if stage == last else 0)),
            round(count * backward.total + (head_backward.total if stage == last else 0)),
        )
        for stage, count in enumerate(spread)
    )
    transfer = round(sent(cluster, configuration, "pp", layers.message_bytes(model, configuration)))
    window, busy, busiest = _pipeline(schedule, shape, times, transfer)
    held = sum(count for count, rank in zip(spread, stage_ranks(schedule, shape), strict=True) if rank == busiest)
    exposed = {
        axis: (forward.exposed.get(axis, 0.0) + backward.exposed.get(axis, 0.0)) * held * shape.micro_batches
        for axis in sorted({*forward.exposed, *backward.exposed})
    }
    compute = busy - sum(exposed.values())
    found = worst(model, configuration, gradient_bytes=gradient_bytes)
    gradients = _gradients(configuration, cluster, found, forward.compute, backward.compute, held)
    exposed["dp"] = exposed.get("dp", 0.0) + gradients
    optimizer = 2 * (found.optimizer_bytes + found.parameter_bytes + found.gradient_bytes) / cluster.memory_rate * 1e9
    step = window + gradients + optimizer
    tokens = configuration.batch * model.sequence / step * 1e9
    cost = flops.per_token(model, convention) or float("nan")
    return Prediction(
        configuration,
        step_ns=step,
        compute_ns=compute,
        exposed_ns={axis: time for axis, time in exposed.items() if time},
        bubble_ns=window - busy,
        optimizer_ns=optimizer,
        tokens_per_second=tokens,
        mfu=cost * tokens / (configuration.devices * cluster.peak_flops),
        convention=convention,
        footprint=found,
    )


@lru_cache(maxsize=4096)
def _pipeline(
    schedule: Schedule, shape: Shape, times: tuple[tuple[int, int], ...], transfer: int
) -> tuple[int, int, int]:
    """Give the window of all micro-batches, how long the busiest rank works in it, and which rank that is."""
    fewer = min(shape.micro_batches, STEADY * shape.ranks)
    timeline = simulate(
        order(schedule, Shape(shape.ranks, fewer, shape.chunks)),
        lambda action: _duration(action, times),
        transfer_ns=transfer,
    )
    held: dict[int, int] = {}
    for action, rank in zip(timeline.actions, timeline.rank.tolist(), strict=True):
        held[rank] = held.get(rank, 0) + _duration(action, times)
    busiest = max(held, key=lambda rank: (held[rank], -rank))
    further = (shape.micro_batches - fewer) * held[busiest] // fewer
    return timeline.window + further, held[busiest] + further, busiest


def _duration(action: Action, times: tuple[tuple[int, int], ...]) -> int:
    """Half of backward is the gradient of the input, half that of the weights."""
    forward, backward = times[action.stage]
    return {Kind.FORWARD: forward, Kind.BACKWARD: backward}.get(action.kind, backward // 2)


def _gradients(
    configuration: Configuration, cluster: Cluster, found: Footprint, forward: float, backward: float, held: float
) -> float:
    """Give what stays exposed of the gradients' reduction beside the last backward, and of the weights' gather after.

    Buckets leave as their layers are done, so that the last bucket (a layer's share) has nothing left to hide behind.
    """
    size = float(found.parameter_bytes)
    if configuration.zero == 3:
        size *= configuration.shards
        return _beside(gathered(cluster, configuration, "shards", size), backward * held, held)
    once = gathered(cluster, configuration, "shards", size)
    reduce = once if configuration.zero else 2 * once
    exposed = _beside(reduce, backward * held, held)
    return exposed + (_beside(once, forward * held, held) if configuration.zero else 0.0)


def _beside(communication: float, compute: float, pieces: float) -> float:
    return max(communication - compute, communication / max(pieces, 1.0))
