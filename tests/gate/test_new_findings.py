from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gate_runs import measured, series, steps, with_fact

from usp_prof.gate.facts import FactKind
from usp_prof.gate.measured import Baseline, Measured, SeenFinding, seen_findings
from usp_prof.gate.policy import Policy
from usp_prof.gate.verdict import Report, Verdict, check
from usp_prof.model.finding import Finding, Level

SLOW = SeenFinding("slow-rank", Level.CRITICAL, "Rank 3 is slow", "rank=3", 0.15)
CPU = with_fact(FactKind.HARDWARE, "device", "cpu")


def _run(seed: int, *findings: SeenFinding, noise: float = 0.01) -> Measured:
    rng = np.random.default_rng(seed)
    return measured(series("step_time", steps(rng, noise=noise)), findings=findings)


def _check(after: Measured, *before: Measured) -> Report:
    return check(Baseline(before), after, Policy())


def test_a_gain_beyond_noise_regresses() -> None:
    report = _check(_run(2, SLOW), _run(1))
    assert report.verdict is Verdict.REGRESSED
    assert report.new_findings == (SLOW,)


def test_a_gain_within_the_noise_between_runs_is_inconclusive() -> None:
    before, after = (replace(run, facts=CPU) for run in (_run(1, noise=0.1), _run(2, SLOW, noise=0.1)))
    report = _check(after, before)
    assert report.new_findings == ()
    assert report.verdict is Verdict.INCONCLUSIVE
    judgment = next(candidate for candidate in report.judgements if candidate.key == "finding slow-rank[rank=3]")
    assert (judgment.after, judgment.before) == (0.15, 0.0)
    assert "several runs" in judgment.reason


def test_a_finding_that_costs_less_than_the_allowed_slowdown_does_not_count() -> None:
    """0.15 of a step is lost; a step that may get 20% slower may lose 0.167."""
    for limit, verdict in (("20%", Verdict.PASS), ("10%", Verdict.REGRESSED)):
        policy = Policy().with_options(minimum={}, max_regression={"step_time": limit})
        assert check(Baseline((_run(1),)), _run(2, SLOW), policy).verdict is verdict


@pytest.mark.parametrize("where", ["", "ranks=0-3, 7", "ranks=1-5"])
@pytest.mark.parametrize(("gain", "verdict"), [(0.15, Verdict.PASS), (0.6, Verdict.REGRESSED)])
def test_a_rank_that_stands_out_in_one_run_is_not_a_new_finding(where: str, gain: float, verdict: Verdict) -> None:
    of_several = replace(SLOW, where=where)
    assert _check(_run(2, replace(SLOW, gain=gain)), _run(1, of_several)).verdict is verdict
    assert _check(_run(2, replace(of_several, gain=gain)), _run(1, SLOW)).verdict is verdict


@pytest.mark.parametrize("where", ["rank=2", "ranks=0-2", "axis=tp rank=3"])
def test_a_finding_on_another_rank_or_axis_is_new(where: str) -> None:
    assert _check(_run(2, SLOW), _run(1, replace(SLOW, where=where))).verdict is Verdict.REGRESSED


def test_findings_of_any_baseline_run_are_not_new() -> None:
    assert _check(_run(2, SLOW), _run(1, SLOW), _run(3)).verdict is Verdict.PASS


def test_a_finding_that_only_crossed_the_level_is_not_new() -> None:
    below = replace(SLOW, level=Level.WARNING, gain=0.099)
    above = replace(SLOW, gain=0.101)
    report = _check(_run(2, above), _run(1, below))
    assert report.new_findings == ()
    assert report.verdict is Verdict.INCONCLUSIVE


def test_a_finding_in_another_step_is_the_same_finding() -> None:
    def paused(step: int) -> Finding:
        return Finding("host-pause", "the host paused", {"rank": 1, "step": step}, {}, gain_fraction=0.2)

    assert seen_findings([paused(3)]) == seen_findings([paused(7)])
    assert seen_findings([paused(3)])[0].gain == 0.2
