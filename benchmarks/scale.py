"""Cost of runs with many ranks, cold and warm, checked on synthetic ranks with known ground truth.

    python benchmarks/scale.py                          8 and 64 ranks of 5,000 events
    python benchmarks/scale.py --events 50000
    python benchmarks/scale.py --ranks 8,64,256,512,1024 --results scale.csv --sets FOLDER
    python benchmarks/scale_plot.py scale.csv scale.svg  the table and the plot of docs/reference/scale.md

The run has dp x tp x pp with a slow rank, skewed clocks per host of 8 ranks, and a longer last stage. Cold reads the
traces with worker processes, warm opens the store. CPU time is measured rather than wall time, because other load
affects it less. Exits with 1 if the culprit, an offset (20 us) or the bubble (0.5 points) is wrong.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, astuple, dataclass, fields
from multiprocessing import get_context
from pathlib import Path

from usp_prof.run import open_run
from usp_prof.synth.declaration import Declaration, with_events
from usp_prof.synth.write import write

_MEASURED = """
import json, os, resource, sys
from usp_prof.cli.app import main
assert main(["analyze", *sys.argv[1:]]) == 0
spent = os.times()
peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps([spent.user + spent.system, spent.children_user + spent.children_system, *peaks]))
"""
OFFSET_NS, BUBBLE = 20_000, 0.005
PIPELINE, TENSOR = 4, 2


@dataclass(frozen=True, slots=True)
class Spent:
    """Resources used by one `analyze`."""

    head_s: float
    """CPU seconds of the main process."""
    workers_s: float
    """CPU seconds of all workers."""
    head_mb: float
    """Peak memory of the main process."""
    worker_mb: float
    """Peak memory of the largest worker."""
    wall_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """One size, cold and warm; `wrong` lists differences from the ground truth."""

    ranks: int
    events: int
    load: float
    cold_head_s: float
    cold_workers_s: float
    cold_head_mb: float
    cold_worker_mb: float
    cold_wall_s: float
    warm_head_s: float
    warm_workers_s: float
    warm_head_mb: float
    warm_worker_mb: float
    warm_wall_s: float
    wrong: str


def declaration(ranks: int, events: int) -> Declaration:
    """Declare a run with this number of ranks; rank 5 computes at two thirds of the speed."""
    hosts = max(1, ranks // 8)
    run = Declaration.from_dict(
        {
            "mesh": {"dp": ranks // (PIPELINE * TENSOR), "tp": TENSOR, "pp": PIPELINE},
            "work": {"steps": 3, "micro_batches": 8},
            "speed": {"last_stage_factor": 1.2},
            "clocks": {"ranks_per_host": 8, "offset_ns": [(host * 7_919_317) % 40_000_000 for host in range(hosts)]},
            "faults": [{"kind": "slow_rank", "rank": 5, "factor": 1.5}],
        }
    )
    return with_events(run, events)


def analyse(folder: Path, store: Path, report: Path) -> Spent:
    """Run the analysis in a separate process."""
    words = [str(folder), "--store", str(store), "--format", "json", "-o", str(report), "-q"]
    begun = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", _MEASURED, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"analyze of {folder} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    head, workers, peak, largest = json.loads(done.stdout)
    return Spent(head, workers, peak / 1024, largest / 1024, time.perf_counter() - begun)


def worst_offset(folder: Path, store: Path) -> float:
    """Return the largest error of a rank's clock in ns, after removing the common offset."""
    truth = json.loads((folder / "truth.json").read_text())["clocks"]
    rows = open_run(folder, cache_dir=store).sql("SELECT rank, offset_ns FROM clock ORDER BY rank").fetchall()
    errors = [offset + truth[str(rank)]["offset_ns"] for rank, offset in rows]
    middle = sorted(errors)[len(errors) // 2]
    return max(abs(error - middle) for error in errors)


def faults_of(run: Path, base: Path) -> list[str]:
    """Return what the analysis got wrong: culprit, clocks, bubble."""
    report = json.loads((base / "report.json").read_text())
    truth = json.loads((run / "truth.json").read_text())
    found = []
    if report["findings"][0]["where"].get("rank") != truth["culprits"][0]["rank"]:
        found.append("another culprit")
    offset = worst_offset(run, base / "store")
    if offset > OFFSET_NS:
        found.append(f"a clock is {offset / 1000:.0f} us off")
    measured = {
        str(metric["dims"]["step"]): metric["value"]
        for metric in report["metrics"]
        if metric["id"] == "bubble_fraction" and set(metric["dims"]) == {"step"}
    }
    if measured.keys() != truth["bubble_fraction"].keys():
        return [*found, "no bubble of some steps"]
    bubble = max(abs(value - truth["bubble_fraction"][step]) for step, value in measured.items())
    return found if bubble <= BUBBLE else [*found, f"the bubble is {bubble * 100:.1f} points off"]


def made(ranks: int, events: int, folder: Path) -> Path:
    """Write a synthetic run, unless it exists."""
    run = folder / f"{ranks}x{events}"
    if not run.exists():
        begun = folder / f"{run.name}.begun"
        # In a separate process: child processes count their parent's memory as theirs until they start working.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
            apart.submit(write, declaration(ranks, events), begun).result()
        begun.rename(run)
    return run


def measured(ranks: int, events: int, sets: Path | None) -> Row:
    """Write a synthetic run, analyze it twice, and compare the report with the ground truth."""
    with tempfile.TemporaryDirectory(prefix="usp-prof-scale-") as name:
        base = Path(name)
        run = made(ranks, events, sets or base)
        load = os.getloadavg()[0]
        cold = analyse(run, base / "store", base / "report.json")
        warm = analyse(run, base / "store", base / "report.json")
        spent = [round(value, 1) for each in (cold, warm) for value in astuple(each)]
        return Row(ranks, events, round(load, 1), *spent, ", ".join(faults_of(run, base)))


def main() -> int:
    """Measure each number of ranks, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="8,64", metavar="LIST")
    parser.add_argument("--events", type=int, default=5_000)
    parser.add_argument("--results", metavar="CSV", type=Path, help="add each row to this file")
    parser.add_argument("--sets", metavar="FOLDER", type=Path, help="keep the made-up runs here, and use them again")
    args = parser.parse_args()
    rows = []
    for ranks in map(int, args.ranks.split(",")):
        row = measured(ranks, args.events, args.sets)
        rows.append(row)
        print(", ".join(f"{name} {value}" for name, value in asdict(row).items()), flush=True)
        if args.results:
            is_new = not args.results.exists()
            with args.results.open("a", newline="") as file:
                writer = csv.writer(file)
                if is_new:
                    writer.writerow(field.name for field in fields(Row))
                writer.writerow(astuple(row))
    return 1 if any(row.wrong for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
