"""Is another schedule's step predicted within 3 %? From a recorded GPipe or 1F1B run, against the recorded other one.

    python benchmarks/schedules.py gpipe=RUN 1f1b=RUN interleaved-zb=RUN ...
    python benchmarks/schedules.py --record FOLDER [--pace 40,40,40]

Runs are alike in everything but the schedule. `--record` makes them with the trainer first: four stages on four
processes, eight layers, eight micro-batches, paced, so that two cores behave like a cluster; a minute each, on a
machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from usp_prof.model.edit import Edit
from usp_prof.run import open_run
from usp_prof.whatif.predict import predict, unedited

SCHEDULES = ("gpipe", "1f1b", "interleaved", "interleaved-zb", "zbv", "dualpipev")
SOURCES = ("gpipe", "1f1b")
BAR = 0.03
OPTIONS = "--pp 4 --micro-batches 8 --layers 8 --sequence 16 --steps 6 --profile-skip 2 --profile-steps 3"


def record(folder: Path, pace: str) -> dict[str, Path]:
    """Record all schedules."""
    root, found = Path(__file__).resolve().parents[1], {}
    torchrun = Path(sys.executable).with_name("torchrun")
    for name in SCHEDULES:
        out = folder / name
        words = (
            f"--nproc-per-node 4 trainer/run.py --profile --no-profile-memory {OPTIONS} --pace {pace} --schedule {name}"
        )
        command = [str(torchrun if torchrun.exists() else "torchrun"), *words.split(), "--output", str(out)]
        subprocess.run(command, cwd=root, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)
        found[name] = out
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="SCHEDULE=RUN")
    parser.add_argument("--record", type=Path, metavar="FOLDER")
    parser.add_argument("--pace", default="40,40,40")
    args = parser.parse_args()
    runs = dict(word.split("=", 1) for word in args.runs)
    if args.record:
        runs |= {name: str(path) for name, path in record(args.record, args.pace).items()}
    tables = {name: open_run(path).tables for name, path in runs.items()}
    worst = 0.0
    print(f"{'from':8} {'to':16} {'predicted':>12} {'measured':>12} {'off':>8} {'stated':>8}")
    for source in SOURCES:
        for name in [name for name in tables if source in tables and name != source]:
            edit = Edit("schedule", name)
            predicted, measured = predict(tables[source], [edit]), unedited(tables[name]).mean_measured_ns
            off = predicted.after_ns / measured - 1
            worst = max(worst, abs(off))
            both = f"{predicted.after_ns / 1e6:9.1f} ms {measured / 1e6:9.1f} ms"
            print(f"{source:8} {name:16} {both} {off:+8.2%} {predicted.error_fraction:8.2%}")
    print(f"worst {worst:.2%} (bar {BAR:.0%})")
    return 0 if worst <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
