"""Accuracy of predicting another schedule's step (bar: 4%), from a recorded GPipe, 1F1B or interleaved run.

    python benchmarks/schedules.py record FOLDER [4x8 ...]     # half a minute per run, six runs per shape
    python benchmarks/schedules.py compare FOLDER [4x8 ...]

A shape is stages x micro-batches. The runs of a shape differ only in the schedule. They have one process and two layers
per stage, and are paced, so that two cores behave like a cluster. Record on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from usp_prof.model.edit import Edit
from usp_prof.run import open_run
from usp_prof.whatif.predict import predict, unedited

ROOT = Path(__file__).resolve().parents[1]
SCHEDULES = ("gpipe", "1f1b", "interleaved", "interleaved-zb", "zbv", "dualpipev")
SOURCES = ("gpipe", "1f1b", "interleaved")
SHAPES = ("2x4", "2x8", "2x16", "4x4", "4x8", "4x16")
BAR = 0.04
HELD = 0.9
"""Minimum share of predictions whose stated error holds."""
STEP_MS = 2500
"""Approximate step time of a recording: long compared with host work, but short enough to record."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One prediction and its measurement; shares are relative to the measured step."""

    shape: str
    source: str
    target: str
    off: float
    stated: float


def record(folder: Path, shape: str) -> None:
    """Record all schedules of a shape, except existing ones."""
    stages, micro_batches = map(int, shape.split("x"))
    # a micro-batch takes three paces per stage (forward, input gradients, weight gradients) for each of its two layers
    pace = round(STEP_MS / (micro_batches + stages) / 6)
    options = f"--pp {stages} --micro-batches {micro_batches} --layers {2 * stages} --pace {pace},{pace},{pace}"
    for name in SCHEDULES:
        target = folder / shape / name
        if (target / "run.json").exists() or (name == "dualpipev" and micro_batches < 2 * stages):
            continue  # DualPipeV uses pairs of micro-batches per stage
        words = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", str(stages),
                 "trainer/run.py", "--profile", "--no-profile-memory", "--sequence", "16", *options.split(),
                 "--schedule", name, "--steps", "6", "--profile-skip", "2", "--profile-steps", "3",
                 "--output", str(target)]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(words, cwd=ROOT, check=True, env=environment, timeout=300, stdout=subprocess.DEVNULL)
        print(f"recorded {shape} {name}", flush=True)


def compare(folder: Path, shape: str) -> list[Outcome]:
    """Predict every schedule of a shape from each recorded source."""
    tables = {
        name: open_run(folder / shape / name, cache_dir=folder / "cache").tables
        for name in SCHEDULES
        if (folder / shape / name / "run.json").exists()
    }
    outcomes = []
    for source in [name for name in SOURCES if name in tables]:
        for target in [name for name in tables if name != source]:
            told, measured = (
                predict(tables[source], [Edit("schedule", target)]),
                unedited(tables[target]).mean_measured_ns,
            )
            off, stated = told.after_ns / measured - 1, told.error_fraction * told.before_ns / measured
            outcomes.append(Outcome(shape, source, target, off, stated))
            print(
                f"{shape:6} {source:12} {target:16} {told.after_ns / 1e6:9.1f} ms {measured / 1e6:9.1f} ms "
                f"{off:+8.2%} {stated:8.2%}",
                flush=True,
            )
    return outcomes


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", default=SHAPES)
    args = parser.parse_args()
    if args.what == "record":
        for shape in args.shapes:
            record(args.folder.resolve(), shape)
        return 0
    print(f"{'shape':6} {'from':12} {'to':16} {'predicted':>12} {'measured':>12} {'off':>8} {'stated':>8}")
    outcomes = [each for shape in args.shapes for each in compare(args.folder, shape)]
    if not outcomes:
        print("nothing was recorded there")
        return 1
    worst = max(abs(each.off) for each in outcomes)
    held = sum(abs(each.off) <= each.stated for each in outcomes) / len(outcomes)
    print(f"worst {worst:.2%} (bar {BAR:.0%}); stated error holds in {held:.0%} of {len(outcomes)} (bar {HELD:.0%})")
    return 0 if worst <= BAR and held >= HELD else 1


if __name__ == "__main__":
    sys.exit(main())
