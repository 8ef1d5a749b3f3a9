"""Predictions from recorded runs of the paced trainer, compared with recordings of what was predicted.

    python benchmarks/recorded.py record FOLDER [NAME ...]     # up to a minute per run; on an otherwise idle machine
    python benchmarks/recorded.py compare FOLDER [NAME ...] [--page docs/reference/accuracy.md]

A name is a kind of fault, such as slow_rank, or the shape of a pipeline: 4x8 are 4 stages and 8 micro-batches. The two
runs of a fault differ only in the fault; the repaired step is predicted from the faulty recording alone. The runs of a
shape differ only in the schedule; each is predicted from a recorded GPipe, 1F1B or interleaved run. They have one
process and two layers per stage. All runs are paced, so that two cores behave like a cluster. `compare` fails if a bar
is missed.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from harness import Prediction, accuracy, at_least, at_most, gain_of, record, repair_of, status, write_table

from usp_prof.findings import find
from usp_prof.model.edit import Edit
from usp_prof.model.finding import Level
from usp_prof.replay.step_times import unedited
from usp_prof.run import open_run
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from harness import Bar

STEPS = "--steps 6 --profile-skip 2 --profile-steps 3"
DATA = "--dp 4 --layers 2 --pace 80,80,80 --sequence 16 --accumulate 2"
PIPE = "--pp 4 --sequence 16 --micro-batches 8"
RING = "--cp 4 --layers 2 --sequence 256 --batch 2 --pace 30,30,30,120"
EXPERTS = "--dp 4 --ep 4 --experts 8 --layers 2 --sequence 32 --pace 40,40,40,0,120 --steps 46 --profile-skip 42"
"""The router needs about 40 steps to balance its experts; before, the repaired run is uneven too."""
SHARDED = "--dp 4 --zero 3 --layers 4 --pace 60,60,60 --sequence 32 --batch 8 --fault slow-link:axis=dp,mbps=17"
SUMMED = "--dp 4 --layers 4 --pace 40,40,40 --sequence 32 --batch 8 --fault slow-link:axis=dp,mbps=17"
LINKED = "--dp 2 --tp 2 --layers 4 --pace 20,20,20 --sequence 32 --batch 8"
LATE = "".join(f" --fault late-input:rank={rank},ms=120" for rank in range(4))
LABELS = {
    "late_inputs": "late inputs on all ranks",
    "gc_pause": "pause of the host",
    "slow_link": "slow link of dp",
    "slow_tensor_link": "slow link of tp",
    "unoverlapped": "gradients reduced after backward",
    "gpipe": "GPipe schedule",
    "one_f_one_b": "1F1B schedule",
    "contiguous_cp": "contiguous parts of the sequence",
    "no_prefetch": "gathers without prefetch",
    "recompute": "needless recomputation",
    "unbucketed": "gradients without buckets",
}
"""Names of the faults in tables, where the words of the kind are not enough."""
BEGIN, END = "<!-- recorded: written by benchmarks/recorded.py -->", "<!-- end of recorded -->"
LEAST_GAIN = 0.03
"""Minimum cost of a fault; sleeps on shared cores repeat only to within a few percent."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A kind of fault: the expected finding code, and the trainer's options with and without the fault."""

    kind: str
    code: str
    faulty: str
    repaired: str
    edit: str = ""
    """Recorded repair, if the finding names another one (a schedule with an even smaller bubble)."""
    in_both: str = ""
    """Code of a fault in both runs, without which the pair's own fault would cost nothing."""


PAIRS = (
    Pair("slow_rank", "slow-rank", f"{DATA} --fault slow-rank:rank=2,factor=1.6", DATA),
    Pair("slow_host", "slow-rank", f"{DATA} --fault slow-host:host=1,hosts=2,factor=1.5", DATA),
    Pair("late_input", "late-input", f"{DATA} --fault late-input:rank=1,ms=150", DATA),
    Pair("late_inputs", "late-input", f"{DATA}{LATE}", DATA),
    Pair("gc_pause", "host-pause", f"{DATA} --fault pause:rank=3,ms=300,every=2", DATA),
    Pair(
        "slow_link",
        "slow-link",
        f"{LINKED} --fault slow-link:axis=dp,mbps=12,rank=1",
        LINKED,
    ),
    Pair(
        "slow_tensor_link",
        "slow-link",
        f"{LINKED} --fault slow-link:axis=tp,mbps=50,rank=1",
        LINKED,
    ),
    Pair("unoverlapped", "exposed-gradient-sync", f"{SUMMED} --fault unoverlapped", SUMMED, in_both="slow-link"),
    Pair(
        "unbalanced_stage",
        "stage-imbalance",
        f"{PIPE} --layers 4 --pace 60,60,60 --fault slow-stage:stage=3,factor=1.6",
        f"{PIPE} --layers 4 --pace 69,69,69",
    ),
    Pair(
        "gpipe",
        "pipeline-schedule",
        f"{PIPE} --layers 8 --pace 30,30,30 --schedule gpipe",
        f"{PIPE} --layers 8 --pace 30,30,30 --schedule interleaved",
        "schedule=interleaved,v=2",
    ),
    Pair(
        "one_f_one_b",
        "pipeline-schedule",
        f"{PIPE} --layers 8 --pace 30,30,30 --schedule 1f1b",
        f"{PIPE} --layers 8 --pace 30,30,30 --schedule interleaved-zb",
        "schedule=interleaved-zb",
    ),
    Pair(
        "few_micro_batches",
        "few-micro-batches",
        "--pp 4 --layers 4 --sequence 16 --micro-batches 4 --pace 80,80,80",
        "--pp 4 --layers 4 --sequence 16 --micro-batches 8 --pace 40,40,40",
    ),
    Pair("contiguous_cp", "uneven-sequence", f"{RING} --cp-layout contiguous", f"{RING} --cp-layout zigzag"),
    Pair("expert_imbalance", "uneven-experts", f"{EXPERTS} --fault expert-imbalance:expert=0,bias=0.5", EXPERTS),
    Pair("no_prefetch", "exposed-gathers", f"{SHARDED} --no-prefetch", SHARDED, in_both="slow-link"),
    Pair("recompute", "needless-recompute", f"{DATA} --recompute full", DATA),
    Pair("blocking_sync", "blocking-sync", f"{DATA} --fault blocking-sync", DATA),
    Pair(
        "unbucketed",
        "small-messages",
        "--dp 4 --layers 4 --pace 25,25,25 --sequence 16 --accumulate 2 --fault unbucketed",
        "--dp 4 --layers 4 --pace 25,25,25 --sequence 16 --accumulate 2",
    ),
)


SCHEDULES = ("gpipe", "1f1b", "interleaved", "interleaved-zb", "zbv", "dualpipev")
SOURCES = ("gpipe", "1f1b", "interleaved")
SHAPES = ("2x4", "2x8", "2x16", "4x4", "4x8", "4x16")
STEP_MS = 2500
"""Approximate step time of a recorded schedule: long compared with host work, but short enough to record."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Gain of a repair, predicted and measured, and the findings of the pair's runs."""

    kind: str
    gain: Prediction
    is_first: bool
    first: str
    raised_on_repaired: tuple[str, ...]


def record_pair(folder: Path, pair: Pair) -> None:
    """Record both runs of a pair, one after the other."""
    for half, options in (("faulty", pair.faulty), ("repaired", pair.repaired)):
        record(folder / pair.kind / half, 4, f"{STEPS} {options}")


def record_shape(folder: Path, shape: str) -> None:
    """Record all schedules of a shape."""
    stages, micro_batches = map(int, shape.split("x"))
    # A micro-batch takes three paces per stage (forward, input gradients, weight gradients) for each of its two layers.
    pace = round(STEP_MS / (micro_batches + stages) / 6)
    options = f"--pp {stages} --micro-batches {micro_batches} --layers {2 * stages} --pace {pace},{pace},{pace}"
    for name in SCHEDULES:
        if name != "dualpipev" or micro_batches >= 2 * stages:  # it uses pairs of micro-batches per stage
            record(folder / shape / name, stages, f"{STEPS} --sequence 16 {options} --schedule {name}")


def compare_pair(folder: Path, pair: Pair) -> Outcome:
    """Predict the repaired step from the faulty recording, and compare it with the repaired one."""
    cache = folder / "cache"
    faulty, repaired = (open_run(folder / pair.kind / half, cache_dir=cache) for half in ("faulty", "repaired"))
    findings, repair = repair_of(faulty, pair.code, pair.edit, pair.in_both)
    gain = gain_of(repair, faulty, repaired)
    first = findings[0].code if findings else "none"
    raised = [finding.code for finding in find(repaired.tables) if finding.level is not Level.NOTE]
    outcome = Outcome(
        pair.kind,
        gain,
        first == pair.code,
        first,
        tuple(code for code in raised if code != pair.in_both),
    )
    points = 100 * (gain.predicted - gain.truth)
    mark = "" if outcome.is_first else f"  first: {first}"
    mark += f"  on repaired: {', '.join(outcome.raised_on_repaired)}" if outcome.raised_on_repaired else ""
    both = f"measured {gain.truth:7.2%} predicted {gain.predicted:7.2%} ±{gain.error:.2%} {points:+6.2f}"
    print(f"{pair.kind:18} {both}{mark}", flush=True)
    return outcome


def compare_shape(folder: Path, shape: str) -> dict[tuple[str, str], list[Prediction]]:
    """Predict every schedule of a shape from each recorded source, by shape and source.

    All values are relative to the measured step.
    """
    tables = {
        name: open_run(folder / shape / name, cache_dir=folder / "cache").tables
        for name in SCHEDULES
        if (folder / shape / name / "run.json").exists()
    }
    predictions: dict[tuple[str, str], list[Prediction]] = {}
    for source in [name for name in SOURCES if name in tables]:
        for target in [name for name in tables if name != source]:
            change = predict(tables[source], [Edit("schedule", target)])
            measured_ns = unedited(tables[target]).mean_measured_ns
            error = change.error_fraction * change.before_ns / measured_ns
            predicted = Prediction(change.after_ns / measured_ns, error, 1)
            predictions.setdefault((shape, source), []).append(predicted)
            print(
                f"{shape:6} {source:12} {target:16} {change.after_ns / 1e6:9.1f} ms, "
                f"measured {measured_ns / 1e6:9.1f} ms {predicted.predicted - 1:+8.2%} ±{error:.2%}",
                flush=True,
            )
    return predictions


def bars(outcomes: list[Outcome], schedules: list[Prediction]) -> list[Bar]:
    """Return the bars of what was compared."""
    judged_bars = []
    counted = [outcome for outcome in outcomes if outcome.gain.truth >= LEAST_GAIN]
    if counted:
        share = sum(outcome.is_first for outcome in counted) / len(counted)
        judged_bars += accuracy([outcome.gain for outcome in counted], share)
    if schedules:
        holds = sum(schedule.off <= schedule.error for schedule in schedules) / len(schedules)
        judged_bars += [
            at_most("another schedule's step, worst error", 100 * max(schedule.off for schedule in schedules), 4, "%"),
            at_least(f"share of {len(schedules)} schedules whose stated error holds", holds, 0.9),
        ]
    return judged_bars


def tables(outcomes: list[Outcome], schedules: dict[tuple[str, str], list[Prediction]]) -> list[str]:
    """Return the tables of repairs and of schedules in Markdown, misses included."""
    lines = ["| fault repaired | saved | predicted | within the error | first finding |", "|---|---|---|---|---|"]
    for outcome in outcomes:
        gain = outcome.gain
        predicted, is_within = f"{gain.predicted:.1%} ±{gain.error:.1%}", "yes" if gain.off <= gain.error else "no"
        if not gain.predicted:
            predicted = is_within = "-"  # no finding predicts it
        label = LABELS.get(outcome.kind, outcome.kind.replace("_", " "))
        first = "the fault" if outcome.is_first else outcome.first
        lines.append(f"| {label} | {gain.truth:.1%} | {predicted} | {is_within} | {first} |")
    lines += [
        "",
        "| stages x micro-batches | predicted from | schedules | median error | worst | stated error holds |",
        "|---|---|---|---|---|---|",
    ]
    for (shape, source), group in schedules.items():
        off = [100 * schedule.off for schedule in group]
        holds = sum(schedule.off <= schedule.error for schedule in group)
        lines.append(
            f"| {shape} | {source} | {len(group)} | {np.median(off):.1f}% | {max(off):.1f}% | {holds} of {len(group)} |"
        )
    return lines


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--page", type=Path, help="write the tables between their marks in this page")
    args = parser.parse_args()
    folder = args.folder.resolve()
    pairs = [pair for pair in PAIRS if not args.names or pair.kind in args.names]
    shapes = [shape for shape in SHAPES if not args.names or shape in args.names]
    if args.what == "record":
        for pair in pairs:
            record_pair(folder, pair)
        for shape in shapes:
            record_shape(folder, shape)
        return 0
    recorded = [pair for pair in pairs if (folder / pair.kind / "repaired" / "run.json").exists()]
    outcomes = [compare_pair(folder, pair) for pair in recorded]
    schedules: dict[tuple[str, str], list[Prediction]] = {}
    for shape in shapes:
        schedules |= compare_shape(folder, shape)
    judged_bars = bars(outcomes, [prediction for group in schedules.values() for prediction in group])
    if not judged_bars:
        raise SystemExit(f"nothing was recorded in {folder}")
    write_table(tables(outcomes, schedules), args.page, BEGIN, END)
    return status(judged_bars)


if __name__ == "__main__":
    sys.exit(main())
