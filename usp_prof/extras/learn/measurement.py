"""Measurement of a lesson: the metrics of its recorded runs, with theory and predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np

from usp_prof.analyses import NAMES
from usp_prof.analyses.collectives import bus_factors
from usp_prof.columns.table import Columns
from usp_prof.contract import Manifest
from usp_prof.extras.learn import theory
from usp_prof.extras.learn.lessons import Figure, Lesson, LessonRun, lesson, path_of
from usp_prof.extras.planner.calibration import CLOSE, Calibration, calibrate, recorded_configuration
from usp_prof.extras.planner.predict import predict as plan
from usp_prof.model.edit import parse_edit
from usp_prof.model.errors import InputError, UspProfError
from usp_prof.model.metric import Better, Metric, Unit
from usp_prof.report.figures import Figures
from usp_prof.run import Run, open_run
from usp_prof.whatif.predict import predict as replay

CALLS = Metric("calls_per_step", Unit.COUNT, Better.NEITHER, "Messages per step", "Calls of an axis in one step.")
SENT = Metric(
    "sent_bytes", Unit.BYTES, Better.LOWER, "Bytes sent per rank and step",
    "Bytes of an axis' collectives, times what a ring sends of them: 2(n-1)/n of an all-reduce, (n-1)/n of its halves.",
)  # fmt: skip
OPS = Metric(
    "ops_per_step", Unit.COUNT, Better.LOWER, "Operations per step",
    "Pieces of compute of a rank: kernels on a device, ops on a CPU, where a fused op counts once.",
)  # fmt: skip
UPDATE_OPS = Metric(
    "update_ops", Unit.COUNT, Better.LOWER, "Operations per update",
    "Pieces of compute of a rank while its optimizer updates the weights of one step.",
)  # fmt: skip
UPDATE_TIME = Metric(
    "update_time", Unit.NS, Better.LOWER, "Update time",
    "How long a rank's optimizer takes in one step, on the host.",
)  # fmt: skip
STATES = Metric(
    "model_states", Unit.BYTES, Better.LOWER, "Weights, gradients, optimizer state per rank",
    "By theory alone: a CPU trace shows only what was allocated after recording began, and these were there before.",
)  # fmt: skip
DERIVED = (CALLS, SENT, OPS, UPDATE_OPS, UPDATE_TIME, STATES)
"""Figures of lessons that no analysis computes."""


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run's figures by key; the step time is also predicted from the first run."""

    measured: dict[str, float]
    theory: dict[str, float]
    replayed_step_ns: float | None = None
    replayed_error_ns: float | None = None
    planned_step_ns: float | None = None
    remarks: tuple[str, ...] = ()
    """Reasons for missing predictions."""


@dataclass(frozen=True, slots=True)
class LessonFigures:
    """The figures of a lesson's runs, and the machine that recorded them."""

    machine: str
    recorded: str
    runs: dict[str, RunFigures]
    remark: str = ""
    """Remark on the recording, such as other load on the machine."""


def measure(name: str, folder: Path, *, cache_dir: str | None = None) -> tuple[LessonFigures, dict[str, Run]]:
    """Open the recorded runs of a lesson (`FOLDER/RUN`) and compute its figures; return both."""
    chosen = lesson(name)
    runs = {run.name: open_run(path_of(run, folder), cache_dir=cache_dir) for run in chosen.runs}
    first = runs[chosen.runs[0].name]
    calibration = calibrate(first.tables) if any(run.planned for run in chosen.runs) else None
    figures = {run.name: _figures(chosen, run, runs[run.name], first, calibration) for run in chosen.runs}
    manifest = manifest_of(first)
    return LessonFigures(machine_of(manifest), manifest.created[:10], figures), runs


def manifest_of(run: Run) -> Manifest:
    """Return the manifest of a run."""
    if run.manifest is None:
        raise InputError(f"{run.path} has no run.json, so it is not a lesson's run", hint="usp-prof learn LESSON")
    return run.manifest


def machine_of(manifest: Manifest) -> str:
    """Describe the machine of a run: number of processes, device, and PyTorch version."""
    measured_on = manifest.peak_source.rpartition(" on ")[2] or manifest.device
    processes = len(manifest.coordinates) or 1
    return f"{processes} processes of {measured_on}, over gloo" if processes > 1 else f"1 process of {measured_on}"


@cache
def metrics() -> dict[str, tuple[str, Metric]]:
    """Return every metric with the analysis that computes it, by metric id."""
    declared = {
        metric.id: (name, metric) for name in NAMES for metric in import_module(f"usp_prof.analyses.{name}").METRICS
    }
    return declared | {metric.id: ("", metric) for metric in DERIVED}


def value_of(run: Run, figure: Figure) -> float:
    """Compute one figure; NaN if the trace does not determine it."""
    if figure.metric in (CALLS.id, SENT.id):
        return _mean_in_step(run, figure.dims["axis"], in_bytes=figure.metric == SENT.id)
    if figure.metric == OPS.id:
        return _computations_in_step(run)
    if figure.metric in (UPDATE_OPS.id, UPDATE_TIME.id):
        return _mean_update(run, in_time=figure.metric == UPDATE_TIME.id)
    if figure.metric == STATES.id:
        return float("nan")
    analysis, _ = metrics()[figure.metric]
    figures = Figures(import_module(f"usp_prof.analyses.{analysis}").compute(run.tables).values())
    value = figures.at(figure.metric, **figure.dims)
    return float("nan") if value is None else float(value)


def _mean_in_step(run: Run, axis: str, *, in_bytes: bool) -> float:
    """Return the calls of an axis, or the bytes that a ring sends for them, per rank and step (mean)."""
    total = 0.0
    steps = 0
    for rank in run.ranks:
        columns = run.tables.columns("collectives", rank)
        chosen = columns.matches("axis", axis) & (columns["step"] >= 0)
        steps += len(np.unique(columns["step"][chosen]))
        total += _sent_bytes(columns.take(chosen)) if in_bytes else np.count_nonzero(chosen)
    return total / steps if steps else 0.0


def _computations_in_step(run: Run) -> float:
    """Return the compute activities per rank and step (mean)."""
    computations = steps = 0
    for rank in run.ranks:
        activities = run.tables.columns("activities", rank)
        computes = activities.matches("kind", "compute") & (activities["step"] >= 0)
        steps += len(np.unique(activities["step"][computes]))
        computations += int(np.count_nonzero(computes))
    return computations / steps if steps else 0.0


def _mean_update(run: Run, *, in_time: bool) -> float:
    """Return the compute activities inside an optimizer mark, or its duration; mean over all optimizer marks."""
    total = updates = 0
    for rank in run.ranks:
        marks = run.tables.columns("annotations", rank)
        update = marks.take(marks.matches("name", "train::optimizer") & (marks["step"] >= 0))
        updates += len(update)
        if in_time:
            total += int(update["dur_ns"].sum())
            continue
        activities = run.tables.columns("activities", rank)
        begins = np.sort(activities["start_ns"][activities.matches("kind", "compute")])
        begun_before = np.searchsorted(begins, [update["start_ns"], update["start_ns"] + update["dur_ns"]])
        total += int((begun_before[1] - begun_before[0]).sum())
    return total / updates if updates else float("nan")


def _sent_bytes(calls: Columns) -> float:
    factors = np.where(calls.matches("op", "recv"), 0.0, bus_factors(calls))  # the sender counts the bytes
    # The unsharded side: the output of a gather, the input of a scatter.
    full_bytes = np.maximum(calls["in_bytes"], calls["out_bytes"])
    return float(np.dot(full_bytes, factors))


def _figures(chosen: Lesson, run: LessonRun, opened: Run, first: Run, calibration: Calibration | None) -> RunFigures:
    manifest = manifest_of(opened)
    measured = {figure.key: value_of(opened, figure) for figure in chosen.figures}
    expected = {
        figure.key: theory.THEORIES[figure.theory](manifest, measured)
        for figure in chosen.figures
        if figure.theory and run.name not in figure.no_theory
    }
    remarks: list[str] = []
    replayed = _replayed(run, first, remarks)
    planned = _planned(run, manifest, calibration, remarks)
    return RunFigures(
        _finite(measured),
        _finite(expected),
        replayed_step_ns=replayed[0] if replayed else None,
        replayed_error_ns=replayed[1] if replayed else None,
        planned_step_ns=planned,
        remarks=tuple(remarks),
    )


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {key: float(value) for key, value in values.items() if math.isfinite(value)}


def _replayed(run: LessonRun, first: Run, remarks: list[str]) -> tuple[float, float] | None:
    if not run.whatif:
        return None
    try:
        prediction = replay(first.tables, [parse_edit(run.whatif)])
    except UspProfError as error:
        remarks.append(f"what-if `{run.whatif}`: {error.message.removeprefix(f'edit {run.whatif}: ')}")
        return None
    return float(prediction.after_ns), float(prediction.error_fraction * prediction.before_ns)


def _planned(run: LessonRun, manifest: Manifest, calibration: Calibration | None, remarks: list[str]) -> float | None:
    if not run.planned or calibration is None:
        return None
    if not calibration.is_close:
        error = f"{calibration.error_fraction:+.0%}, more than {CLOSE:.0%}"
        remarks.append(f"planner: it misses the step of the first run itself ({error})")
        return None
    configuration = recorded_configuration(manifest, calibration.model)
    return plan(calibration.model, configuration, calibration.cluster, profile=calibration.profile).step_ns
