"""Step time: on each rank, for the job, and which steps are warm-up or outliers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from usp_prof.analyses.measures import partition
from usp_prof.analyses.result import Listing, Result, in_order, spread
from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.statistics import outliers
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.metric import Better, Metric, Unit, Value, Values
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.tables import clock
from usp_prof.tables.step_cuts.job_steps import RECORD_MARKS, WINDOW
from usp_prof.tables.table_set import TableSet

STEP_TIME = Metric(
    "step_time", Unit.NS, Better.LOWER, "Mean rank step",
    "Length of a rank's step on its device. Per rank: mean over steps; without a rank: mean of these.",
    ("rank", "step"),
)  # fmt: skip
JOB_STEP_TIME = Metric(
    "job_step_time", Unit.NS, Better.LOWER, "Median job step",
    "Time from the first start to the last end of a step over all ranks, on aligned clocks. Without a step: "
    "median over ordinary steps.",
    ("step",),
)  # fmt: skip
STEP_SPREAD = Metric(
    "step_spread", Unit.FRACTION, Better.LOWER, "Spread across ranks",
    "Difference between the longest and shortest rank's step, divided by the job's step. Without a step: "
    "median over ordinary steps.",
    ("step",),
)  # fmt: skip
WINDOW_TIME = Metric(
    "window_time", Unit.NS, Better.NEITHER, "Mean recorded window per rank",
    "Length of the recording of a rank whose steps are unknown. Without a rank: mean over those ranks.",
    ("rank", "step"),
)  # fmt: skip
METRICS = (STEP_TIME, JOB_STEP_TIME, STEP_SPREAD, WINDOW_TIME)
_SOURCES = {
    "mark": "steps are the recorder's marks",
    "annotation": "no ProfilerStep: steps come from a repeating annotation",
    "calls": "steps are complete periods of the calls that all ranks share; their start within the period is unknown",
    "pattern": "no ProfilerStep: steps come from a repeating pattern of kernels",
}


@dataclass(frozen=True, slots=True, eq=False)
class JobStep:
    """One step of the job."""

    step: int
    begin_ns: int
    end_ns: int
    shortest_ns: int
    longest_ns: int
    warm_up: bool
    odd: bool

    @property
    def length_ns(self) -> int:
        """Time from first begin to last end."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True, eq=False)
class StepTimeResult(Result):
    """Step times: `rank`, `step`, `start_ns` and `end_ns` (common clock) and `length_ns` are parallel arrays."""

    rank: Ints
    step: Ints
    start_ns: Ints
    end_ns: Ints
    length_ns: Ints
    """Measured on the rank's own clock, like the parts of the step; clock drift would change it by a few ppm."""
    is_window: Flags
    """Whether the row is a recorded window without known steps. Such rows count in no figure per step."""
    job: tuple[JobStep, ...]
    tokens_per_second: float
    """Based on the recorded or given tokens per step. `mfu` checks them against the trace and has the metric."""
    notes: tuple[HealthRow, ...] = ()

    @property
    def ordinary(self) -> tuple[JobStep, ...]:
        """The steps that are neither warm-up nor outliers, or all steps if there are none."""
        return _ordinary(self.job)

    def values(self) -> Values:
        """Return the metric values, sorted by dimension."""
        is_step_row, is_window_row = ~self.is_window, self.is_window
        values = spread(STEP_TIME, self.rank[is_step_row], self.step[is_step_row], self.length_ns[is_step_row])
        values += spread(WINDOW_TIME, self.rank[is_window_row], self.step[is_window_row], self.length_ns[is_window_row])
        for job in self.job:
            values.append(Value(JOB_STEP_TIME, job.length_ns, {"step": job.step}))
            values.append(Value(STEP_SPREAD, _spread(job), {"step": job.step}))
        if self.job:
            values.append(Value(JOB_STEP_TIME, median_step_ns([s.length_ns for s in self.job])))
            values.append(Value(STEP_SPREAD, float(np.median([_spread(s) for s in self.ordinary]))))
        return in_order(values)

    def listing(self) -> Listing:
        """Return one row per rank and step."""
        flags = {s.step: s for s in self.job}
        of_step = [flags.get(step) for step in self.step.tolist()]
        return {
            "rank": self.rank,
            "step": self.step,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "length_ns": self.length_ns,
            "warm_up": [job is not None and job.warm_up for job in of_step],
            "odd": [job is not None and job.odd for job in of_step],
            "is_window": self.is_window,
        }


def compute(tables: TableSet, selection: Selection = EVERYTHING) -> StepTimeResult:
    """Compute the step times of the selected steps."""
    parts = partition.divide_run(tables, selection)
    clocks = clock.fit_clocks(tables)
    start, end = (clocks.align(parts.rank, when) for when in (parts.start, parts.end))
    component = clocks.component_rows(parts.rank)
    windows = [rank for rank in np.unique(parts.rank).tolist() if is_window(tables, rank)]
    is_step = ~np.isin(parts.rank, windows)
    job = _job(parts.step[is_step], start[is_step], end[is_step], component[is_step])
    notes = [*_source_notes(tables, selection), *_window_notes(windows), *_odd_notes(job)]
    if tables.uneven_steps:
        job = ()
        detail = f"the job's step and its spread across ranks are unknown: {tables.uneven_steps}"
        notes = [*_window_notes(windows), HealthRow("steps_not_comparable", Severity.ERROR, detail=detail)]
    tokens = _tokens_per_second(tables, parts, is_step, job)
    return StepTimeResult(parts.rank, parts.step, start, end, parts.wall, ~is_step, job, tokens, tuple(sorted(notes)))


def is_window(tables: TableSet, rank: int) -> bool:
    """Return whether the rank's only step is the whole recorded window because its steps are unknown."""
    return bool(tables.columns("steps", rank).matches("source", WINDOW).any())


def _job(step: Ints, start: Ints, end: Ints, component: Ints) -> tuple[JobStep, ...]:
    """Combine the ranks' steps. Begin and end come from the largest set of ranks with comparable clocks."""
    drafts = []
    order = np.argsort(step, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(step[order])) + 1) if len(order) else ():
        number = int(step[rows[0]])
        sizes = np.bincount(component[rows])
        tied = rows[component[rows] == np.argmax(sizes)]
        lengths = (end - start)[rows]
        drafts.append((number, int(start[tied].min()), int(end[tied].max()), int(lengths.min()), int(lengths.max())))
    is_warm_up, is_odd = _unusual([high - low for _, low, high, _, _ in drafts])
    return tuple(
        JobStep(*draft, warm_up=warm_up, odd=odd)
        for draft, warm_up, odd in zip(drafts, is_warm_up.tolist(), is_odd.tolist(), strict=True)
    )


def median_step_ns(lengths_ns: Sequence[float]) -> float:
    """Return the job's step: the median over ordinary steps."""
    return float(np.median(np.asarray(lengths_ns, float)[ordinary_steps(lengths_ns)]))


def ordinary_steps(lengths_ns: Sequence[float]) -> Flags:
    """Return which steps are neither warm-up nor outliers; all of them if there are none."""
    is_warm_up, is_odd = _unusual(lengths_ns)
    is_ordinary = ~is_warm_up & ~is_odd
    return is_ordinary if is_ordinary.any() else ~is_ordinary


def _unusual(lengths_ns: Sequence[float]) -> tuple[Flags, Flags]:
    """Return which steps are warm-up, long outliers at the start, and which are other outliers."""
    lengths = np.asarray(lengths_ns, float)
    is_outlier = outliers(lengths)
    is_long = is_outlier & (lengths > np.median(lengths)) if len(lengths) else is_outlier
    is_warm_up = np.logical_and.accumulate(is_long)
    return is_warm_up, is_outlier & ~is_warm_up


def _ordinary(job: tuple[JobStep, ...]) -> tuple[JobStep, ...]:
    return tuple(job_step for job_step in job if not job_step.warm_up and not job_step.odd) or job


def _spread(job: JobStep) -> float:
    return (job.longest_ns - job.shortest_ns) / job.length_ns if job.length_ns else 0.0


def _tokens_per_second(tables: TableSet, parts: partition.Partition, is_step: Flags, job: tuple[JobStep, ...]) -> float:
    tokens = tables.tokens_per_step
    lengths = parts.wall[np.isin(parts.step, [job_step.step for job_step in _ordinary(job)]) & is_step]
    if tokens <= 0 or not len(lengths) or lengths.sum() <= 0:
        return float("nan")
    return tokens / float(lengths.mean()) * 1e9


def _source_notes(tables: TableSet, selection: Selection) -> list[HealthRow]:
    ranks = selection.ranks_among(tables.ranks)
    ranks_of_source: dict[str, list[int]] = {}
    for rank in ranks:
        for source in tables.columns("steps", rank).codes("source")[1]:
            ranks_of_source.setdefault(source, []).append(rank)
    return [
        HealthRow(
            "steps_inferred",
            Severity.INFO,
            count=len(ranks_of_source[source]),
            detail=f"{text} on {_ranks(ranks_of_source[source])}",
        )
        for source, text in _SOURCES.items()
        if source in ranks_of_source
    ]


def _window_notes(windows: list[int]) -> list[HealthRow]:
    """Return the note that explains why there are no figures per step, and how to record steps."""
    if not windows:
        return []
    detail = (
        f"the steps of {_ranks(windows)} are unknown: figures cover the whole recorded window, without step time, "
        f"tokens per second or MFU; {RECORD_MARKS}"
    )
    return [HealthRow("window_is_no_step", Severity.INFO, count=len(windows), detail=detail)]


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return f"rank {shown}" if len(ranks) == 1 else f"{len(ranks)} ranks ({shown}{', ...' if len(ranks) > 8 else ''})"


def _odd_notes(job: tuple[JobStep, ...]) -> list[HealthRow]:
    notes = []
    for flag, text in (("warm_up", "warm-up"), ("odd", "odd")):
        steps = [str(s.step) for s in job if getattr(s, flag)]
        if steps:
            detail = f"{text}: step {', '.join(steps)}; excluded from the median"
            notes.append(HealthRow(f"steps_{flag}", Severity.INFO, count=len(steps), detail=detail))
    return notes
