from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from gate_runs import FACTS, measured, series, steps, with_fact

from usp_prof.gate.facts import Fact, FactKind
from usp_prof.gate.judgment import Verdict
from usp_prof.gate.measured import Baseline, Damage, Measured, SeenFinding
from usp_prof.gate.policy import Policy, policy_from
from usp_prof.gate.sample import Machine, Prior
from usp_prof.gate.verdict import Inconclusive, Report, check
from usp_prof.gate.why import PartChange, Why
from usp_prof.model.finding import Level
from usp_prof.model.health import Severity
from usp_prof.model.metric import Better, Unit
from usp_prof.report.answers.check import as_terminal
from usp_prof.report.answers.wording import interval

POLICY = Policy()
RULE = {"match": "step_time", "allowed": "5%"}


def _run(seed: int, *, mean: float = 1e9, **other: object) -> Measured:
    rng = np.random.default_rng(seed)
    return measured(series("step_time", steps(rng, mean=mean)), **other)  # type: ignore[arg-type]


def _check(after: Measured, *before: Measured, policy: Policy = POLICY) -> Report:
    return check(Baseline(before or (_run(1),)), after, policy)


def test_a_repeat_passes() -> None:
    report = _check(_run(2))
    assert (report.verdict, report.exit_code) == (Verdict.PASS, 0)


def test_a_slowdown_regresses() -> None:
    report = _check(_run(2, mean=1.05e9))
    assert (report.verdict, report.exit_code) == (Verdict.REGRESSED, 1)
    (judgment,) = report.judgements
    assert judgment.low < 0.05 < judgment.high


def test_a_speedup_is_an_improvement() -> None:
    report = _check(_run(2, mean=0.95e9))
    assert (report.verdict, report.exit_code) == (Verdict.IMPROVED, 0)


def test_higher_is_better_for_mfu() -> None:
    def run(level: float) -> Measured:
        return measured(series("mfu", np.linspace(0.99, 1.01, 20) * level, unit=Unit.FRACTION, better=Better.HIGHER))

    assert _check(run(0.36), run(0.4)).verdict is Verdict.REGRESSED
    assert _check(run(0.44), run(0.4)).verdict is Verdict.IMPROVED


def test_too_few_steps_are_inconclusive_and_state_how_many_more() -> None:
    rng = np.random.default_rng(9)
    noisy = measured(series("step_time", steps(rng, mean=1.04e9, noise=0.04, number=8)))
    report = check(Baseline((measured(series("step_time", steps(rng, noise=0.01, number=200))),)), noisy, POLICY)
    (judgment,) = report.judgements
    assert report.verdict is Verdict.INCONCLUSIVE
    assert judgment.more_steps > 0
    assert f"{judgment.more_steps} more steps" in judgment.reason
    assert report.exit_code == 0
    assert replace(report, inconclusive=Inconclusive.FAIL).exit_code == 1


def test_the_requested_number_of_steps_decides() -> None:
    rng = np.random.default_rng(10)
    calm = Baseline((measured(series("step_time", steps(rng, noise=0.002, number=400))),))
    requests = settled = 0
    for _ in range(40):
        sample = steps(rng, mean=1.03e9, noise=0.02, number=400)
        first = check(calm, measured(series("step_time", sample[:8])), POLICY)
        (judgment,) = first.judgements
        if first.verdict is Verdict.INCONCLUSIVE and 0 < judgment.more_steps < 190:
            requests += 1
            longer = measured(series("step_time", sample[: 8 + 2 * judgment.more_steps]))
            settled += check(calm, longer, POLICY).verdict is Verdict.REGRESSED
    assert requests >= 10
    assert settled >= 0.6 * requests


def test_one_step_decides_nothing() -> None:
    report = _check(measured(series("step_time", [2e9])))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "noise" in report.judgements[0].reason


def test_runs_that_differ_among_themselves_widen_the_interval() -> None:
    means = (1.00e9, 1.06e9, 0.95e9, 1.03e9, 0.97e9, 1.05e9)
    restless = _check(_run(2, mean=1.05e9), *(_run(10 + i, mean=mean) for i, mean in enumerate(means)))
    assert restless.verdict is Verdict.INCONCLUSIVE
    assert "differ too much" in restless.judgements[0].reason
    assert restless.judgements[0].more_steps == -1
    quiet = _check(_run(2, mean=1.05e9), *(_run(10 + i) for i in range(6)))
    assert quiet.verdict is Verdict.REGRESSED
    assert quiet.baseline_runs == 6


def test_counts_are_compared_exactly() -> None:
    def run(number: int) -> Measured:
        return measured(series("calls", [number], unit=Unit.COUNT, better=Better.NEITHER, steps=[-1]))

    policy = Policy().with_options(minimum={}, max_regression={"calls": "0"})
    assert _check(run(12), run(12), policy=policy).verdict is Verdict.PASS
    assert _check(run(13), run(12), policy=policy).verdict is Verdict.REGRESSED
    assert _check(run(11), run(12), policy=policy).verdict is Verdict.REGRESSED


def test_metrics_with_one_value_per_run_use_the_assumed_spread() -> None:
    def run(peak: float) -> Measured:
        return measured(series("peak_memory", [peak], unit=Unit.BYTES, steps=[-1]))

    assert _check(run(1.001e9), run(1e9)).verdict is Verdict.PASS
    assert _check(run(1.2e9), run(1e9)).verdict is Verdict.REGRESSED


@pytest.mark.parametrize("after", [0.0, 5.0])
def test_a_baseline_of_zero_has_no_relative_change(after: float) -> None:
    before = measured(series("step_time", [0.0] * 8))
    report = _check(measured(series("step_time", [after] * 8)), before)
    assert report.verdict is (Verdict.PASS if after == 0 else Verdict.INCONCLUSIVE)


def test_a_missing_rank_is_never_a_pass() -> None:
    report = _check(_run(2, ranks=(0, 1, 3), missing=(2,)))
    assert (report.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 2)
    assert "rank 2 missing" in report.unusable[0]
    assert not report.with_verdict(Verdict.PASS)
    assert replace(report, inconclusive=Inconclusive.WARN).exit_code == 0


def test_a_run_of_one_rank_is_judged_against_the_same_rank() -> None:
    report = _check(_run(2, ranks=(0,), missing=(1, 2, 3)), _run(1, ranks=(0,), missing=(1, 2, 3)))
    assert report.verdict is Verdict.PASS


def test_runs_with_another_world_size_must_have_all_ranks() -> None:
    facts = with_fact(FactKind.LAYOUT, "world size", "2")
    assert _check(_run(2, facts=facts, ranks=(0, 1))).unusable == ()
    assert "rank 1 missing" in _check(_run(2, facts=facts, ranks=(0,), missing=(1,))).unusable[0]


def test_damage_is_never_a_pass() -> None:
    lost = Damage("truncated", Severity.DATA_LOSS, 3, 1, "the file ends early")
    report = _check(_run(2, mean=1.2e9, damage=(lost,)))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "truncated of rank 3" in report.unusable[0]
    slight = Damage("names", Severity.INFO, 3)
    assert _check(_run(2, damage=(slight,))).verdict is Verdict.PASS


def test_times_are_not_compared_across_hardware() -> None:
    report = _check(_run(2, mean=2e9, facts=with_fact(FactKind.HARDWARE, "device", "A100")))
    assert report.with_verdict(Verdict.NOT_COMPARED)
    assert report.exit_code == 2
    assert report.unusable[0] == "nothing could be compared: hardware differs"
    across = replace(POLICY, across=(FactKind.HARDWARE,))
    report = _check(_run(2, mean=2e9, facts=with_fact(FactKind.HARDWARE, "device", "A100")), policy=across)
    assert report.verdict is Verdict.REGRESSED


def test_a_check_that_compares_nothing_lists_the_differences_instead_of_metrics() -> None:
    facts = with_fact(FactKind.WORK, "model", '{"layers": 4, "hidden": 64}')
    work = with_fact(FactKind.WORK, "model", '{"layers": 2, "hidden": 64}')
    report = _check(_run(2, facts=facts), _run(1, facts=work))
    lines = as_terminal(report, color=False).splitlines()
    assert lines[0] == "inconclusive: nothing could be compared: work differs"
    assert lines[1].startswith("save a baseline of runs like this one")
    assert "  work differs: model layers 2 -> 4" in lines
    assert not any(line.startswith("verdict") for line in lines)
    assert any(line.startswith("  not compared: step_time") for line in lines)


def test_a_check_that_compares_nothing_explains_no_change_on_the_terminal() -> None:
    changed = Why(1e9, 2e9, (PartChange("compute", 1e9, 2e9),))
    other = _check(_run(2, mean=2e9, facts=with_fact(FactKind.HARDWARE, "device", "A100")))
    slower = _check(_run(2, mean=2e9))
    shown = [as_terminal(replace(report, why=changed), color=False).splitlines() for report in (other, slower)]
    assert ["why" in lines for lines in shown] == [False, True]


def test_amounts_are_not_compared_across_work_but_fractions_are() -> None:
    def run(mfu: float, facts: tuple[Fact, ...]) -> Measured:
        return measured(
            series("mfu", np.linspace(0.99, 1.01, 20) * mfu, unit=Unit.FRACTION, better=Better.HIGHER),
            series("step_time", np.linspace(0.99, 1.01, 20)),
            facts=facts,
        )

    report = _check(run(0.3, with_fact(FactKind.WORK, "tokens per step", "4096")), run(0.4, FACTS))
    assert {judgment.key: judgment.verdict for judgment in report.judgements} == {
        "mfu": Verdict.REGRESSED,
        "step_time": Verdict.NOT_COMPARED,
    }


def test_other_software_is_stated_and_compared() -> None:
    report = _check(_run(2, facts=with_fact(FactKind.SOFTWARE, "torch", "2.13")))
    assert [str(difference) for difference in report.differences] == ["software torch: 2.12 -> 2.13"]
    assert report.verdict is Verdict.PASS


def test_a_missing_metric_is_inconclusive() -> None:
    before = measured(series("step_time", [1.0] * 8), series("bubble_fraction", [0.1] * 8, unit=Unit.FRACTION))
    report = _check(measured(series("step_time", [1.0] * 8)), before)
    assert [judgment.key for judgment in report.with_verdict(Verdict.INCONCLUSIVE)] == ["bubble_fraction"]
    report = _check(before, measured(series("step_time", [1.0] * 8)))
    assert [judgment.key for judgment in report.with_verdict(Verdict.NOT_COMPARED)] == ["bubble_fraction"]


def test_new_critical_findings_regress() -> None:
    bad = SeenFinding("slow-rank", Level.CRITICAL, "Rank 3 is slow", "rank=3")
    baseline = _run(1, findings=(bad,))
    assert _check(_run(2, findings=(bad,))).verdict is Verdict.REGRESSED
    assert _check(_run(2, findings=(bad,)), baseline).verdict is Verdict.PASS
    assert _check(_run(2, findings=(replace(bad, level=Level.WARNING),))).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("level", "verdict"), [(0.45, Verdict.PASS), (0.30, Verdict.REGRESSED), (0.399, Verdict.INCONCLUSIVE)]
)
def test_lower_bounds_are_checked(level: float, verdict: Verdict) -> None:
    policy = Policy().with_options(minimum={"mfu": 0.4}, max_regression={})
    run = measured(series("mfu", steps(np.random.default_rng(8), mean=level), unit=Unit.FRACTION, better=Better.HIGHER))
    assert check(None, run, policy).verdict is verdict


def mfu_of(*samples: float) -> Measured:
    return measured(series("mfu", samples, unit=Unit.FRACTION, better=Better.HIGHER))


def test_two_steps_within_a_bound_are_inconclusive_if_their_noise_is_unknown() -> None:
    policy = Policy().with_options(minimum={"mfu": 0.4}, max_regression={})
    report = check(None, mfu_of(0.20, 0.23), policy)
    assert (report.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 2)
    assert "2 steps" in report.unanswered[0]
    assert check(None, mfu_of(0.200, 0.201), policy).exit_code == 1
    assert check(None, mfu_of(0.45, 0.48), policy).exit_code == 0
    assert check(None, mfu_of(0.39, 0.41, 0.38, 0.40, 0.399), policy).exit_code == 0, "noise alone warns"


def test_a_bound_on_an_unmeasured_metric_is_inconclusive() -> None:
    policy = Policy().with_options(minimum={"mfu": 0.4}, max_regression={})
    report = check(None, _run(2), policy)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert math.isnan(report.judgements[0].after)


# The requirements, on smaller samples than in `benchmarks/gate.py`.


def _share(verdict: Verdict, runs: int, *, slower: float = 0.0, between: float = 0.0, outlier: float = 0.0) -> float:
    rng = np.random.default_rng(2024)
    hits = 0
    for _ in range(runs):
        samples = [np.array(steps(rng)) * (1 + rng.normal(0, between)) for _ in range(2)]
        samples[1] *= 1 + slower
        samples[1][rng.integers(20)] *= 1 + outlier
        before, after = (measured(series("step_time", list(samples_of_run))) for samples_of_run in samples)
        hits += check(Baseline((before,)), after, POLICY).verdict is verdict
    return hits / runs


def test_repeated_runs_do_not_alarm() -> None:
    assert _share(Verdict.REGRESSED, 300, between=0.003) <= 0.01


def test_a_change_of_three_percent_is_found() -> None:
    assert _share(Verdict.REGRESSED, 300, slower=0.03) >= 0.95


def test_one_outlier_step_never_alarms() -> None:
    assert _share(Verdict.REGRESSED, 300, outlier=0.3) == 0


def test_a_requested_metric_that_cannot_be_judged_does_not_pass() -> None:
    policy = POLICY.with_options(minimum={}, max_regression={"bubble_fraction": "1pp"})
    report = _check(_run(2), policy=policy)
    assert (report.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 2)
    assert report.unanswered == ("bubble_fraction: no such value in either run",)
    assert replace(report, inconclusive=Inconclusive.WARN).exit_code == 0
    unmeasured = POLICY.with_options(minimum={"mfu": 0.4}, max_regression={})
    assert _check(_run(2), policy=unmeasured).exit_code == 2
    slower = _check(_run(2, mean=1.1e9), policy=unmeasured)
    assert (slower.verdict, slower.exit_code) == (Verdict.REGRESSED, 1)
    assert slower.unanswered


def test_a_run_without_steps_does_not_pass() -> None:
    before = measured(series("step_time", [1.0] * 8), series("bubble_fraction", [0.1] * 8, unit=Unit.FRACTION))
    report = _check(measured(series("bubble_fraction", [0.1] * 8, unit=Unit.FRACTION)), before)
    assert (report.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 2)


def test_a_time_and_its_rate_have_the_same_verdict() -> None:
    rng = np.random.default_rng(3)
    policy = replace(POLICY, noise={**POLICY.noise, Machine.DEDICATED: Prior(1.0, 8.0)})
    for _ in range(50):
        before, after = (np.array(steps(rng, noise=0.15)) * factor for factor in (1.0, rng.uniform(0.4, 2.5)))
        runs = [
            measured(series("step_time", step_ns), series("tokens_per_second", 1e12 / step_ns, better=Better.HIGHER))
            for step_ns in (before, after)
        ]
        report = _check(runs[1], runs[0], policy=policy)
        time, rate = report.judgements
        if Verdict.PASS not in (time.verdict, rate.verdict):
            assert {time.verdict, rate.verdict} in ({time.verdict}, {Verdict.INCONCLUSIVE, Verdict.REGRESSED})
        assert (1 + time.change) * (1 + rate.change) == pytest.approx(1)


def test_repeated_peak_measurements_are_the_same_machine() -> None:
    def peak(value: str) -> tuple[Fact, ...]:
        return with_fact(FactKind.HARDWARE, "measured peak", value)

    assert _check(_run(2, facts=peak("2.1e11")), _run(1, facts=peak("2.0e11"))).differences == ()
    report = _check(_run(2, facts=peak("4e11")), _run(1, facts=peak("2e11")))
    assert report.with_verdict(Verdict.NOT_COMPARED)


def test_an_improvement_states_how_to_keep_it() -> None:
    report = replace(_check(_run(2, mean=0.95e9)), baseline_file="base line.json", after="traces/today")
    assert report.ratchet == "usp-prof baseline save traces/today -o 'base line.json'"
    assert _check(_run(2)).ratchet == ""
    assert _check(_run(2, mean=1.1e9)).ratchet == ""


@pytest.mark.parametrize("sides", ["baseline", "run", "both"])
def test_a_window_of_unknown_steps_is_not_comparable_and_does_not_pass(sides: str) -> None:
    share = series("exposed_comm_fraction", [0.1] * 20, unit=Unit.FRACTION, axis="dp")
    stepped = measured(series("step_time", [1e9] * 20), series("mfu", [0.4] * 20, better=Better.HIGHER), share)
    window = measured(series("window_time", [3e9], steps=[0]), share)
    before = stepped if sides == "run" else window
    after = stepped if sides == "baseline" else window
    report = check(Baseline((before,)), after, POLICY)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.exit_code == 2
    judgment_by_key = {judgment.key: judgment for judgment in report.judgements}
    assert judgment_by_key["step_time"].verdict is Verdict.NOT_COMPARED
    assert judgment_by_key["step_time"].reason.startswith("not comparable: the steps of run are unknown")
    assert judgment_by_key["exposed_comm_fraction[axis=dp]"].verdict is Verdict.PASS
    if sides != "both":
        assert judgment_by_key["mfu"].verdict is Verdict.NOT_COMPARED


def test_one_slowdown_has_one_threshold() -> None:
    rng = np.random.default_rng(4)

    def run(slowdown: float) -> Measured:
        step_ns = steps(rng, mean=1e9 * slowdown, noise=0.002, number=40)
        rates = {"mfu": Unit.FRACTION, "tokens_per_second": Unit.PER_SECOND}
        other_series = [
            series(name, [3e8 / duration_ns for duration_ns in step_ns], unit=unit, better=Better.HIGHER)
            for name, unit in rates.items()
        ]
        return measured(series("step_time", step_ns), *other_series)

    wide = POLICY.with_options(minimum={}, max_regression={"step_time": "5%"})
    assert _check(run(1.028), run(1.0)).verdict is Verdict.REGRESSED
    assert _check(run(1.028), run(1.0), policy=wide).verdict is Verdict.PASS
    assert _check(run(1.028), run(1.0), policy=policy_from({"rule": [RULE]})).verdict is Verdict.PASS
    narrow = POLICY.with_options(minimum={}, max_regression={"step_time": "5%", "mfu": "1%"})
    assert _check(run(1.028), run(1.0), policy=narrow).verdict is Verdict.REGRESSED


def test_a_baseline_without_step_time_does_not_pass() -> None:
    memory = series("peak_memory", [1e9], unit=Unit.BYTES)
    report = _check(measured(series("step_time", [1e9, 1.01e9, 1.02e9]), memory), measured(memory))
    assert (report.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 2)
    assert report.unanswered == ("step_time: the baseline does not have it",)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_run_passes_against_itself(number: int) -> None:
    run = measured(series("step_time", [1e9 + 1e7 * step for step in range(number)]))
    assert _check(run, run).verdict is Verdict.PASS


def test_the_interval_of_an_undetermined_change_is_too_wide() -> None:
    (judgment,) = _check(
        measured(series("step_time", [1e9, 9e9])), measured(series("step_time", [2e9, 3e8]))
    ).judgements
    assert (judgment.low, judgment.high > 10) == (pytest.approx(-1.0, abs=0.05), True)
    assert interval(judgment) == "too wide"
