"""Clocks: how far apart the ranks' clocks are, and how far times of different ranks can be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from usp_prof.analyses.result import Listing, Result, in_order
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.metric import SIGNED, Better, Metric, Unit, Value, Values
from usp_prof.model.printable import spans
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.tables import clock
from usp_prof.tables.matching.clocks import Clock, hosts_of
from usp_prof.tables.table_set import TableSet

CLOCK_OFFSET = Metric(
    "clock_offset", Unit.NS, Better.NEITHER, "Clock offset",
    "Offset added to a rank's times to get the common clock. Without a rank: the largest difference between "
    "two ranks.",
    ("rank",),
    within=SIGNED,
)  # fmt: skip
CLOCK_DRIFT = Metric(
    "clock_drift", Unit.RATIO, Better.NEITHER, "Clock drift",
    "Drift correction of a rank's clock, in seconds per second; only if the window is long enough.",
    ("rank",),
    within=SIGNED,
)  # fmt: skip
CLOCK_RESIDUAL = Metric(
    "clock_residual", Unit.NS, Better.LOWER, "Clock residual",
    "Median disagreement, on the common clock, between the ends of a rank's calls. Without a rank: the median "
    "over ranks.",
    ("rank",),
)  # fmt: skip
CLOCK_RESIDUAL_P99 = Metric(
    "clock_residual_p99", Unit.NS, Better.LOWER, "Clock residual, 99th percentile",
    "99th percentile of the disagreement, on the common clock, between the ends of a rank's calls. It limits how "
    "exactly ranks can be compared and does not affect the step. Without a rank: the largest over ranks.",
    ("rank",),
)  # fmt: skip
METRICS = (CLOCK_OFFSET, CLOCK_DRIFT, CLOCK_RESIDUAL, CLOCK_RESIDUAL_P99)


@dataclass(frozen=True, slots=True, eq=False)
class ClockResult(Result):
    """Clocks of the selected ranks."""

    clock: Clock
    hosts: tuple[str, ...]
    shown: tuple[int, ...]
    """Rows of `clock` for the selected ranks."""
    notes: tuple[HealthRow, ...] = ()

    def values(self) -> Values:
        """Return the metric values, sorted by dimension."""
        c, rows = self.clock, np.asarray(self.shown, np.int64)
        ranks = c.ranks[rows].tolist()
        values = [Value(CLOCK_OFFSET, int(np.ptp(c.offset_ns[rows])))] if len(rows) else []
        values += [Value(CLOCK_OFFSET, o, {"rank": r}) for r, o in zip(ranks, c.offset_ns[rows].tolist(), strict=True)]
        for r, ppm in zip(ranks, c.drift_ppm[rows].tolist(), strict=True):
            if not np.isnan(ppm):
                values.append(Value(CLOCK_DRIFT, ppm * 1e-6, {"rank": r}))
        tied = rows[c.ties[rows] > 0]
        if len(tied):
            values.append(Value(CLOCK_RESIDUAL, float(np.median(c.residual_p50_ns[tied]))))
            values.append(Value(CLOCK_RESIDUAL_P99, int(c.residual_p99_ns[tied].max())))
        for row in tied.tolist():
            dims = {"rank": int(c.ranks[row])}
            values.append(Value(CLOCK_RESIDUAL, int(c.residual_p50_ns[row]), dims))
            values.append(Value(CLOCK_RESIDUAL_P99, int(c.residual_p99_ns[row]), dims))
        return in_order(values)

    def listing(self) -> Listing:
        """Return one row per rank as plain columns."""
        c, rows = self.clock, np.asarray(self.shown, np.int64)
        columns = ("component", "offset_ns", "drift_ppm", "reference_ns", "residual_p50_ns", "residual_p99_ns", "ties")
        hosts = [self.hosts[row] for row in self.shown]
        own_columns: dict[str, Any] = {"rank": c.ranks[rows], "host": hosts}
        return own_columns | {name: getattr(c, name)[rows] for name in columns}


def compute(tables: TableSet, selection: Selection = EVERYTHING) -> ClockResult:
    """Return the clocks of the selected ranks. They are always solved from the whole run."""
    solved = clock.fit_clocks(tables)
    hosts = tuple(hosts_of(tables))
    rows = tuple(i for i, r in enumerate(tables.ranks) if selection.ranks is None or r in selection.ranks)
    return ClockResult(solved, hosts, rows, tuple(sorted(_notes(solved, hosts))))


def _notes(solved: Clock, hosts: tuple[str, ...]) -> list[HealthRow]:
    notes = []
    if solved.contradicted.any():
        ranks = solved.ranks[solved.contradicted].tolist()
        names = ", ".join(sorted({hosts[row] or "no name" for row in np.flatnonzero(solved.contradicted).tolist()}))
        detail = f"ranks {spans(ranks)} name one host ({names}), but collectives show that their clocks differ"
        notes.append(HealthRow("hosts_contradicted", Severity.INFO, count=len(ranks), detail=detail))
    for row in np.flatnonzero(solved.jumps_ns).tolist():
        detail = (
            f"its collectives suddenly end {abs(int(solved.jumps_ns[row])) / 1e6:.1f} ms further from those of its "
            "peers: its clock jumped, so its times are not compared with other ranks"
        )
        notes.append(HealthRow("clock_jump", Severity.ERROR, int(solved.ranks[row]), detail=detail))
    lossy_ranks = solved.ranks[solved.apart & (solved.jumps_ns == 0)].tolist()
    if lossy_ranks:
        detail = f"ranks {spans(lossy_ranks)} lack collectives of their groups, "
        detail += "so their calls are not compared with other ranks"
        notes.append(HealthRow("figures_withheld", Severity.INFO, count=len(lossy_ranks), detail=detail))
    if solved.components - int(solved.apart.sum()) > 1:
        detail = (
            f"no collective connects the clocks of {solved.components} parts of the run; their times are not compared"
        )
        notes.append(HealthRow("clocks_untied", Severity.ERROR, count=solved.components, detail=detail))
    unnamed = np.array([not host for host in hosts], bool)
    if unnamed.any() and len(hosts) > 1:
        clocks = len(np.unique(solved.domain[unnamed]))
        consequence = "no call contradicts that they share a clock"
        if clocks > 1:
            consequence = f"by their calls, they have {clocks} clocks"
        if len(np.unique(solved.domain)) == len(hosts):
            consequence = "each gets its own clock offset"
        detail = f"the files of these ranks name no host; {consequence}"
        notes.append(HealthRow("hosts_unnamed", Severity.INFO, count=int(unnamed.sum()), detail=detail))
    return notes
