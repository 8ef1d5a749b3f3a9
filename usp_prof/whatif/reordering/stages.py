"""Stages of each pipeline rank, and the micro-batches that it keeps at its peak."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from usp_prof.model.errors import unknown_name
from usp_prof.model.footprint import Footprint, Stage, footprint
from usp_prof.schedule import Schedule, Shape, named
from usp_prof.schedules.orders import Kind, order, stage_ranks

if TYPE_CHECKING:
    from usp_prof.contract import ModelEntry
    from usp_prof.model.configuration import Configuration


def schedule_of(configuration: Configuration) -> tuple[Schedule, Shape]:
    """Give the schedule and the shape of the pipeline; V-shaped schedules always have two stages on each rank."""
    schedule = named(configuration.schedule)
    if schedule is None:
        raise unknown_name("schedule", configuration.schedule, list(Schedule))
    traits = schedule.traits
    chunks = traits.usual_stages_per_rank if traits.is_v_shaped else configuration.chunks
    return schedule, Shape(configuration.pp, configuration.micro_batches, chunks)


def layers_of_stages(layers: int, stages: int) -> tuple[int, ...]:
    """Spread layers over stages as evenly as they go; what is left over goes to the stages in the middle.

    The first and the last stage carry the vocabulary matrices, so that they are the last to get one more.
    """
    even, over = divmod(layers, stages)
    middle = sorted(range(stages), key=lambda stage: (abs(2 * stage - stages + 1), stage))[:over]
    return tuple(even + (stage in middle) for stage in range(stages))


def stages_of(model: ModelEntry, configuration: Configuration) -> tuple[Stage, ...]:
    """Give what each pipeline rank holds."""
    schedule, shape = schedule_of(configuration)
    count = shape.ranks * shape.chunks
    layers, home = layers_of_stages(model.layers, count), stage_ranks(schedule, shape)
    kept = in_flight(schedule, shape)
    held = [sum(layers[stage] for stage in range(count) if home[stage] == rank) for rank in range(shape.ranks)]
    return tuple(
        Stage(held[rank], home[0] == rank, home[count - 1] == rank, kept[rank] / shape.chunks)
        for rank in range(shape.ranks)
    )


@lru_cache(maxsize=1024)
def in_flight(schedule: Schedule, shape: Shape) -> tuple[int, ...]:
    """Count for each rank the most stage activations that it keeps at once: from a forward until its backward's end.

    A split backward keeps them until its weight half is done.
    """
    peaks = []
    for actions in order(schedule, shape):
        now = peak = 0
        for action in actions:
            now += {Kind.FORWARD: 1, Kind.BACKWARD: -1, Kind.WEIGHT_GRADIENT: -1}.get(action.kind, 0)
            peak = max(peak, now)
        peaks.append(peak)
    return tuple(peaks)


def footprints(model: ModelEntry, configuration: Configuration, *, gradient_bytes: int = 0) -> tuple[Footprint, ...]:
    """Give what each pipeline rank needs."""
    return tuple(
        footprint(model, configuration, stage, gradient_bytes=gradient_bytes)
        for stage in stages_of(model, configuration)
    )


def worst(model: ModelEntry, configuration: Configuration, *, gradient_bytes: int = 0) -> Footprint:
    """Give what the fullest pipeline rank needs."""
    found = footprints(model, configuration, gradient_bytes=gradient_bytes)
    return max(found, key=lambda one: one.total_bytes)
