"""Prediction: step time and memory of a configuration, with the interval that contains 80% of measured runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from usp_prof.contract import ModelEntry
from usp_prof.extras.planner import memory, stalls
from usp_prof.extras.planner.cases import Cases, cases_of, machine_of
from usp_prof.extras.planner.cluster import Cluster
from usp_prof.extras.planner.profiles import DEFAULT_PROFILE, Profile
from usp_prof.extras.planner.stages import stages_of
from usp_prof.extras.planner.step import step
from usp_prof.model import flops
from usp_prof.model.configuration import Configuration
from usp_prof.model.footprint import Footprint
from usp_prof.model.shape import Column, shape_of


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted step and memory of a configuration. The parts are those of the busiest rank and add up to the step.

    `bubble_ns` is its total wait in the pipeline, including messages; `exposed_ns` is by axis; `fixed_ns` does not
    depend on the size. The interval from `low` to `high` contains 80% of measured runs.
    """

    configuration: Configuration
    step_ns: float
    step_low_ns: float
    step_high_ns: float
    compute_ns: float
    exposed_ns: Mapping[str, float]
    bubble_ns: float
    optimizer_ns: float
    fixed_ns: float
    tokens_per_second: float
    mfu: float
    convention: str
    footprint: Footprint
    memory_low_bytes: float
    memory_high_bytes: float
    fit_probability: float
    stall_fraction: float = 0.0
    """Probability that such a run stalls on its pipeline's sends; 0 outside the measured sweep."""
    stall_ns: float = 0.0
    """Time added by a stall; included in `step_ns` if the probability is above one half."""
    host_bytes: float = 0.0
    """Host memory of an offloaded optimizer, per device."""

    @property
    def fits(self) -> bool:
        """Whether the configuration fits the device's memory with a probability of at least one half."""
        return self.fit_probability >= memory.LEAST_PROBABILITY

    @property
    def tokens_per_device(self) -> float:
        """Tokens per second of one device."""
        return self.tokens_per_second / self.configuration.devices

    @property
    def expected_step_ns(self) -> float:
        """Step at the expected speed over runs with and without a stall; plans are ranked by it."""
        return float(stalls.expected(self.step_ns, self.stall_ns, self.stall_fraction))

    @property
    def bubble_fraction(self) -> float:
        """Share of the step in which the busiest rank waits for the pipeline."""
        return self.bubble_ns / self.step_ns


def predict(
    model: ModelEntry,
    configuration: Configuration,
    cluster: Cluster,
    convention: str = "palm",
    *,
    profile: Profile = DEFAULT_PROFILE,
) -> Prediction:
    """Predict one legal configuration."""
    return predict_all(model, [configuration], cluster, convention, profile=profile)[0]


def predict_all(
    model: ModelEntry,
    configurations: Sequence[Configuration],
    cluster: Cluster,
    convention: str = "palm",
    *,
    profile: Profile = DEFAULT_PROFILE,
) -> list[Prediction]:
    """Predict configurations of one model on one cluster."""
    cases = cases_of(shape_of(model), machine_of(cluster), profile, configurations)
    return records(cases, configurations, [model] * len(configurations), convention)


def time_spread_of(c: Cases) -> Column:
    """Return the log of the factor around the step that contains 80% of runs; independent parts add as squares."""
    p = c.profile
    outside = np.logical_and(np.asarray(p.stall) > 0, np.logical_not(stalls.was_measured(c)))
    mixture = np.where(np.asarray(c.shape.mixed) > 0, p.mixture_spread, 0.0)
    unmeasured = np.where(outside, p.unmeasured_spread, 0.0)
    return np.asarray(np.sqrt(np.asarray(p.time_spread) ** 2 + mixture**2 + unmeasured**2))


def records(
    c: Cases, configurations: Sequence[Configuration], models: Sequence[ModelEntry], convention: str
) -> list[Prediction]:
    """Predict cases and return one record per case."""
    stages = stages_of(c)
    times = step(c, stages, simulates=True)
    need = memory.fullest(memory.stage_parts(c, stages))
    total = memory.total(need)
    longer, larger = np.exp(time_spread_of(c)), np.exp(np.asarray(c.profile.memory_spread))
    step_ns = times.seconds * 1e9
    numbers = {
        "step_ns": step_ns,
        "step_low_ns": step_ns / longer,
        "step_high_ns": step_ns * longer,
        "compute_ns": times.compute * 1e9,
        "bubble_ns": times.bubble * 1e9,
        "optimizer_ns": times.optimizer * 1e9,
        "fixed_ns": times.fixed * 1e9,
        "memory_low_bytes": total / larger,
        "memory_high_bytes": total * larger,
        "fit_probability": memory.fit_probability(total, c.machine.room_bytes, c.profile.memory_spread),
        "stall_fraction": times.stall_chance,
        "stall_ns": times.stall * 1e9,
        "host_bytes": memory.host_bytes(c, stages),
    }
    columns = {name: _column(value, len(configurations)) for name, value in numbers.items()}
    exposed = {axis: _column(value * 1e9, len(configurations)) for axis, value in times.exposed.items()}
    parts = {part: _column(value, len(configurations)) for part, value in need.items()}
    peak = _column(c.machine.peak, len(configurations))
    predictions = []
    for place, (configuration, model) in enumerate(zip(configurations, models, strict=True)):
        tokens = configuration.batch * model.sequence / times.seconds[place]
        cost = flops.per_token(model, convention) or float("nan")
        predictions.append(
            Prediction(
                configuration,
                **{name: values[place] for name, values in columns.items()},
                exposed_ns={axis: values[place] for axis, values in exposed.items() if values[place] > 0},
                tokens_per_second=float(tokens),
                mfu=cost * float(tokens) / (configuration.devices * peak[place]),
                convention=convention,
                footprint=Footprint(**{part: round(values[place]) for part, values in parts.items()}),
            )
        )
    return predictions


def _column(value: Column, size: int) -> list[float]:
    return np.broadcast_to(np.asarray(value, float), (size,)).tolist()  # type: ignore[no-any-return]
