"""Predicted against recorded gain of a repair, on pairs recorded by the paced trainer.

    python benchmarks/recorded_repairs.py record FOLDER [KIND ...]     # about a minute per pair
    python benchmarks/recorded_repairs.py compare FOLDER [KIND ...]

The runs of a pair differ only in the fault. `compare` predicts the repaired step from the faulty recording alone and
prints it with the recorded one; it fails if a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from usp_prof.findings import find
from usp_prof.model.edit import parse_edit
from usp_prof.model.finding import Level
from usp_prof.run import open_run
from usp_prof.whatif.predict import predict, unedited

ROOT = Path(__file__).resolve().parents[1]
STEPS = "--steps 6 --profile-skip 2 --profile-steps 3 --no-profile-memory"
DATA = "--dp 4 --layers 2 --pace 80,80,80 --sequence 16 --accumulate 2"
PIPE = "--pp 4 --sequence 16 --micro-batches 8"
RING = "--cp 4 --layers 2 --sequence 256 --batch 2 --pace 30,30,30,120"
EXPERTS = "--dp 4 --ep 4 --experts 8 --layers 2 --sequence 32 --pace 40,40,40,0,120"
SHARDED = "--dp 4 --zero 3 --layers 4 --pace 60,60,60 --sequence 32 --batch 8 --fault slow-link:axis=dp,mbps=17"
SUMMED = "--dp 4 --layers 4 --pace 40,40,40 --sequence 32 --batch 8 --fault slow-link:axis=dp,mbps=17"
LINKED = "--dp 2 --tp 2 --layers 4 --pace 20,20,20 --sequence 32 --batch 8"
LATE = "".join(f" --fault late-input:rank={rank},ms=120" for rank in range(4))
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """Measurements of a pair, the prediction from its faulty run, and the first finding there."""

    pair: Pair
    measured: float
    predicted: float
    error: float
    first: str
    raised_on_repaired: tuple[str, ...]


def record(folder: Path, pair: Pair) -> None:
    """Record both runs of a pair, one after the other."""
    for half, options in (("faulty", pair.faulty), ("repaired", pair.repaired)):
        target = folder / pair.kind / half
        if (target / "run.json").exists():
            continue
        words = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "4", "--rdzv-backend", "c10d",
                 "--rdzv-endpoint", "localhost:0", "trainer/run.py", "--profile", *options.split(), *STEPS.split(),
                 "--output", str(target)]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(words, cwd=ROOT, check=True, env=environment, timeout=300, stdout=subprocess.DEVNULL)
        print(f"recorded {pair.kind} {half}", flush=True)


def compare(folder: Path, pair: Pair) -> Outcome:
    """Predict the repaired step from the faulty recording, and compare it with the repaired one."""
    cache = folder / "cache"
    faulty, repaired = (open_run(folder / pair.kind / half, cache_dir=cache) for half in ("faulty", "repaired"))
    before, after = (unedited(run.tables).mean_measured_ns for run in (faulty, repaired))
    found = [each for each in find(faulty.tables) if each.code != pair.in_both]
    mine = next((each for each in found if each.code == pair.code), None)
    told = predict(faulty.tables, [parse_edit(pair.edit)]) if mine and pair.edit else mine
    return Outcome(
        pair,
        1 - after / before,
        told.gain_fraction if told else 0.0,
        told.error_fraction if told else 0.0,
        found[0].code if found else "none",
        tuple(
            each.code for each in find(repaired.tables) if each.level is not Level.NOTE and each.code != pair.in_both
        ),
    )


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    args = parser.parse_args()
    pairs = [pair for pair in PAIRS if not args.kinds or pair.kind in args.kinds]
    if args.what == "record":
        for pair in pairs:
            record(args.folder.resolve(), pair)
        return 0
    outcomes = []
    for pair in pairs:
        if (args.folder / pair.kind / "repaired" / "run.json").exists():
            outcomes.append(compare(args.folder, pair))
            _print(outcomes[-1])
    return _report(outcomes)


def _print(each: Outcome) -> None:
    off = (each.predicted - each.measured) * 100
    mark = "" if each.first == each.pair.code else f"  first: {each.first}"
    if each.raised_on_repaired:
        mark += f"  on repaired: {', '.join(each.raised_on_repaired)}"
    both = f"measured {each.measured:7.2%} predicted {each.predicted:7.2%} +- {each.error:.2%} {off:+6.2f}"
    print(f"{each.pair.kind:18} {both}{mark}", flush=True)


def _report(outcomes: list[Outcome]) -> int:
    counted = [each for each in outcomes if each.measured >= LEAST_GAIN]
    if not counted:
        return 1
    errors = [abs(each.predicted - each.measured) * 100 for each in counted]
    first = sum(each.first == each.pair.code for each in counted) / len(counted)
    signs = sum(each.predicted > 0 for each in counted)
    within = sum(abs(each.predicted - each.measured) <= each.error for each in counted)
    print(f"gain error: median {np.median(errors):.2f} points (bar 3), worst {max(errors):.2f} (bar 6)")
    print(f"within the stated error: {within} of {len(counted)}; sign right: {signs} of {len(counted)}")
    print(f"fault is the first finding in {first:.1%} of {len(counted)} (bar 95%)")
    return 0 if np.median(errors) <= 3 and max(errors) <= 6 and first >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
