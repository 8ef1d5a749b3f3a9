"""Filled memory: predicted memory of every pipeline rank of a configuration, by part, next to measured memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from html import escape
from math import inf
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from usp_prof.analyses import memory as measured_memory
from usp_prof.api.answer import bokeh_figure
from usp_prof.contract import ModelEntry
from usp_prof.extras.planner.answers.one_plan import FILLS, fullest, memory_chart
from usp_prof.extras.planner.calibration import NEUTRAL, described, recorded_configuration
from usp_prof.extras.planner.cluster import cluster_of
from usp_prof.extras.planner.memory import LEAST_PROBABILITY, fit_probability, footprints_of_ranks
from usp_prof.extras.planner.model_rules import broken_rule
from usp_prof.extras.planner.profiles import DEFAULT_TRAINER, Profile, profile_named
from usp_prof.extras.planner.ranges import checked_settings
from usp_prof.model.configuration import Configuration
from usp_prof.model.errors import UsageError
from usp_prof.model.footprint import Footprint
from usp_prof.model.hardware import find
from usp_prof.model.metric import Unit
from usp_prof.report.format import quantity
from usp_prof.tables.table_set import TableSet

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Filled:
    """The predicted peak of every pipeline rank. Sizes are bytes."""

    configuration: Configuration
    """The configuration that was predicted: degrees, micro-batches, ZeRO, recomputation, type."""
    footprints: tuple[Footprint, ...]
    """The parts of each pipeline rank."""
    measured_bytes: Mapping[int, int]
    """The highest measured peak by pipeline rank; empty without a run, or if its traces have none."""
    room_bytes: float
    """Memory of the device that tensors can fill; infinite if no device was named."""
    fit_probability: float
    """Probability that the fullest rank fits the device; 1 if no device was named."""

    @property
    def fits(self) -> bool:
        """Whether the fullest rank fits the device with a probability of at least one half."""
        return self.fit_probability >= LEAST_PROBABILITY

    @property
    def df(self) -> pd.DataFrame:
        """One row per pipeline rank: its predicted peak, the measured one (-1: none), and the parts."""
        import pandas as pd  # noqa: PLC0415 - loaded only for a DataFrame

        return pd.DataFrame(rank_rows(self, without_measurement=-1))

    def plot(self, theme: Literal["light", "dark"] = "light") -> Any:  # noqa: ANN401 - a Bokeh figure
        """Draw the parts of each pipeline rank, and the memory that is available."""
        return bokeh_figure(memory_chart(self.footprints, self.room_bytes), theme)

    def explain(self) -> str:
        """Return a sentence on the fullest rank: its peak, its largest part, and whether it fits."""
        rank = fullest(self.footprints)
        need = self.footprints[rank]
        part, size = max(need.parts().items(), key=lambda part_and_size: part_and_size[1])
        where = f"pipeline rank {rank}" if len(self.footprints) > 1 else "each rank"
        text = f"{self.configuration}: {where} needs {quantity(need.total_bytes, Unit.BYTES)} at its peak, "
        text += f"most of it {FILLS[part]} ({quantity(size, Unit.BYTES)})."
        if rank in self.measured_bytes:
            text += f" Measured: {quantity(self.measured_bytes[rank], Unit.BYTES)}."
        if self.room_bytes != inf:
            verdict = "fits" if self.fits else "does not fit"
            text += f" It {verdict} the {quantity(self.room_bytes, Unit.BYTES)} that tensors can fill on the device"
            text += f" (it fits with a probability of {self.fit_probability:.0%})."
        return text

    def __repr__(self) -> str:
        return self.explain()

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.explain())}</p>{self.df.to_html(index=False)}"


def rank_rows(filled: Filled, *, without_measurement: int | None) -> list[dict[str, int | None]]:
    """Return the peak of each pipeline rank by part, with the measured one or `without_measurement`."""
    return [
        {
            "pipeline_rank": rank,
            "total_bytes": need.total_bytes,
            "measured_bytes": filled.measured_bytes.get(rank, without_measurement),
            **need.parts(),
        }
        for rank, need in enumerate(filled.footprints)
    ]


def fill_of_run(tables: TableSet, device: str = "") -> Filled:
    """Predict the recorded configuration of a run; raise InputError if its model or mesh is unknown."""
    problem = "the run does not name its model and mesh, so its memory cannot be predicted"
    manifest, model = described(tables, problem, "its degrees")
    configuration = replace(recorded_configuration(manifest, model), fused_attention=True)
    # An unknown device, such as a CPU, is predicted from the formulas alone.
    profile = profile_named("usp-prof") if find(manifest.device) is not None else NEUTRAL
    return _filled(model, configuration, profile, _measured(tables), device)


def fill_of_model(
    model: ModelEntry, degrees: Mapping[str, Any], device: str = "", habits: str = DEFAULT_TRAINER
) -> Filled:
    """Predict a configuration, given by fields of `Configuration`, with a trainer's habits."""
    settings = checked_settings(degrees, [field.name for field in fields(Configuration)])
    return _filled(model, Configuration(**settings), profile_named(habits), {}, device)


def _filled(
    model: ModelEntry, configuration: Configuration, profile: Profile, measured: Mapping[int, int], device: str
) -> Filled:
    rule = broken_rule(model, configuration)
    if rule:
        raise UsageError(rule, hint="change one of these degrees")
    room = cluster_of(device, configuration.dtype).room_bytes if device else inf
    footprints = footprints_of_ranks(model, configuration, profile)
    peak = max(need.total_bytes for need in footprints)
    probability = float(fit_probability(np.asarray(peak), room, profile.memory_spread))
    return Filled(configuration, footprints, measured, room, probability)


def _measured(tables: TableSet) -> dict[int, int]:
    """Return the highest measured peak per pipeline rank, from the traces or their snapshots."""
    manifest = tables.manifest
    peak_bytes: dict[int, int] = {}
    for peak in measured_memory.compute(tables).peaks:
        if peak.since_recording:
            continue
        place = manifest.coordinates.get(str(peak.rank), {}).get("pp", 0) if manifest is not None else 0
        peak_bytes[place] = max(peak_bytes.get(place, 0), peak.allocated)
    return peak_bytes
