"""Injected delays, second simulator: the repairs of `injected.py`, with delays propagated by other rules.

    python benchmarks/injected_again.py FOLDER [FOLDER ...]      each folder holds one run's traces, of several ranks
    python benchmarks/injected_again.py FOLDER --cases 12 --seed 3330 --page docs/reference/accuracy.md

For each run, delays of all kinds and of random sizes are drawn from the seed, each on a random rank. The simulator is
`tests/support/second_injection.py`. Two answers are right for the repaired step: the step of the original run, and that
step with the same rank repaired. The error is the distance from the range between them.

Bars: the error is at most 3 points of the step in the median and 8 in the worst case, and the stated error holds in 9
of 10 cases. A delay that costs less than 2% of the step is drawn again, and left out after three draws. Delays of ranks
without peers are left out and counted.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
from harness import TEST_SUPPORT, Prediction, at_least, at_most, in_cells, status, write_table

sys.path.append(str(TEST_SUPPORT))

from injection import true_gain
from second_injection import Delay, read_run, simulate, write_run
from second_recording import is_communication

from usp_prof.model.edit import Edit
from usp_prof.model.errors import UsageError
from usp_prof.replay.step_times import unedited
from usp_prof.run import open_run
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from second_injection import Run
    from second_recording import Moment, RankTrace

    from usp_prof.tables.table_set import TableSet

KINDS = ("pause in one step", "pause in each step", "late input", "late sends", "slow host", "slow kernels")
SHARES = (0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.4, 0.5)
"""Added time, as a share of the original step."""
HOST_FACTORS = (1.3, 1.5, 2.0, 3.0)
KERNEL_FACTORS = (1.2, 1.5, 2.0)
ONE_KERNEL_FACTOR, LONGEST_KERNELS = 3.0, 5
"""If only one kernel is slower: by how much, and among how many it is drawn, longest first."""
INPUT_EVENTS = ("enumerate(DataLoader)", "train::input")
LEAST_COST, MOST_DRAWS = 0.02, 3
WIDE = 0.03
BEGIN, END = "<!-- injected again: written by benchmarks/injected_again.py -->", "<!-- end of injected again -->"


@dataclass(frozen=True, slots=True)
class Case:
    """One delay in one run."""

    run: str
    kind: str
    prediction: Prediction | None
    """The gain of the repair and the nearest right answer; None if the rank has no peers."""
    width: float = 0.0
    """Distance between the right answers. The wider, the less the case checks."""


@dataclass(slots=True)
class Original:
    """A run without a delay, with the gain of repairing each of its ranks."""

    tables: TableSet
    gains: dict[int, float | None] = field(default_factory=dict)

    def gain(self, rank: int) -> float | None:
        """Return the gain of making a rank perform like its peers, or None if it has none."""
        if rank not in self.gains:
            try:
                self.gains[rank] = predict(self.tables, [_repair(rank)]).gain_fraction
            except UsageError:
                self.gains[rank] = None
        return self.gains[rank]


def main() -> int:
    """Run all cases and print or write the table; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--cases", type=int, default=12, help="delays per run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--page", type=Path, help="write the table between its marks in this page")
    options = parser.parse_args()
    cases: list[Case] = []
    for number, folder in enumerate(options.folders):
        cases += cases_of(folder, options.cases, np.random.default_rng([options.seed, number]))
    predictions = [case.prediction for case in cases if case.prediction]
    without_peers = [case.run for case in cases if not case.prediction]
    n_wide = sum(case.width > WIDE for case in cases)
    print(f"left out, rank without peers: {len(without_peers)} cases of {len(set(without_peers))} runs")
    print(f"right answers differ by more than {WIDE:.0%} of the step: {n_wide} of {len(predictions)} cases")
    if not predictions:
        parser.error(f"no delay of a rank with peers costs {LEAST_COST:.0%} of the step: draw more cases")
    write_table(table(cases), options.page, BEGIN, END)
    off = [100 * prediction.off for prediction in predictions]
    return status(
        [
            at_most("gain error, median", float(np.median(off)), 3, " points"),
            at_most("gain error, worst", max(off), 8, " points"),
            at_least(
                "share within the stated error", float(np.mean([prediction.holds for prediction in predictions])), 0.9
            ),
        ]
    )


def cases_of(folder: Path, n_cases: int, drawn: np.random.Generator) -> Iterator[Case]:
    """Yield the cases of one run; kinds of delays take turns."""
    run = read_run(folder)
    kinds = drawn.permutation(KINDS)
    with TemporaryDirectory() as temporary:
        original = Original(_delayed(run, None, Path(temporary)))
        step_ns = unedited(original.tables).mean_measured_ns
        for number in range(n_cases):
            kind = str(kinds[number % len(kinds)])
            for _ in range(MOST_DRAWS):
                rank = run.ranks[int(drawn.choice(sorted(run.ranks)))]
                delay = draw(kind, rank, step_ns, drawn)
                case = _case(run, kind, delay, original)
                if case is not None:
                    yield case
                    break


def _case(run: Run, kind: str, delay: Delay, original: Original) -> Case | None:
    """Compare the predicted repair with the right answers, or return None if the delay costs too little."""
    usual_gain = original.gain(delay.rank)
    if usual_gain is None:
        return Case(run.folder.name, kind, None)
    with TemporaryDirectory() as temporary:
        tables = _delayed(run, delay, Path(temporary))
        cost = true_gain(unedited(original.tables), unedited(tables))
        if cost < LEAST_COST:
            return None
        repaired = predict(tables, [_repair(delay.rank)])
    most = 1 - (1 - cost) * (1 - max(usual_gain, 0.0))
    nearest = min(max(repaired.gain_fraction, cost), most)
    prediction = Prediction(repaired.gain_fraction, repaired.error_fraction, nearest)
    return Case(run.folder.name, kind, prediction, most - cost)


def _repair(rank: int) -> Edit:
    return Edit("rank_as_peers", str(rank))


def _delayed(run: Run, delay: Delay | None, folder: Path) -> TableSet:
    write_run(run, simulate(run, delay), folder / "run")
    return open_run(folder / "run", cache_dir=folder / "cache").tables


def draw(kind: str, rank: RankTrace, step_ns: float, drawn: np.random.Generator) -> Delay:
    """Draw place and size of a delay of this kind."""
    if kind == "slow host":
        return Delay(rank.rank, host_factor=float(drawn.choice(HOST_FACTORS)))
    if kind == "slow kernels":
        return _slow_kernels(rank, drawn)
    added_ns = round(float(drawn.choice(SHARES)) * step_ns)
    if kind == "late sends":
        moments = _launches_of_communication(rank)
        added_ns = round(added_ns * len(rank.steps) / len(moments))
    elif kind == "late input":
        moments = [_end_of_input(rank, *step) for step in rank.steps]
    else:
        steps = rank.steps if kind == "pause in each step" else [rank.steps[drawn.integers(len(rank.steps))]]
        moments = [_start_of_op(rank, *step, drawn) for step in steps]
    return Delay(rank.rank, dict.fromkeys(moments, added_ns))


def _slow_kernels(rank: RankTrace, drawn: np.random.Generator) -> Delay:
    """Draw slower compute kernels: all, or those with one of the names that take longest."""
    total_ns: Counter[str] = Counter()
    for work in rank.stream_of:
        event = rank.events[work]
        if event["cat"] == "kernel" and not is_communication(event):
            total_ns[event["name"]] += rank.recorded.end[work] - rank.recorded.start[work]
    if drawn.random() < 0.5:
        return Delay(rank.rank, kernels=frozenset(total_ns), kernel_factor=float(drawn.choice(KERNEL_FACTORS)))
    longest = [name for name, _ in total_ns.most_common(LONGEST_KERNELS)]
    return Delay(rank.rank, kernels=frozenset({str(drawn.choice(longest))}), kernel_factor=ONE_KERNEL_FACTOR)


def _launches_of_communication(rank: RankTrace) -> list[Moment]:
    """Return the launches within steps."""
    launches = (launch for work, launch in rank.launch_of.items() if is_communication(rank.events[work]))
    begins = ((launch, rank.recorded.start[launch]) for launch in launches)
    return [(launch, False) for launch, at in begins if any(begin <= at < end for begin, end in rank.steps)]


def _end_of_input(rank: RankTrace, begin_ns: int, end_ns: int) -> Moment:
    """Return where a step's input ends, or where its host starts if no input is marked."""
    for point in rank.points:
        is_input = rank.events[point.event]["name"].startswith(INPUT_EVENTS)
        if point.is_end and is_input and begin_ns <= point.when_ns <= end_ns:
            return point.moment
    return next(point.moment for point in rank.points if begin_ns < point.when_ns and not point.is_end)


def _start_of_op(rank: RankTrace, begin_ns: int, end_ns: int, drawn: np.random.Generator) -> Moment:
    """Draw an op of a step."""
    starts = [
        point.moment
        for point in rank.points
        if begin_ns < point.when_ns < end_ns and not point.is_end and rank.events[point.event].get("cat") == "cpu_op"
    ]
    return starts[drawn.integers(len(starts))]


def table(cases: Sequence[Case]) -> list[str]:
    """Return the table in Markdown: one row per run and kind of delay, misses included."""
    lines = [
        "| run | delay | cases | truth | median error | worst | stated error holds |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[Prediction]] = {}
    for case in cases:
        if case.prediction:
            groups.setdefault((case.run, case.kind), []).append(case.prediction)
    groups["all", "all"] = [prediction for group in groups.values() for prediction in group]
    return lines + [f"| {run} | {kind} | {in_cells(group)} |" for (run, kind), group in groups.items()]


if __name__ == "__main__":
    sys.exit(main())
