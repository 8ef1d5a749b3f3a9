"""Simulated jobs: how well repairs of drawn faults are predicted, by workload and fault.

    python benchmarks/simulated.py [--seeds 300-309] [--kinds ddp tp ...] [--faults pause slow_gpu ...]

The jobs come from the event-driven simulation of `tests/support/simulated_jobs`, which shares no code with the replay:
DDP (with accumulation, without it, compiled, and as CUDA graphs), FSDP, HSDP, ZeRO-3, experts, tensor parallelism and
three kinds of pipelines. Noise, syncs, clocks, names and the number of recorded steps are drawn. For every seed and
workload, one of the faults is drawn among those that the workload can have; each edit that repairs it is one
prediction. The truth is the saving in the job without the fault: in its mean rank, in the whole job, or without a
profiler. What is between these three is right. Bars as in `injected.py`: faults that cost less than 2% are omitted, and
first findings count from 3%. In clean jobs, no finding with a certain gain may name a rank. Refused edits have their
own column and bar.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

from harness import TEST_SUPPORT, Prediction, at_least, at_most, in_cells, status, write_table

sys.path.append(str(TEST_SUPPORT))

from simulated_jobs.cases import FAULTS, Case, draw_case
from simulated_jobs.draws import WORKLOADS, Dice
from simulated_jobs.verdicts import Verdict, judge

LEAST_COST, LEAST_COST_TO_BE_FIRST = 0.02, 0.03
TRIES = 40
BEGIN, END = "<!-- simulated jobs: written by benchmarks/simulated.py -->", "<!-- end of simulated jobs -->"


@dataclass(frozen=True, slots=True)
class Judged:
    """A case with its verdict."""

    case: Case
    seed: int
    verdict: Verdict

    @property
    def predictions(self) -> list[Prediction]:
        """Predictions of the fault's repairs that were not refused."""
        return [
            Prediction(saving.predicted, saving.error, saving.truth)
            for saving in self.verdict.savings
            if saving.predicted is not None
        ]

    @property
    def refused(self) -> list[str]:
        """Edits that were refused."""
        return [saving.edit for saving in self.verdict.savings if saving.predicted is None]

    @property
    def counts_as_first(self) -> bool:
        """Whether the fault costs enough for the first finding to count."""
        return self.case.plan is not None and self.verdict.least_truth >= LEAST_COST_TO_BE_FIRST


def main() -> int:
    """Judge all cases and print or write the table; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="300-309", help="first and last seed, as in 300-309, or one seed")
    parser.add_argument("--kinds", nargs="+", default=WORKLOADS, choices=WORKLOADS, help="workloads")
    parser.add_argument("--faults", nargs="+", default=list(FAULTS), choices=FAULTS)
    parser.add_argument("--page", type=Path, help="write the table between its marks in this page")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    judged = []
    for seed in range(int(first), int(last or first) + 1):
        for workload in options.kinds:
            case = drawn_case(workload, options.faults, seed)
            if case is not None:
                with TemporaryDirectory() as folder:
                    judged.append(Judged(case, seed, judge(case, Path(folder))))
                report_misses(judged[-1])
    clean = [item for item in judged if item.case.plan is None]
    faulty = [item for item in judged if item.verdict.least_truth >= LEAST_COST]
    if not any(item.predictions for item in faulty):
        print("no fault costs 2% of the step: use more or other --seeds")
        return 1
    write_table(table(faulty), options.page, BEGIN, END)
    predictions = [prediction for item in faulty for prediction in item.predictions]
    off = [100 * prediction.off for prediction in predictions]
    refused = sum(len(item.refused) for item in faulty)
    firsts = [item.verdict.is_first for item in faulty if item.counts_as_first]
    blamed = sum(bool(item.verdict.blamed) for item in clean)
    return status(
        [
            at_most("gain error, median", median(off), 3, " points"),
            at_most("gain error, worst", max(off), 8, " points"),
            at_least("share within the stated error", fmean(p.holds for p in predictions), 0.9),
            at_least(f"share of {len(firsts)} faults explained first", fmean(firsts or [True]), 0.95),
            at_most("share of repairs that are refused", refused / (refused + len(predictions)), 0.05),
            at_most(f"clean jobs of {len(clean)} in which a rank is blamed", blamed, 0),
        ]
    )


def drawn_case(workload: str, faults: Sequence[str], seed: int) -> Case | None:
    """Return a case with one of the faults that the workload can have, or `None` if it can have none of them."""
    dice = Dice(seed, WORKLOADS.index(workload))
    cases = (draw_case(workload, dice.pick(faults), seed) for _ in range(TRIES))
    return next((case for case in cases if case is not None), None)


def report_misses(item: Judged) -> None:
    """Print what is wrong about a case."""
    place = f"{item.case.workload} {item.case.fault_name}, seed {item.seed}"
    if item.case.plan is None:
        if item.verdict.blamed:
            print(f"{place}: clean, but: {item.verdict.blamed}")
        return
    if item.verdict.least_truth < LEAST_COST:
        return
    for saving in item.verdict.savings:
        if saving.predicted is None:
            print(f"{place}: {saving.edit} is refused")
        elif abs(saving.predicted - saving.truth) > saving.error:
            gain = f"{saving.predicted:.1%} ±{saving.error:.1%}"
            print(f"{place}: {saving.edit} would save {saving.truth:.1%}, predicted {gain}")
    if item.counts_as_first and not item.verdict.is_first:
        print(f"{place}: costs {item.verdict.least_truth:.1%} and is not explained first")


def table(faulty: Sequence[Judged]) -> list[str]:
    """Return the table in Markdown: one row per workload, then one per fault, misses included."""
    lines = [
        "| workload, fault | repairs | truth | median error | worst | stated error holds | refused | explained first |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows = [(name, [item for item in faulty if item.case.workload == name]) for name in WORKLOADS]
    rows += [(name.replace("_", " "), [item for item in faulty if item.case.fault_name == name]) for name in FAULTS]
    for name, items in [*rows, ("all", list(faulty))]:
        predictions = [prediction for item in items for prediction in item.predictions]
        refused = sum(len(item.refused) for item in items)
        if predictions or refused:
            cells = in_cells(predictions) if predictions else "0 | | | | "
            firsts = [item.verdict.is_first for item in items if item.counts_as_first]
            lines.append(f"| {name} | {cells} | {refused} | {sum(firsts)} of {len(firsts)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
