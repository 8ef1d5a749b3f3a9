"""Measurement of a lesson: the metrics of its recorded runs, with theory and predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses import NAMES
from usp_prof.analyses.collectives import bus_factor
from usp_prof.extras.learn import theory
from usp_prof.extras.learn.lessons import lesson, path_of
from usp_prof.extras.planner.calibration import CLOSE, Calibration, calibrate, recorded_configuration
from usp_prof.extras.planner.predict import predict as plan
from usp_prof.model.edit import parse_edit
from usp_prof.model.errors import InputError, UspProfError
from usp_prof.model.metric import Better, Metric, Unit
from usp_prof.report.figures import Figures
from usp_prof.run import Run, open_run
from usp_prof.whatif.predict import predict as replay

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from usp_prof.columns.table import Columns
    from usp_prof.contract import Manifest
    from usp_prof.extras.learn.lessons import Figure, Lesson, LessonRun

CALLS = Metric("calls_per_step", Unit.COUNT, Better.NEITHER, "Messages in a step", "Calls of an axis in one step.")
SENT = Metric(
    "sent_bytes", Unit.BYTES, Better.LOWER, "Bytes that a rank sends in a step",
    "Bytes of an axis' collectives, times what a ring sends of them: 2(n-1)/n of an all-reduce, (n-1)/n of its halves.",
)  # fmt: skip
OPS = Metric(
    "ops_per_step", Unit.COUNT, Better.LOWER, "Operations in a step",
    "Pieces of compute of a rank: kernels on a device, ops on a CPU, where a fused op counts once.",
)  # fmt: skip
UPDATE_OPS = Metric(
    "update_ops", Unit.COUNT, Better.LOWER, "Operations of the update",
    "Pieces of compute of a rank while its optimizer updates the weights of one step.",
)  # fmt: skip
UPDATE_TIME = Metric(
    "update_time", Unit.NS, Better.LOWER, "The update's time",
    "How long a rank's optimizer takes in one step, on the host.",
)  # fmt: skip
STATES = Metric(
    "model_states", Unit.BYTES, Better.LOWER, "Weights, gradients, optimizer's state on a rank",
    "By theory alone: a CPU trace shows only what was allocated after recording began, and these were there before.",
)  # fmt: skip
DERIVED = (CALLS, SENT, OPS, UPDATE_OPS, UPDATE_TIME, STATES)
"""Figures of lessons that no analysis gives."""


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run's figures by the key of the lesson's figure; predictions are of the step, made from the first run."""

    measured: dict[str, float]
    theory: dict[str, float]
    replayed_step_ns: float | None = None
    replayed_error_ns: float | None = None
    planned_step_ns: float | None = None
    remarks: tuple[str, ...] = ()
    """Why a prediction is missing."""


@dataclass(frozen=True, slots=True)
class LessonFigures:
    """What was measured of a lesson, and on which machine."""

    machine: str
    recorded: str
    runs: dict[str, RunFigures]
    remark: str = ""
    """What else is to be known of the recording, such as other work on the machine."""


def measure(name: str, folder: Path, *, cache_dir: str | None = None) -> tuple[LessonFigures, dict[str, Run]]:
    """Open the recorded runs of a lesson, `FOLDER/RUN` each, and ask them for its figures; gives the runs as well."""
    chosen = lesson(name)
    runs = {run.name: open_run(path_of(run, folder), cache_dir=cache_dir) for run in chosen.runs}
    first = runs[chosen.runs[0].name]
    learnt = _calibration(first) if any(run.planned for run in chosen.runs) else None
    figures = {run.name: _figures(chosen, run, runs[run.name], first, learnt) for run in chosen.runs}
    manifest = manifest_of(first)
    return LessonFigures(machine_of(manifest), manifest.created[:10], figures), runs


def manifest_of(run: Run) -> Manifest:
    """Return the manifest of a run."""
    if run.manifest is None:
        raise InputError(f"{run.path} has no run.json, so it is not a lesson's run", hint="usp-prof learn LESSON")
    return run.manifest


def machine_of(manifest: Manifest) -> str:
    """Return where a run was recorded: its device, how many cores were measured, PyTorch's version."""
    measured_on = manifest.peak_source.rpartition(" on ")[2] or manifest.device
    processes = len(manifest.coordinates) or 1
    return f"{processes} processes of {measured_on}, over gloo" if processes > 1 else f"1 process of {measured_on}"


@cache
def metrics() -> dict[str, tuple[str, Metric]]:
    """List every metric with the analysis that gives it."""
    declared = {metric.id: (name, metric) for name in NAMES for metric in _declared(name)}
    return declared | {metric.id: ("", metric) for metric in DERIVED}


def value_of(run: Run, figure: Figure) -> float:
    """Measure one figure; NaN where the trace does not tell."""
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


def _declared(analysis: str) -> tuple[Metric, ...]:
    declared: tuple[Metric, ...] = tuple(import_module(f"usp_prof.analyses.{analysis}").METRICS)
    return declared


def _mean_in_step(run: Run, axis: str, *, in_bytes: bool) -> float:
    """Count one rank's calls of an axis in a step, or what a ring sends for them; mean over ranks and steps."""
    total = 0.0
    steps = 0
    for rank in run.ranks:
        columns = run.tables.columns("collectives", rank)
        chosen = columns.matches("axis", axis) & (columns["step"] >= 0)
        steps += len(np.unique(columns["step"][chosen]))
        total += _sent_bytes(columns.take(chosen)) if in_bytes else np.count_nonzero(chosen)
    return total / steps if steps else 0.0


def _computations_in_step(run: Run) -> float:
    """Count one rank's pieces of compute in a step; mean over ranks and steps."""
    computations = steps = 0
    for rank in run.ranks:
        activities = run.tables.columns("activities", rank)
        computes = activities.matches("kind", "compute") & (activities["step"] >= 0)
        steps += len(np.unique(activities["step"][computes]))
        computations += int(np.count_nonzero(computes))
    return computations / steps if steps else 0.0


def _mean_update(run: Run, *, in_time: bool) -> float:
    """Count what a rank computes in the optimizer's mark, or measure how long that mark is; mean over all of them."""
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
    code, names = calls.codes("op")
    sizes = np.maximum(calls["group_size"], 1).tolist()
    # Receives count 0 bytes: the sender counts them.
    factors = (
        0.0 if names[op] == "recv" else bus_factor(names[op], size)
        for op, size in zip(code.tolist(), sizes, strict=True)
    )
    # The unsharded side: the output of a gather, the input of a scatter.
    full_bytes = np.maximum(calls["in_bytes"], calls["out_bytes"])
    return float(np.dot(full_bytes, np.fromiter(factors, float, len(calls))))


def _figures(chosen: Lesson, run: LessonRun, opened: Run, first: Run, learnt: Calibration | None) -> RunFigures:
    manifest = manifest_of(opened)
    measured = {figure.key: value_of(opened, figure) for figure in chosen.figures}
    expected = {
        figure.key: theory.THEORIES[figure.theory](manifest, measured)
        for figure in chosen.figures
        if figure.theory and run.name not in figure.no_theory
    }
    remarks: list[str] = []
    replayed = _replayed(run, first, remarks)
    planned = _planned(run, manifest, learnt, remarks)
    return RunFigures(
        _known(measured),
        _known(expected),
        replayed_step_ns=replayed[0] if replayed else None,
        replayed_error_ns=replayed[1] if replayed else None,
        planned_step_ns=planned,
        remarks=tuple(remarks),
    )


def _known(values: Mapping[str, float]) -> dict[str, float]:
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


def _planned(run: LessonRun, manifest: Manifest, learnt: Calibration | None, remarks: list[str]) -> float | None:
    if not run.planned or learnt is None:
        return None
    if not learnt.is_close:
        error = f"{learnt.error_fraction:+.0%}, more than {CLOSE:.0%}"
        remarks.append(f"planner: it misses the step of the first run itself ({error})")
        return None
    configuration = recorded_configuration(manifest, learnt.model)
    return plan(learnt.model, configuration, learnt.cluster, profile=learnt.profile).step_ns


def _calibration(first: Run) -> Calibration | None:
    return calibrate(first.tables)
