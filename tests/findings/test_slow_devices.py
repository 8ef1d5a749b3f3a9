"""Slow devices in expert-parallel jobs: they are slow in all kernels, while full experts are slow in their own only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from injection import true_gain
from made_training import COMPUTE, Call, Job, Work

from usp_prof.analyses import stragglers
from usp_prof.findings.search import search
from usp_prof.replay.step_times import unedited
from usp_prof.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from made_training import Rank

    from usp_prof.tables.table_set import TableSet


class ExpertJob(Job):
    """A job whose matrix products have other loads on each rank and in each layer, and whose devices may be slow."""

    def __init__(self, slow: dict[int, float], full: dict[int, float]) -> None:
        super().__init__("experts", 5)
        self.gap, self.kernel, self.link, self.loading = 8.0, 6.0, 0.5, 50.0
        self.noise, self.lengths[:] = 0.02, 1.0
        self.has_records, self.has_graphs, self.copies_pageable, self.drains = True, False, False, False
        self.describes_groups, self.host_offset = True, 0.0
        self.slow, self.full = slow, full
        self.loads = np.random.default_rng(11)

    def factor(self, rank: Rank, item: Call | Work) -> float:
        """Return by how much load and a slow device multiply the time of a kernel."""
        if isinstance(item, Call) or item.stream != COMPUTE or item.category != "kernel":
            return 1.0
        is_of_experts = "gemm" in item.name and "optimizer" not in item.name
        load = self.full.get(rank.number, 1.0) * float(self.loads.uniform(0.6, 1.4)) if is_of_experts else 1.0
        return load * self.slow.get(rank.number, 1.0)


def tables_with(folder: Path, slow: dict[int, float], full: dict[int, float] | None = None) -> TableSet:
    job = ExpertJob(slow, full or {})
    job.simulate(None, 3)
    job.write(folder)
    return open_run(folder, cache_dir=folder / "cache").tables


@pytest.mark.parametrize(
    ("slow", "where"), [({2: 1.3}, {"rank": 2}), ({0: 1.5, 1: 1.5}, {"ranks": "0-1"})], ids=["one", "half of them"]
)
def test_slow_devices_are_the_first_finding(slow: dict[int, float], where: dict[str, object], tmp_path: Path) -> None:
    tables = tables_with(tmp_path / "slow", slow)
    truth = true_gain(unedited(tables_with(tmp_path / "usual", {})), unedited(tables))
    findings = search(tables).findings
    assert (findings[0].code, dict(findings[0].where)) == ("slow-rank", where)
    assert "uneven-experts" not in {finding.code for finding in findings if finding.part_of < 0}
    assert findings[0].gain_fraction == pytest.approx(truth, abs=0.03)


def test_a_rank_with_fuller_experts_is_not_slow(tmp_path: Path) -> None:
    codes = {finding.code for finding in search(tables_with(tmp_path / "full", {}, {2: 1.6})).findings}
    assert "uneven-experts" in codes
    assert "slow-rank" not in codes


def test_the_title_and_the_table_of_stragglers_state_one_slowdown(tmp_path: Path) -> None:
    """The device is slow in all kernels. Kernels that run at once count once in a step."""
    tables = tables_with(tmp_path / "slow", {2: 1.3})
    slowdown = stragglers.compute(tables).rank_slowdown(2)
    assert search(tables).findings[0].title == f"Rank 2 computes {slowdown:.2f}x as long as its peers"
