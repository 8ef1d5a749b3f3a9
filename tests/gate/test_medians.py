from __future__ import annotations

import math

import numpy as np
import pytest
from gate_runs import measured, series, steps, with_fact

from usp_prof.checking import text
from usp_prof.gate.facts import FactKind
from usp_prof.gate.measured import Baseline
from usp_prof.gate.policy import Judge, Policy, policy_from
from usp_prof.gate.sample import boil_down_to_median, median_error
from usp_prof.gate.verdict import Inconclusive, Verdict, check
from usp_prof.model.errors import UsageError

CPU = with_fact(FactKind.HARDWARE, "device", "cpu")
FIVE_PERCENT = Policy().with_options(minimum={}, max_regression={"step_time": "5%"})
BY_MEDIANS = FIVE_PERCENT.judging(Judge.MEDIANS)


def test_a_noisy_slowdown_of_a_fifth_is_not_decided_and_medians_decide_it() -> None:
    rng = np.random.default_rng(1)
    before = measured(series("step_time", steps(rng, noise=0.08, number=60)), facts=CPU)
    after = measured(series("step_time", steps(rng, mean=1.2e9, noise=0.08, number=60)), facts=CPU)
    left_open = check(Baseline((before,)), after, FIVE_PERCENT)
    assert left_open.verdict is Verdict.INCONCLUSIVE
    output = text(left_open)
    assert "exceeds the allowed change and may be noise" in output
    assert "NOT DECIDED, exit code 0" in output
    assert "--judge medians" in output
    failing = check(Baseline((before,)), after, FIVE_PERCENT, Inconclusive.FAIL)
    assert "NOT DECIDED, exit code 1: --judge medians" in text(failing)
    assert check(Baseline((before,)), after, BY_MEDIANS).verdict is Verdict.REGRESSED


def test_medians_state_how_many_more_steps_would_decide() -> None:
    rng = np.random.default_rng(2)
    before = measured(series("step_time", steps(rng, noise=0.3, number=12)), facts=CPU)
    after = measured(series("step_time", steps(rng, mean=1.2e9, noise=0.3, number=12)), facts=CPU)
    judgment = check(Baseline((before,)), after, BY_MEDIANS).judgements[0]
    assert judgment.verdict is Verdict.INCONCLUSIVE
    assert judgment.more_steps > 0
    assert "more steps in both runs would decide it" in judgment.reason


def test_the_error_of_a_median_is_that_of_repeated_runs() -> None:
    rng = np.random.default_rng(3)
    runs = rng.normal(1.0, 0.1, (200, 40))
    seen = float(np.median(runs, axis=1).std(ddof=1))
    assert np.mean([median_error(run) for run in runs]) == pytest.approx(seen, rel=0.2)


def test_correlated_steps_have_a_larger_error() -> None:
    rng = np.random.default_rng(4)
    shocks = rng.normal(0, 1, 60)
    drifting = np.empty(60)
    drifting[0] = shocks[0]
    for i in range(1, 60):
        drifting[i] = 0.8 * drifting[i - 1] + math.sqrt(1 - 0.64) * shocks[i]
    assert median_error(1 + 0.1 * drifting) > 1.5 * median_error(1 + 0.1 * rng.permutation(drifting))


def test_the_center_is_the_median_of_the_remaining_steps() -> None:
    values = [5.0, *np.linspace(1.0, 1.2, 11)]
    sample = boil_down_to_median(values, range(12))
    assert sample.warm_up == (0,)
    assert sample.center == pytest.approx(1.1)


def test_differences_between_baseline_runs_still_count() -> None:
    rng = np.random.default_rng(5)
    means = (1.0e9, 1.3e9, 0.9e9, 1.2e9, 1.1e9)
    runs = tuple(measured(series("step_time", steps(rng, mean=mean)), facts=CPU) for mean in means)
    after = measured(series("step_time", steps(rng, mean=1.3e9)), facts=CPU)
    assert check(Baseline(runs), after, BY_MEDIANS).verdict is Verdict.INCONCLUSIVE


def test_a_policy_file_can_select_the_judge() -> None:
    assert all(rule.medians for rule in policy_from({"judge": "medians"}).rules)
    assert not any(rule.medians for rule in policy_from({}).rules)
    with pytest.raises(UsageError, match="way to judge"):
        policy_from({"judge": "mean"})
