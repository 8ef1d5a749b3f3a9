"""Error rates of the gate: false alarms and misses of simulated checks at the default policy, compared with the bars.

    python benchmarks/gate.py [--checks 2000]
    python benchmarks/gate.py --medians [--checks 300]
    python benchmarks/gate.py --recorded RUN RUN ... [--baselines 1]

With `--medians`, measures the power of `--judge medians --max-regression step_time=5%` on a shared host with one
baseline run of equal length: the share of regressions among unchanged runs, and among runs that are 20% slower. With
`--recorded`, repeats of one configuration are checked against each other. Each run is compared with every selection of
`--baselines` others (at most 200 checks, drawn at random).
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.checking import measured
from usp_prof.gate.change_points import find_trend
from usp_prof.gate.facts import Fact, FactKind
from usp_prof.gate.judgment import Verdict
from usp_prof.gate.measured import Baseline, Measured
from usp_prof.gate.policy import Judge, Policy
from usp_prof.gate.series import Series
from usp_prof.gate.verdict import check
from usp_prof.model.metric import Better, Unit
from usp_prof.report.answers.wording import sentence
from usp_prof.run import open_run

if TYPE_CHECKING:
    from collections.abc import Iterator

POLICY = Policy()
STEPS = 20
CAUSES = ("bubble", "host", "input", "other", "sync")
FACTS = (Fact(FactKind.HARDWARE, "device", "NVIDIA H100"),)
SHARED = (Fact(FactKind.HARDWARE, "device", "cpu"),)
MOST = 200


def simulated(  # noqa: PLR0913 - what a run can differ in
    rng: np.random.Generator,
    *,
    slower: float = 0.0,
    noise: float = 0.01,
    between: float = 0.0,
    outlier: float = 0.0,
    correlation: float = 0.0,
    steps: int = STEPS,
    shared: bool = False,
) -> Measured:
    """Build a run with all metrics of the default policy, each with its own noise."""
    shocks = rng.normal(0, 1, steps)
    for i in range(1, steps):
        shocks[i] = correlation * shocks[i - 1] + np.sqrt(1 - correlation**2) * shocks[i]
    step = 1e9 * (1 + slower) * (1 + noise * shocks) * (1 + rng.normal(0, between))
    if outlier:
        step[rng.integers(steps)] *= 1 + outlier
    shares = {
        ("exposed_comm_fraction", "axis", axis): 0.04 * (1 + rng.normal(0, 3 * noise, steps))
        for axis in ("dp", "pp", "tp")
    } | {("idle_fraction", "cause", cause): 0.05 * (1 + rng.normal(0, 3 * noise, steps)) for cause in CAUSES}
    all_series = [
        _series("step_time", step, Unit.NS, Better.LOWER),
        _series("mfu", 4e8 / step, Unit.FRACTION, Better.HIGHER),
        _series("bubble_fraction", 0.1 + rng.normal(0, noise, steps), Unit.FRACTION, Better.LOWER),
        _series("overlap_fraction", 0.6 + rng.normal(0, 2 * noise, steps), Unit.FRACTION, Better.HIGHER, axis="dp"),
    ]
    all_series += [_series(m, v, Unit.FRACTION, Better.LOWER, **{d: w}) for (m, d, w), v in shares.items()]
    return Measured(
        "simulated",
        "0",
        facts=SHARED if shared else FACTS,
        series=tuple(sorted(all_series, key=lambda one_series: one_series.key)),
    )


def _series(metric: str, samples: np.ndarray, unit: Unit, better: Better, **place: str) -> Series:
    values = tuple(float(value) for value in samples)
    return Series(metric, tuple(place.items()), unit, better, metric, tuple(range(len(values))), values)


def verdicts(checks: int, seed: int, *, baselines: int = 1, **after: float) -> Counter[Verdict]:
    """Check simulated runs; noise, spread between runs and correlation also apply to the baseline."""
    rng = np.random.default_rng(seed)
    alike = {name: after[name] for name in ("noise", "between", "correlation", "shared") if name in after}
    counts: Counter[Verdict] = Counter()
    for _ in range(checks):
        runs = tuple(simulated(rng, **alike) for _ in range(baselines))
        counts[check(Baseline(runs), simulated(rng, **after), POLICY).verdict] += 1
    return counts


def rows(checks: int) -> Iterator[tuple[str, float, str, bool]]:
    """Yield each measurement's name, value, bar and whether the bar is met."""
    alarms = (
        ("repeats, 1% step noise", {}),
        ("repeats, 3% step noise", {"noise": 0.03}),
        ("repeats, runs differ by 0.3%", {"between": 0.003}),
        ("repeats, runs differ by 0.5%", {"between": 0.005}),
        ("repeats, steps correlated 0.5", {"correlation": 0.5}),
        ("repeats, runs differ by 1%, 5 baseline runs", {"between": 0.01, "baselines": 5}),
        ("shared host, runs differ by 2% as steps", {"shared": True, "noise": 0.02, "between": 0.02}),
        ("shared host, runs differ by 5%, 5 baselines", {"shared": True, "between": 0.05, "baselines": 5}),
    )
    for seed, (name, how) in enumerate(alarms):
        share = verdicts(checks, seed, **how)[Verdict.REGRESSED] / checks  # type: ignore[arg-type]
        yield f"false alarms: {name}", share, "<= 0.01", share <= 0.01
    share = verdicts(checks, 50)[Verdict.PASS] / checks
    yield "passes: repeats, 1% step noise", share, ">= 0.9", share >= 0.9
    share = verdicts(checks, 51, slower=0.03)[Verdict.REGRESSED] / checks
    yield "3% slower found (20 steps, 1% noise)", share, ">= 0.95", share >= 0.95
    share = verdicts(checks, 54, slower=0.25, shared=True)[Verdict.REGRESSED] / checks
    yield "25% slower found, shared host, one baseline run", share, ">= 0.95", share >= 0.95
    share = verdicts(checks, 55, slower=0.08, shared=True, baselines=6, between=0.003)[Verdict.REGRESSED] / checks
    yield "8% slower found, shared host, 6 baseline runs", share, ">= 0.95", share >= 0.95
    share = verdicts(checks, 52, outlier=0.3)[Verdict.REGRESSED] / checks
    yield "30% slower single step alarms", share, "= 0", share == 0
    rng = np.random.default_rng(53)
    drifting = [1.003 ** np.arange(30) * (1 + rng.normal(0, 0.005, 30)) for _ in range(checks // 4)]
    share = sum(find_trend(trend).drift_per_run > 0 for trend in drifting) / len(drifting)
    yield "drift of 0.3% a run over 30 runs found", share, ">= 0.95", share >= 0.95
    steady = [rng.normal(1, 0.005, 30) for _ in range(checks // 4)]
    share = sum(bool(trend.changes) or trend.drift_per_run != 0 for trend in map(find_trend, steady)) / len(steady)
    yield "trend told of 30 steady runs", share, "<= 0.01", share <= 0.01


MEDIANS = Policy().with_options(minimum={}, max_regression={"step_time": "5%"}).judging(Judge.MEDIANS)


def power(checks: int) -> Iterator[tuple[str, int, float, float, float]]:
    """Yield noise, steps, and the regressed shares of unchanged and of slower runs, then the undecided share."""
    for noise, correlation in ((0.03, 0.0), (0.05, 0.0), (0.1, 0.0), (0.1, 0.5), (0.2, 0.0)):
        for steps in (10, 20, 40, 80):
            rng = np.random.default_rng(steps)
            counts_of_slowdown = {0.0: Counter[Verdict](), 0.2: Counter[Verdict]()}
            for slower, counts in counts_of_slowdown.items():
                for _ in range(checks):
                    before = _step_alone(simulated(rng, noise=noise, correlation=correlation, steps=steps, shared=True))
                    after = simulated(
                        rng, slower=slower, noise=noise, correlation=correlation, steps=steps, shared=True
                    )
                    counts[check(Baseline((before,)), _step_alone(after), MEDIANS).verdict] += 1
            name = f"{noise:.0%}" + (f", correlated {correlation}" if correlation else "")
            unchanged, slow = counts_of_slowdown[0.0], counts_of_slowdown[0.2]
            regressed = Verdict.REGRESSED
            yield name, steps, unchanged[regressed] / checks, slow[regressed] / checks, slow[Verdict.PASS] / checks


def _step_alone(run: Measured) -> Measured:
    return replace(run, series=tuple(series for series in run.series if series.metric == "step_time"))


def recorded(paths: list[str], baselines: int) -> Counter[Verdict]:
    """Check recorded repeats, each against selections of the others."""
    runs = [measured(open_run(path), path) for path in paths]
    pairs = [
        (before, after)
        for after in runs
        for before in itertools.combinations([run for run in runs if run is not after], baselines)
    ]
    order = np.random.default_rng(1).permutation(len(pairs))[:MOST]
    chosen = [pairs[place] for place in order.tolist()]
    counts: Counter[Verdict] = Counter()
    for before, after in chosen:
        report = check(Baseline(before), after, POLICY)
        counts[report.verdict] += 1
        for comparison in report.with_verdict(Verdict.REGRESSED):
            print(f"  {', '.join(run.label for run in before)} -> {after.label}: {sentence(comparison)}")
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checks", type=int, default=2000)
    parser.add_argument("--medians", action="store_true", help="the power of `--judge medians`")
    parser.add_argument("--recorded", nargs="+", default=[], metavar="RUN")
    parser.add_argument("--baselines", type=int, default=1, help="with --recorded: runs in each baseline")
    args = parser.parse_args()
    if args.recorded:
        counts = recorded(args.recorded, args.baselines)
        print({str(verdict): number for verdict, number in counts.items()})
        return int(counts[Verdict.REGRESSED] > 0.01 * counts.total())
    if args.medians:
        alarms = []
        print("| steps differ by | steps | unchanged: regressed | 20% slower: regressed | 20% slower: pass |")
        print("|---|---|---|---|---|")
        for name, steps, alarm, caught, missed in power(args.checks):
            print(f"| {name} | {steps} | {alarm:.1%} | {caught:.0%} | {missed:.1%} |", flush=True)
            alarms.append(alarm)
        return int(max(alarms) > 0.01)
    good = True
    for name, value, bar, holds in rows(args.checks):
        print(f"{'ok  ' if holds else 'MISS'} {name:52} {value:8.4f}  {bar}")
        good &= holds
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
