"""Metric `job_slowdown`: the step over its replay with all ranks alike; the figure of the report and of the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.model.metric import Better, Metric, Unit, Value

if TYPE_CHECKING:
    from usp_prof.model.finding import IdealStep

JOB_SLOWDOWN = Metric(
    "job_slowdown", Unit.RATIO, Better.LOWER, "Job's slowdown",
    "T / T_ideal: the mean step over its replay with all ranks alike (compute at the mean of peers, transfers and "
    "hosts at the median), as `whatif --ideal` gives it. Not given where ranks wait in calls that are not matched.",
    inputs="measured and replayed steps",
)  # fmt: skip
METRICS = (JOB_SLOWDOWN,)


def values(ideal: IdealStep | None) -> list[Value]:
    """Give the metric value of a run whose ideal is known."""
    if ideal is None or ideal.slowdown is None:
        return []
    return [Value(JOB_SLOWDOWN, ideal.slowdown)]
