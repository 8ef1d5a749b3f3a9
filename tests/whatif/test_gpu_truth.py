"""Gains on synthetic GPU runs, compared with the same run simulated without its fault."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

import pytest
from made_gpu import FAULTS, RUNS, WORTH_NAMING, MadeRun, faulty_runs, ideal_gain, made_run, made_runs

from usp_prof.analyses import stragglers
from usp_prof.findings import find
from usp_prof.findings.engine import repairs_in
from usp_prof.model.edit import parse_edit
from usp_prof.model.finding import Level
from usp_prof.whatif.attribution import slowdown
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from usp_prof.model.finding import Finding

pytestmark = pytest.mark.slow

FINDING_OF = {
    "host_pause": "host-pause",
    "late_launches": "slow-host",
    "slow_rank": "slow-rank",
    "slow_link": "slow-link",
    "blocking_sync": "blocking-sync",
    "late_input": "late-input",
}
OF_ONE_RANK = ("host_pause", "late_launches", "slow_rank", "late_input")
CLOSE = 0.03
"""Of the step: the median gain's distance from the truth."""
SIGNIFICANT = 0.02
FIRST_IN = 0.95


def kinds(*names: str) -> pytest.MarkDecorator:
    """Parametrize a test over the kinds of faults."""
    return pytest.mark.parametrize("kind", names)


def findings(run: MadeRun) -> list[Finding]:
    """Return the problems of a run, without alternative configuration choices."""
    return [finding for finding in find(run.tables) if finding.level is not Level.NOTE]


def names_culprit(run: MadeRun, kind: str, finding: Finding) -> bool:
    """Return whether a finding names the fault, and its place if it has one."""
    if finding.code != FINDING_OF[kind] or run.fault is None:
        return False
    if kind in OF_ONE_RANK:
        return finding.where.get("rank") == run.fault.rank
    if kind == "slow_link":
        members = str(finding.where["group"]).partition("@")[2].split(",")
        return finding.where["axis"] == run.fault.axis and str(run.fault.rank) in members
    return True


def assert_close(gains: list[tuple[float, MadeRun]]) -> None:
    """Compare gains with the truth: the median distance, and the sign wherever the truth is significant."""
    off = [f"{run.name}: {gain:.3f}, truly {run.gain:.3f}" for gain, run in gains if abs(gain - run.gain) > CLOSE]
    if median(abs(gain - run.gain) for gain, run in gains) > CLOSE:
        pytest.fail("\n".join(off))
    assert [run.name for gain, run in gains if run.gain > SIGNIFICANT and gain <= 0] == []


@kinds(*FAULTS)
def test_the_finding_of_the_fault_comes_first(kind: str) -> None:
    runs = [run for run in made_runs(kind) if run.gain >= WORTH_NAMING]
    first = {run.name: [f"{f.code} {dict(f.where)}" for f in findings(run)[:3]] for run in runs}
    missed = [run.name for run in runs if not any(names_culprit(run, kind, finding) for finding in findings(run)[:1])]
    if len(missed) > (1 - FIRST_IN) * len(runs):
        pytest.fail("\n".join(f"{name}: {first[name]}" for name in missed))


@kinds(*FAULTS)
def test_the_gain_of_the_fault_equals_that_of_its_repair(kind: str) -> None:
    gains = []
    for run in made_runs(kind):
        culprit_gains = [finding.gain_fraction for finding in findings(run) if names_culprit(run, kind, finding)]
        if culprit_gains or run.gain >= WORTH_NAMING:
            gains.append((culprit_gains[0] if culprit_gains else 0.0, run))
    assert_close(gains)


@kinds(*OF_ONE_RANK)
def test_rank_as_peers_gains_the_cost_of_the_fault(kind: str) -> None:
    assert_close(
        [
            (predict(run.tables, [parse_edit(f"rank_as_peers={run.fault.rank}")]).gain_fraction, run)
            for run in made_runs(kind)
            if run.fault
        ]
    )


@kinds("host_pause", "late_launches")
def test_host_as_peers_gains_the_cost_of_the_fault(kind: str) -> None:
    assert_close(
        [
            (predict(run.tables, [parse_edit(f"host_as_peers={run.fault.rank}")]).gain_fraction, run)
            for run in made_runs(kind)
            if run.fault
        ]
    )


@kinds(*OF_ONE_RANK)
def test_the_ideal_step_gains_as_much_as_a_run_with_equal_ranks(kind: str) -> None:
    gains = []
    for name, fault in faulty_runs(kind):
        run = made_run(name, fault)
        result = slowdown(run.tables)
        gains.append((1 - 1 / result.slowdown, replace(run, gain=ideal_gain(name, fault))))
    assert_close(gains)


@kinds(*OF_ONE_RANK)
def test_the_loss_is_attributed_to_the_fault(kind: str) -> None:
    for run in made_runs(kind):
        if run.gain >= WORTH_NAMING and run.fault:
            parts = [part for part in slowdown(run.tables).parts if part.dimension == "rank"]
            assert parts[0].name == str(run.fault.rank), run.name
            assert parts[0].share == pytest.approx(1, abs=0.1), run.name


@kinds(*OF_ONE_RANK)
def test_the_first_straggler_is_the_rank_of_the_fault(kind: str) -> None:
    gains = []
    for run in made_runs(kind):
        if run.gain >= WORTH_NAMING and run.fault:
            culprits = stragglers.compute(run.tables).culprits
            assert [culprit.rank for culprit in culprits][:1] == [run.fault.rank], run.name
            gain_of_rank = {repair.rank: repair.gain_fraction for repair in repairs_in(run.tables)}
            gains.append((gain_of_rank.get(run.fault.rank, 0.0), run))
    assert_close(gains)


@pytest.mark.parametrize("name", RUNS)
def test_a_clean_run_has_no_finding(name: str) -> None:
    run = made_run(name)
    assert [f"{f.code} {f.gain_fraction:.3f} {dict(f.where)}" for f in findings(run)] == []
    assert slowdown(run.tables).slowdown == pytest.approx(1, abs=0.02)
    assert stragglers.compute(run.tables).culprits == ()
