"""Table of clocks: the offset of each host's clock, and its accuracy.

Participants of a collective end almost together, so their ends (never their starts) connect the clocks of their hosts.
Ranks of one host share a clock if their files have a time base; a file without one has its own clock.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from usp_prof import limits
from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import rows_by_code, text_codes
from usp_prof.model.health import HealthRow
from usp_prof.model.schema import RANK, Schema, Scope, integer, real, text
from usp_prof.tables.build import table
from usp_prof.tables.completeness.losses import LOST_WORK, losses, ranks_without_calls
from usp_prof.tables.matching.clock_fit import Solution, solve
from usp_prof.tables.matching.clock_jumps import apart_ranks, change_at, clock_jumps, separate_hosts
from usp_prof.tables.matching.clocks import Clock, clock_sources, hosts_of
from usp_prof.tables.matching.same_calls import matched_parts
from usp_prof.tables.matching.ties import Ties, ties_of
from usp_prof.tables.table_set import TableSet, memoized

SCHEMA = Schema(
    "clock",
    "Offset and drift of each rank's clock against the reference, solved from the ends of collectives.",
    (
        RANK,
        text("host", "Host; ranks of one host share one clock."),
        integer("component", "Connected component; ranks of different components cannot be compared."),
        integer("offset_ns", "Add this to the rank's times at `reference_ns` to get common time.", "ns"),
        real("drift_ppm", "Drift against the reference; NaN when the window is too short.", "ppm"),
        integer("reference_ns", "Time at which the offset holds, on the rank's own clock.", "ns"),
        integer("residual_p50_ns", "Median disagreement of call ends after alignment; -1 without shared calls.", "ns"),
        integer("residual_p99_ns", "99th percentile.", "ns"),
        integer("ties", "Number of shared calls that connect this clock to others."),
    ),
    Scope.RUN,
)


def build(tables: TableSet) -> pa.Table:
    """Build the table."""
    clock = fit_clocks(tables)
    columns: dict[str, Any] = {
        "rank": clock.ranks,
        "host": hosts_of(tables),
        "component": clock.component,
        "offset_ns": clock.offset_ns,
        "drift_ppm": clock.drift_ppm,
        "reference_ns": clock.reference_ns,
        "residual_p50_ns": clock.residual_p50_ns,
        "residual_p99_ns": clock.residual_p99_ns,
        "ties": clock.ties,
    }
    return table(SCHEMA, columns, len(clock.ranks))


@memoized("clock")
def fit_clocks(tables: TableSet) -> Clock:
    """Solve the clocks of a run."""
    ranks = np.asarray(tables.ranks, np.int64)
    solved, ties, contradicted = _solved(tables)
    # If communication is missing, calls are matched wrongly, and an apparent jump means nothing.
    jumps_ns = np.zeros(len(ranks), np.int64)
    if not losses(tables, *LOST_WORK):
        is_gloo = [tables.columns("collectives", rank).matches("library", "gloo").any() for rank in tables.ranks]
        jumps_ns = clock_jumps(solved, ties, np.array(is_gloo, bool))
    has_lost_calls = np.isin(ranks, sorted(ranks_without_calls(tables)))
    return _clock(ranks, solved, ties, contradicted, has_lost_calls | (jumps_ns != 0), jumps_ns)


@memoized("clock solution")
def _solved(tables: TableSet) -> tuple[Solution, Ties, Flags]:
    """Return the solution of a run's clocks, its ties, and the ranks whose host name is contradicted."""
    ranks = np.asarray(tables.ranks, np.int64)
    hosts = hosts_of(tables)
    based = np.array([has_base for _, has_base, _ in clock_sources(tables)], bool)
    ties = ties_of(matched_parts(tables), ranks)
    separate = Solution.alone(_domains(hosts, based, together=False), ties)
    together = Solution.alone(_domains(hosts, based, together=True), ties)
    # Files without a host name may come from one machine or several. If their clocks contradict no collective
    # (no rank ends before the last one starts, and no ends are always equally far apart), they are used as they are.
    start = together if together.possible(ties) and not apart_ranks(together, ties).any() else separate
    # Equal host names do not prove one clock: every container may be called localhost.
    contradicted = start.contradicted_ranks(ties) | apart_ranks(start, ties)
    if contradicted.any():
        start = Solution.alone(_split(start.domain, contradicted), ties)
    start = Solution.alone(separate_hosts(start, ties, np.array([not host for host in hosts], bool)), ties)
    first_ns = [first for _, _, first in clock_sources(tables)]
    return _shift_far_parts(solve(start, ties), first_ns), ties, contradicted


def is_pause(tables: TableSet, row: HealthRow) -> bool:
    """Return whether collectives show that a clock jump between two step marks was a pause of the host.

    After a pause, they end together with those of the peers, as before.
    """
    steps = tables.columns("steps", row.rank)
    order = np.argsort(steps["host_start_ns"], kind="stable")
    ended = steps["host_end_ns"][order][:-1]
    gap_ns = np.abs(steps["host_start_ns"][order][1:] - ended)
    if not len(gap_ns):
        return False
    solved, ties, _ = _solved(tables)
    longest = int(np.argmax(gap_ns))
    change_ns = change_at(solved, ties, tables.ranks.index(row.rank), int(ended[longest]))
    return change_ns is not None and abs(change_ns) < gap_ns[longest] / 2


def _split(domain: Ints, own: Flags) -> Ints:
    """Return the clocks of all ranks, where the ranks in `own` have one each."""
    component_or_own = np.where(own, len(domain) + np.arange(len(domain)), domain)
    return np.unique(component_or_own, return_inverse=True)[1].astype(np.int64)


def _shift_far_parts(solved: Solution, first_ns: list[int | None]) -> Solution:
    """Shift parts that nothing ties to the first part to its start, if they are farther away than a trace can last.

    Times of different parts are not compared, but a replay contains all of them. `first_ns` has the first event of each
    rank on its own clock.
    """
    start_of_part: dict[int, int] = {}
    for part, clock, first in zip(solved.component.tolist(), solved.domain.tolist(), first_ns, strict=True):
        if first is not None:
            start = first + int(solved.offset_ns[clock])
            start_of_part[part] = min(start, start_of_part.get(part, start))
    reference = next(iter(start_of_part.values()), 0)
    offset_ns = solved.offset_ns.copy()
    for part, start in start_of_part.items():
        if abs(start - reference) > limits.MAX_WINDOW_NS:
            offset_ns[np.unique(solved.domain[solved.component == part])] += reference - start
    return replace(solved, offset_ns=offset_ns)


def _domains(hosts: list[str], based: Flags, *, together: bool) -> Ints:
    """Assign clocks numbers, one per host; ranks of unknown hosts share a number or stay alone."""
    keys = [
        f"host {host}" if has and host else ("unknown" if has and together else f"rank {row}")
        for row, (host, has) in enumerate(zip(hosts, based.tolist(), strict=True))
    ]
    return text_codes(keys)[0]


def _clock(ranks: Ints, solved: Solution, ties: Ties, contradicted: Flags, is_apart: Flags, jumps_ns: Ints) -> Clock:
    residual = solved.disagreement(ties)
    p50, p99 = (np.full(len(ranks), -1, np.int64) for _ in range(2))
    for row, members in rows_by_code(ties.row).items():
        p50[row], p99[row] = (int(q) for q in np.quantile(residual[members], [0.5, 0.99], method="higher"))
    return Clock(
        ranks,
        solved.domain,
        _split(solved.component, is_apart),
        solved.offset_ns[solved.domain],
        solved.drift_ppm[solved.domain],
        solved.reference_ns[solved.domain],
        p50,
        p99,
        np.bincount(ties.row, minlength=len(ranks)).astype(np.int64),
        is_apart,
        contradicted,
        jumps_ns,
    )
