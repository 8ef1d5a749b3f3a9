"""Clock analysis: offsets, residuals, and ranks that cannot be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import declared
import made
import numpy as np
import pytest
from made import part

from usp_prof.analyses import clock
from usp_prof.extras.synth.declaration import Clocks, Declaration, Mesh, Work
from usp_prof.extras.synth.mesh import BASE_NS, clocks
from usp_prof.model.selection import Selection

if TYPE_CHECKING:
    from pathlib import Path


def rows(rank: int, skew: int, group: str = "g@0,1", host: str = "h") -> dict[str, list[made.Row]]:
    ends = [1_000_000 * (i + 1) - skew for i in range(20)]
    parts = [part("all_reduce", e - 500, e, sequence=i, part=i, group=group) for i, e in enumerate(ends)]
    return {"collectives": parts, "ranks": [{"host": host and f"{host}{rank}", "base_ns": 1}]}


def test_offsets_and_residuals_are_reported_per_rank_and_for_the_run() -> None:
    result = clock.compute(made.run({0: rows(0, 0), 1: rows(1, 70_000)}))
    value_of_metric = {(v.metric.id, *v.dims.values()): v.value for v in result.values()}
    assert value_of_metric == {
        ("clock_offset",): 70_000, ("clock_offset", 0): 0, ("clock_offset", 1): 70_000,
        ("clock_residual",): 0.0, ("clock_residual", 0): 0, ("clock_residual", 1): 0,
        ("clock_residual_p99",): 0, ("clock_residual_p99", 0): 0, ("clock_residual_p99", 1): 0,
    }  # fmt: skip
    assert result.to_pandas()["offset_ns"].tolist() == [0, 70_000]
    assert result.notes == ()


def test_drift_is_a_ratio() -> None:
    drifting = rows(1, 0)
    for i, row in enumerate(drifting["collectives"]):
        row["start_ns"] += 100_000_000 * i + 10_000 * i
    steady = rows(0, 0)
    for i, row in enumerate(steady["collectives"]):
        row["start_ns"] += 100_000_000 * i
    value_of_metric = {
        (v.metric.id, *v.dims.values()): v.value for v in clock.compute(made.run({0: steady, 1: drifting})).values()
    }
    assert np.isclose(value_of_metric["clock_drift", 1], -1e-4, rtol=0.02)
    assert value_of_metric["clock_drift", 0] == 0


def test_unconnected_clocks_and_unknown_hosts_are_reported() -> None:
    apart = clock.compute(made.run({0: rows(0, 0), 2: rows(2, 0, group="o@2,3")}))
    assert [n.code for n in apart.notes] == ["clocks_untied"]
    unnamed = clock.compute(made.run({r: rows(r, 0, host="") for r in range(2)}), Selection(ranks=(1,)))
    assert [n.code for n in unnamed.notes] == ["hosts_unnamed"]
    assert "no call contradicts" in unnamed.notes[0].detail
    assert unnamed.to_pandas()["rank"].tolist() == [1]
    skewed = clock.compute(made.run({r: rows(r, 90_000 * r, host="") for r in range(2)}))
    assert "its own clock offset" in skewed.notes[0].detail


@pytest.mark.parametrize(("mesh", "ranks_per_host"), [(Mesh(dp=4, tp=2), 2), (Mesh(pp=4), 1), (Mesh(dp=2, pp=2), 1)])
def test_simulated_hosts_are_aligned_within_5_us(mesh: Mesh, ranks_per_host: int, tmp_path: Path) -> None:
    """Offsets up to 5 ms and drifts up to 50 ppm; the bar is 20 us."""
    drawn = Clocks(ranks_per_host=ranks_per_host, offset_bound_ns=5_000_000, drift_bound_ppm=50)
    run = Declaration(seed=3, mesh=mesh, work=Work(steps=3), clocks=drawn)
    tables, _ = declared.read(run, tmp_path)
    solved, shown = clock.compute(tables).clock, clocks(run)
    windows = tables.columns("steps", 0)
    moments = np.linspace(0, windows["end_ns"][-1] - windows["start_ns"][0], 50).astype(np.int64)
    common = [solved.align(rank, BASE_NS + shown[rank].local(moments)) for rank in tables.ranks]
    assert np.abs(np.array(common) - common[0]).max() < 5_000
