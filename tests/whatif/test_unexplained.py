"""Unexplained device idle time: measured, included in errors, and never part of a stated gain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tiny import Trace, table_set

from usp_prof.findings.repairs import ideal_of, repair_edit, repairs_of, unexplained_notes
from usp_prof.findings.search import search
from usp_prof.model.edit import Edit
from usp_prof.replay.unexplained import unexplained_shares
from usp_prof.whatif.edited import as_recorded
from usp_prof.whatif.predict import gain_of

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

US, MS = 1_000, 1_000_000
STEPS, KERNELS = 3, 8


def run(late_ns: dict[int, int]) -> TableSet:
    """Return a run of ranks that compute and then all-reduce; each kernel of a rank starts that much too late.

    The hosts launch everything ahead of the devices.
    """
    traces = {}
    slowest = KERNELS * (MS + 2_000 + max(late_ns.values(), default=0))
    for rank in range(4):
        trace, device = Trace(rank, 4).group("0", range(4)), 20 * US
        for step in range(STEPS):
            host, reduces = step * 300 * US, device + slowest
            trace.step(step, host, 290 * US)
            for number in range(KERNELS):
                device += late_ns.get(rank, 0)
                trace.kernel("gemm", device, MS, launch_at=host + 1_000 + number * 5_000)
                device += MS + 2_000
            end = reduces + 500 * US
            trace.collective("all_reduce", device, end - device, group="0", launch_at=host + 100_000, stream=7)
            device = end + 2_000
        traces[rank] = trace
    return table_set(traces)


def test_a_run_explained_by_its_launches_has_no_unexplained_time() -> None:
    tables = run({})
    assert unexplained_shares(tables) == {}
    assert unexplained_notes(tables) == []


def test_the_share_of_late_kernels_is_measured_per_rank() -> None:
    tables = run({2: MS})
    shares = unexplained_shares(tables)
    assert list(shares) == [2]
    assert shares[2] == pytest.approx(KERNELS / (2 * KERNELS + 1), rel=0.1)
    (row,) = [row for row in unexplained_notes(tables) if row.code == "unexplained_idle"]
    assert "% of the steps of rank 2;" in row.detail
    assert " ms before gemm on rank 2, step 0" in row.detail


def test_no_gain_is_stated_for_a_rank_with_unexplained_lateness() -> None:
    tables = run({2: MS})
    gain = gain_of(tables, as_recorded(tables).then(tables, Edit("rank_as_peers", "2")))
    removed = KERNELS / (2 * KERNELS + 1)
    assert gain.gain_fraction == pytest.approx(0, abs=0.02)
    assert gain.gain_fraction + gain.error_fraction == pytest.approx(removed, abs=0.05)
    search_result = search(tables)
    assert all(finding.where.get("rank") != 2 or finding.is_noise for finding in search_result.findings)
    assert all(
        repair.gain_fraction + repair.error_fraction >= repair.late_fraction or repair.disagrees
        for repair in search_result.repairs
    )


def test_the_job_slowdown_is_at_least_the_cost_of_its_latest_rank() -> None:
    traces = {}
    for rank in range(4):
        trace, at = Trace(rank, 4).group("0", range(4)), 0
        for step in range(STEPS):
            length = 3 * MS if rank == 1 else MS
            trace.kernel("gemm", at + 20 * US, length, launch_at=at + 1_000)
            trace.collective(
                "all_reduce", at + 30 * US + length, 3_400 * US - 30 * US - length, group="0", launch_at=at + 9_000
            )
            trace.step(step, at, 3_500 * US)
            at += 3_500 * US
        traces[rank] = trace
    tables = table_set(traces)
    (repair,) = repairs_of(tables)
    assert repair.rank == 1
    assert repair_edit(tables, 1) == Edit("rank_as_peers", "1")
    ideal = ideal_of(tables)
    assert ideal is not None
    assert ideal.slowdown is not None
    assert ideal.slowdown >= 1 / (1 - repair.gain_fraction) - 1e-9
