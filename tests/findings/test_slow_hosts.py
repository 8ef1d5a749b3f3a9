"""Slow hosts of several ranks, such as all ranks of one node: one finding, with the gain of repairing them together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from injection import true_gain
from made_training import Call, Job, Work

from usp_prof.findings.search import search
from usp_prof.replay.step_times import unedited
from usp_prof.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from made_training import Rank

    from usp_prof.tables.table_set import TableSet


class NodeJob(Job):
    """A job in which the hosts of some ranks take longer for each call; the hosts limit its step."""

    def __init__(self, factor_of_rank: dict[int, float]) -> None:
        super().__init__("tensor-parallel", 5)
        self.gap, self.kernel, self.link, self.loading = 15.0, 0.5, 0.5, 50.0
        self.has_records, self.has_graphs, self.copies_pageable, self.drains = True, False, False, False
        self.host_offset = 0.0
        self.factor_of_rank = factor_of_rank

    def factor(self, rank: Rank, item: Call | Work) -> float:
        """Return by how much a slow host multiplies the time of its calls."""
        return self.factor_of_rank.get(rank.number, 1.0) if isinstance(item, Call) else 1.0


def tables_with(folder: Path, factor_of_rank: dict[int, float]) -> TableSet:
    job = NodeJob(factor_of_rank)
    job.simulate(None, 3)
    job.write(folder)
    return open_run(folder, cache_dir=folder / "cache").tables


def test_the_slow_hosts_of_a_node_are_the_first_finding(tmp_path: Path) -> None:
    slow = tables_with(tmp_path / "slow", {0: 4.0, 1: 4.0})
    truth = true_gain(unedited(tables_with(tmp_path / "usual", {})), unedited(slow))
    first = search(slow).findings[0]
    assert (first.code, dict(first.where), first.edit) == ("slow-host", {"ranks": "0-1"}, "host_as_peers=0+1")
    assert first.title.startswith("The hosts of ranks 0-1 take")
    assert truth > 0.3
    assert first.gain_fraction == pytest.approx(truth, abs=0.02 + first.error_fraction)


def test_a_host_that_is_far_slower_than_other_slow_hosts_is_named_alone(tmp_path: Path) -> None:
    slow = tables_with(tmp_path / "slow", {0: 1.5, 1: 6.0})
    first = search(slow).findings[0]
    assert (first.code, dict(first.where), first.edit) == ("slow-host", {"rank": 1}, "host_as_peers=1")
