"""Job layout that edits can change: degrees, sharding, recomputation, schedule and types; its stages and memory.

A layout comes from a recording, so any part of it may be unknown. A `Configuration` is complete. The memory formulas
take one, with the smallest possible value for unknown parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from usp_prof import conventions
from usp_prof.contract import Manifest, ModelEntry
from usp_prof.model.configuration import Configuration, Recompute
from usp_prof.model.errors import unknown_name
from usp_prof.model.footprint import Footprint, Stage, footprint
from usp_prof.model.hardware import Precision, precision
from usp_prof.model.topology import data_degree
from usp_prof.schedule import Schedule, Shape, schedule_by_name
from usp_prof.schedule_orders import Kind, order, stage_ranks
from usp_prof.tables.table_set import TableSet

AXES = ("dp", "tp", "pp", "cp", "ep")
_WIDE = (Precision.FP32, Precision.TF32, Precision.FP64)


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout; 0, -1 and "" mean unknown. `micro_batches` counts passes between two updates on one replica."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = -1
    recompute: str = ""
    schedule: str = ""
    chunks: int = 1
    micro_batches: int = 0
    micro_batch_tokens: int = 0
    tokens_per_step: int = 0
    dtype: str = ""
    device: str = ""
    model: ModelEntry | None = None

    @property
    def ranks(self) -> int:
        """Number of ranks; expert parallelism reuses the ranks of other axes."""
        return self.dp * self.tp * self.pp * self.cp

    def degree(self, axis: str) -> int:
        """Return the size of an axis."""
        return int(getattr(self, axis))

    def resized(self, axis: str, size: int) -> Layout:
        """Return the layout with another size of one axis."""
        return replace(self, **{axis: size})  # type: ignore[arg-type]


def layout_of(tables: TableSet) -> Layout:
    """Return the layout from the manifest or, without one, the part that process groups reveal."""
    manifest = tables.manifest
    if manifest is None:
        degrees = {axis: size for axis, size in tables.topology.axes.items() if axis in AXES}
        given = tables.assumptions
        return Layout(**degrees, tokens_per_step=given.tokens_per_step, device=given.device, model=given.model)  # type: ignore[arg-type]
    sizes = manifest.mesh
    return Layout(
        dp=data_degree(sizes),
        **{axis: sizes.get(axis, 1) for axis in AXES if axis != "dp"},
        zero=manifest.zero_stage,
        recompute=manifest.recompute,
        schedule=manifest.schedule,
        chunks=_chunks(manifest),
        micro_batches=max(manifest.micro_batches, manifest.gradient_accumulation),
        micro_batch_tokens=manifest.micro_batch_tokens,
        tokens_per_step=tables.tokens_per_step,
        dtype=manifest.dtype,
        device=tables.assumptions.device or manifest.device,
        model=tables.assumptions.model or manifest.model,
    )


def _chunks(manifest: Manifest) -> int:
    return max((len(stages) for stages in manifest.stages.values()), default=1)


def memory_of(layout: Layout) -> Footprint | None:
    """Return the memory footprint of a layout's fullest rank, or `None` if the description is incomplete."""
    model = layout.model
    if model is None or not layout.micro_batch_tokens or not conventions.total_parameters(model) or not model.hidden:
        return None
    return worst(replace(model, sequence=layout.micro_batch_tokens), configuration_of(layout))


def configuration_of(layout: Layout) -> Configuration:
    """Return the layout as a configuration whose micro-batch is a single sequence of all its tokens."""
    schedule = schedule_by_name(layout.schedule) or Schedule.ONE_F_ONE_B
    return Configuration(
        dp=layout.dp,
        tp=layout.tp,
        cp=layout.cp,
        pp=layout.pp,
        ep=layout.ep,
        zero=max(layout.zero, 0),
        micro_batches=max(layout.micro_batches, 1),
        schedule=str(schedule),
        chunks=max(layout.chunks, 1) if schedule.traits.is_looped else 1,
        recompute=Recompute(layout.recompute) if layout.recompute in list(Recompute) else Recompute.NONE,
        dtype="fp32" if precision(layout.dtype) in _WIDE else "bf16",
    )


# Stages on each pipeline rank, micro-batches in flight at its peak, and the memory that both use.


def schedule_of(configuration: Configuration) -> tuple[Schedule, Shape]:
    """Return the schedule and shape of the pipeline; V-shaped schedules always have two stages per rank."""
    schedule = schedule_by_name(configuration.schedule)
    if schedule is None:
        raise unknown_name("schedule", configuration.schedule, list(Schedule))
    traits = schedule.traits
    chunks = traits.usual_stages_per_rank if traits.is_v_shaped else configuration.chunks
    return schedule, Shape(configuration.pp, configuration.micro_batches, chunks)


def layers_of_stages(layers: int, stages: int) -> tuple[int, ...]:
    """Return the number of layers per stage, as even as possible; the middle stages get the remaining layers.

    The first and last stages hold the vocabulary matrices, so they are the last to get an extra layer.
    """
    even, over = divmod(layers, stages)
    middle = sorted(range(stages), key=lambda stage: (abs(2 * stage - stages + 1), stage))[:over]
    return tuple(even + (stage in middle) for stage in range(stages))


def stages_of(model: ModelEntry, configuration: Configuration) -> tuple[Stage, ...]:
    """Return the stage description of each pipeline rank."""
    schedule, shape = schedule_of(configuration)
    count = shape.ranks * shape.chunks
    layers, home = layers_of_stages(model.layers, count), stage_ranks(schedule, shape)
    peaks = in_flight(schedule, shape)
    layers_of_rank = [
        sum(layers[stage] for stage in range(count) if home[stage] == rank) for rank in range(shape.ranks)
    ]
    return tuple(
        Stage(layers_of_rank[rank], home[0] == rank, home[count - 1] == rank, peaks[rank] / shape.chunks)
        for rank in range(shape.ranks)
    )


@lru_cache(maxsize=1024)
def in_flight(schedule: Schedule, shape: Shape) -> tuple[int, ...]:
    """Return for each rank the maximum number of stage activations held at once, from forward to the end of backward.

    A split backward holds them until its weight half is done.
    """
    peaks = []
    for actions in order(schedule, shape):
        now = peak = 0
        for action in actions:
            now += {Kind.FORWARD: 1, Kind.BACKWARD: -1, Kind.WEIGHT_GRADIENT: -1}.get(action.kind, 0)
            peak = max(peak, now)
        peaks.append(peak)
    return tuple(peaks)


def footprints(model: ModelEntry, configuration: Configuration) -> tuple[Footprint, ...]:
    """Return the memory footprint of each pipeline rank."""
    return tuple(footprint(model, configuration, stage) for stage in stages_of(model, configuration))


def worst(model: ModelEntry, configuration: Configuration) -> Footprint:
    """Return the memory footprint of the fullest pipeline rank."""
    return max(footprints(model, configuration), key=lambda need: need.total_bytes)
