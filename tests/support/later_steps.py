"""Synthetic runs without their first step, which starts with nothing running and so differs from all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.replay.step_times import StepTimes, step_times, unedited

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet
    from usp_prof.whatif.predict import Prediction


def measured_ns(tables: TableSet) -> float:
    """Return the mean of the later steps as recorded."""
    return _mean(unedited(tables))


def predicted_ns(prediction: Prediction) -> float:
    """Return the mean of the later steps as predicted."""
    times = step_times(prediction.replayed.tables, prediction.graph, prediction.timeline)
    saved = prediction.rescheduled.saved_ns if prediction.rescheduled else 0.0
    return _mean(times) - saved


def _mean(times: StepTimes) -> float:
    return float(times.replayed_ns[times.step > times.step.min()].mean())
