"""Step breakdown: compute, exposed communication per axis, copies and idle time by cause, adding up to the step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from usp_prof.analyses.measures import partition
from usp_prof.analyses.measures.partition import CAUSES, Cause, Partition
from usp_prof.analyses.result import Listing, Result, in_order, rank_means, spread
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.metric import Better, Metric, Unit, Values
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.model.topology import Axis
from usp_prof.tables import calls
from usp_prof.tables.table_set import TableSet

_LEVELS = "Per rank: mean over steps; without a rank: mean of these."
COMPUTE_TIME = Metric(
    "compute_time", Unit.NS, Better.NEITHER, "Compute",
    f"Time in which at least one kernel that is not communication runs. {_LEVELS}",
    ("rank", "step"),
)  # fmt: skip
EXPOSED_COMM_TIME = Metric(
    "exposed_comm_time", Unit.NS, Better.LOWER, "Exposed communication",
    "Time in which communication runs and no compute does; if several axes run, the one that ends last counts."
    f" {_LEVELS}",
    ("rank", "step", "axis"),
)  # fmt: skip
MEMCPY_TIME = Metric(
    "memcpy_time", Unit.NS, Better.LOWER, "Copies",
    f"Time in which only copies or memsets run. {_LEVELS}",
    ("rank", "step"),
)  # fmt: skip
UNRECORDED_TIME = Metric(
    "unrecorded_time", Unit.NS, Better.NEITHER, "Not recorded",
    "Time without recorded device work in which lost work may have run. Compute or idle time may be longer by "
    "this.",
    ("rank", "step"),
)  # fmt: skip
IDLE_TIME = Metric(
    "idle_time", Unit.NS, Better.LOWER, "Idle",
    "Time in which the device does nothing, by cause: bubble, host (late launches), input, sync, other. "
    f"{_LEVELS}",
    ("rank", "step", "cause"),
)  # fmt: skip
_NOTABLE_WAIT = 0.1
"""Share of the time of pipeline sends from which their wait for the receiver is reported."""
METRICS = (COMPUTE_TIME, EXPOSED_COMM_TIME, MEMCPY_TIME, UNRECORDED_TIME, IDLE_TIME)


@dataclass(frozen=True, slots=True, eq=False)
class BreakdownResult(Result):
    """Partition of every selected (rank, step)."""

    parts: Partition
    notes: tuple[HealthRow, ...] = ()

    def mean_ns(self) -> dict[str, float]:
        """Return the mean time of each part by its role (`compute`, `comm:tp`, `memcpy`, `idle:host`).

        They are means over ranks of means over steps, and add up to the step; empty if there are no steps.
        """
        rows = self.parts
        columns = {"compute": rows.compute}
        columns |= {f"comm:{axis}": rows.exposed[:, i] for i, axis in enumerate(rows.axes)}
        columns |= {"memcpy": rows.memcpy, "unrecorded": rows.unrecorded}
        columns |= {f"idle:{cause}": rows.idle[:, i] for i, cause in enumerate(CAUSES)}
        if not len(rows.rank):
            return {}
        return {role: float(rank_means(rows.rank, column)[1].mean()) for role, column in columns.items()}

    def values(self) -> Values:
        """Return the metric values, sorted by dimension."""
        p = self.parts
        values = spread(COMPUTE_TIME, p.rank, p.step, p.compute)
        values += spread(EXPOSED_COMM_TIME, p.rank, p.step, p.exposed.sum(axis=1))
        for i, axis in enumerate(p.axes):
            values += spread(EXPOSED_COMM_TIME, p.rank, p.step, p.exposed[:, i], axis=axis)
        values += spread(MEMCPY_TIME, p.rank, p.step, p.memcpy)
        if p.unrecorded.any():
            values += spread(UNRECORDED_TIME, p.rank, p.step, p.unrecorded)
        values += spread(IDLE_TIME, p.rank, p.step, p.idle.sum(axis=1))
        for i, cause in enumerate(CAUSES):
            values += spread(IDLE_TIME, p.rank, p.step, p.idle[:, i], cause=str(cause))
        return in_order(values)

    def listing(self) -> Listing:
        """Return one row per rank and step, with one column per part."""
        p = self.parts
        columns = {"rank": p.rank, "step": p.step, "step_ns": p.wall, "compute_ns": p.compute}
        columns |= {f"exposed_{axis}_ns": p.exposed[:, i] for i, axis in enumerate(p.axes)}
        columns |= {"memcpy_ns": p.memcpy, "unrecorded_ns": p.unrecorded}
        columns |= {f"idle_{cause}_ns": p.idle[:, i] for i, cause in enumerate(CAUSES)}
        return columns | {"contended_ns": p.any_contended}


def compute(tables: TableSet, selection: Selection = EVERYTHING) -> BreakdownResult:
    """Partition the selected steps."""
    parts = partition.divide_run(tables, selection)
    return BreakdownResult(parts, tuple(_notes(tables, parts)))


def _notes(tables: TableSet, parts: Partition) -> list[HealthRow]:
    notes = []
    contended, exposed = int(parts.any_contended.sum()), int(parts.exposed.sum())
    if contended:
        share = f"{100 * contended / exposed:.1f}% of the exposed communication has several axes exposed at once"
        detail = f"{share}; that time counts for the axis that ends last"
        notes.append(HealthRow("axes_contend", Severity.INFO, detail=detail))
    if str(Axis.UNKNOWN) in parts.axes:
        detail = "communication of a group without a description is shown as axis 'unknown'"
        notes.append(HealthRow("axis_unknown", Severity.INFO, detail=detail))
    ranks = np.unique(parts.rank).tolist()
    seen = list(calls.of_each_rank(tables, _of_rank, ranks))
    blind = [rank for rank, of_rank in zip(ranks, seen, strict=True) if of_rank.is_blind]
    if parts.idle[np.isin(parts.rank, blind)][:, CAUSES.index(Cause.OTHER)].any():
        detail = "no host calls were recorded, so idle time caused by the host is shown as 'other'"
        notes.append(HealthRow("idle_cause_unknown", Severity.INFO, count=len(blind), detail=detail))
    if one_sided := sum(of_rank.one_sided for of_rank in seen):
        detail = "pipeline receives with an unknown sender: the time until it sent is bubble, but counts as exposed pp"
        notes.append(HealthRow("bubble_in_pp", Severity.INFO, count=one_sided, detail=detail))
    waited = sum(of_rank.sends_waited_ns for of_rank in seen)
    lasted = sum(of_rank.sends_lasted_ns for of_rank in seen)
    if waited and waited >= _NOTABLE_WAIT * lasted:
        share = f"{100 * waited / lasted:.1f}% of pipeline sends"
        detail = f"{share} is waiting for the receiver, which counts as exposed pp"
        notes.append(HealthRow("sends_wait", Severity.INFO, detail=detail))
    return sorted(notes)


@dataclass(frozen=True, slots=True)
class _OfRank:
    """Figures that one rank's trace leaves unknown."""

    is_blind: bool
    """Whether its host was not recorded."""
    one_sided: int
    """Number of pipeline receives without a known sender."""
    sends_waited_ns: int
    sends_lasted_ns: int


def _of_rank(tables: TableSet, rank: int) -> _OfRank:
    collectives = tables.columns("collectives", rank)
    on_pipeline = collectives.matches("axis", str(Axis.PP))
    receives = on_pipeline & collectives.matches("op", "recv", "send_recv")
    # gloo's range of a send shows only when it was posted; its wait is already left out.
    sends = on_pipeline & collectives.matches("op", "send") & ~collectives.matches("library", "gloo")
    pairs = calls.match_calls(tables).pairs_of(rank, "part", "wait_ns", "transfer_ns")
    is_send = sends[pairs["part"]]
    waited, transferred = (int(pairs[name][is_send].sum()) for name in ("wait_ns", "transfer_ns"))
    return _OfRank(
        tables.ran_on_gpu(rank) and not len(tables.columns("launches", rank)),
        int((receives & ~calls.paired(tables, rank)).sum()),
        waited,
        waited + transferred,
    )
