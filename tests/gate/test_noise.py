from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gate_runs import measured, series, steps, with_fact

from usp_prof.gate.facts import Fact, FactKind
from usp_prof.gate.measured import Baseline
from usp_prof.gate.policy import Policy
from usp_prof.gate.sample import PRIORS, Machine, machine_of, noise_of
from usp_prof.gate.verdict import Verdict, check
from usp_prof.model.metric import Better, Unit

CPU = with_fact(FactKind.HARDWARE, "device", "cpu")


@pytest.mark.parametrize(
    ("facts", "machine"),
    [
        (with_fact(FactKind.HARDWARE, "device", "NVIDIA H100"), Machine.DEDICATED),
        (CPU, Machine.SHARED),
        ((), Machine.SHARED),
        (with_fact(FactKind.HARDWARE, "processes per device", "2"), Machine.SHARED),
        (with_fact(FactKind.HARDWARE, "processes per device", "1"), Machine.DEDICATED),
        ((Fact(FactKind.LAYOUT, "device", "H100"),), Machine.SHARED),
    ],
)
def test_facts_determine_the_kind_of_machine(facts: tuple[Fact, ...], machine: Machine) -> None:
    assert machine_of(facts) is machine


def test_the_wider_prior_applies_if_one_run_needs_it() -> None:
    rng = np.random.default_rng(1)
    calm = measured(series("step_time", steps(rng, noise=0.01)))
    restless = measured(series("step_time", steps(rng, noise=0.2)), facts=CPU)
    assert noise_of((calm, calm), PRIORS).prior == PRIORS[Machine.DEDICATED]
    both = noise_of((calm, restless), PRIORS)
    assert both.prior == PRIORS[Machine.SHARED]
    assert both.step_spread == pytest.approx(0.2, rel=0.5)
    assert noise_of((measured(),), PRIORS).step_spread == 0.0


def test_five_percent_regresses_on_a_device_and_is_inconclusive_on_a_shared_host() -> None:
    rng = np.random.default_rng(2)
    before, after = (measured(series("step_time", steps(rng, mean=mean))) for mean in (1e9, 1.05e9))
    assert check(Baseline((before,)), after, Policy()).verdict is Verdict.REGRESSED
    report = check(Baseline((replace(before, facts=CPU),)), replace(after, facts=CPU), Policy())
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "several runs" in report.judgements[0].reason


def test_several_quiet_runs_decide_it_on_a_shared_host() -> None:
    rng = np.random.default_rng(3)
    runs = tuple(measured(series("step_time", steps(rng)), facts=CPU) for _ in range(12))
    after = measured(series("step_time", steps(rng, mean=1.05e9)), facts=CPU)
    assert check(Baseline(runs), after, Policy()).verdict is Verdict.REGRESSED


def test_figures_of_the_whole_run_vary_like_its_steps() -> None:
    """A single figure does not show how much it varies. All recorded false alarms of the gate were of this kind."""

    def run(seed: int, efficiency: float, noise: float) -> object:
        rng = np.random.default_rng(seed)
        overall = series("kernel_efficiency", [efficiency], unit=Unit.FRACTION, better=Better.HIGHER, steps=[-1])
        return measured(series("step_time", steps(rng, noise=noise)), overall)

    def verdict(noise: float) -> Verdict:
        before, after = run(4, 0.5, noise), run(5, 0.45, noise)
        report = check(Baseline((before,)), after, Policy())  # type: ignore[arg-type]
        return next(judgment.verdict for judgment in report.judgements if judgment.key == "kernel_efficiency")

    assert verdict(0.2) is Verdict.INCONCLUSIVE
    assert verdict(0.002) is Verdict.REGRESSED
