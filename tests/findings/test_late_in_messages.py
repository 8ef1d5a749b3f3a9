"""Ranks that are late in sends and receives only, as in a ring."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from injection import true_gain
from made_training import Delay, Job

from usp_prof.analyses import stragglers
from usp_prof.findings.repairs import late_in_messages, repairs_of
from usp_prof.findings.search import search
from usp_prof.model.finding import repair_values
from usp_prof.replay.step_times import unedited
from usp_prof.report.figures import Figures
from usp_prof.report.verdict import verdict_of
from usp_prof.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.tables.table_set import TableSet


def ring(folder: Path, delay: Delay | None, *, has_axis: bool = False) -> TableSet:
    """Make a job whose ranks pass messages around a ring; the axis of its group may be recorded."""
    job = Job("ring", 761_594)
    job.describes_groups = has_axis
    job.simulate(delay, 822_740)
    job.write(folder)
    return open_run(folder, cache_dir=folder / "cache").tables


@pytest.fixture(params=[False, True])
def delayed(request: pytest.FixtureRequest, tmp_path: Path) -> TableSet:
    return ring(tmp_path / "delayed", Delay("late_messages", 3, 9_900), has_axis=request.param)


def test_a_rank_that_holds_up_its_ring_is_the_first_finding(delayed: TableSet, tmp_path: Path) -> None:
    truth = true_gain(unedited(ring(tmp_path / "usual", None)), unedited(delayed))
    first = search(delayed).findings[0]
    assert (first.code, first.where["rank"]) == ("late-rank", 3)
    assert first.gain_fraction == pytest.approx(truth, abs=0.01)
    assert "sends and receives" in first.title


def test_its_repair_explains_the_slowdown_of_the_job(delayed: TableSet) -> None:
    repairs = repairs_of(delayed)
    assert [repair.rank for repair in repairs] == [3]
    assert not stragglers.compute(delayed).culprits  # it is not late in collectives
    verdict = verdict_of(Figures(repair_values(repairs)), ())
    assert (verdict.late_ranks, verdict.straggler) == ((), 3)


def test_a_usual_ring_has_no_late_rank(tmp_path: Path) -> None:
    usual = ring(tmp_path / "usual", None)
    assert not late_in_messages(usual)
    assert "late-rank" not in {finding.code for finding in search(usual).findings}
