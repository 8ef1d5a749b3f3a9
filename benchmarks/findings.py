"""Cost of findings, and of a replay alone: 8 ranks for the replay, 64 for the findings, 200,000 events each.

    python benchmarks/findings.py                     8 ranks: one replay; 64 ranks: all findings (6 GB of disk)
    python benchmarks/findings.py --ranks 8           the findings of 8 ranks only

The runs are synthetic (GPU, tensor and pipeline parallel by 2 and 4, the rest data parallel), repeated to size and read
into a cache before measuring. Each measurement is a separate process, timed from the opened run to the end; imports and
opening are shown but not counted. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import large_trace

REPLAY_SECONDS, FINDINGS_SECONDS = 2.0, 60.0
MESHES = {8: "dp=2,tp=2,pp=2", 64: "dp=8,tp=2,pp=4"}
MEASURE = """
import json, os, resource, sys, time
from usp_prof import open_run
from usp_prof.findings.search import search
from usp_prof.replay.build import graph_of
from usp_prof.replay.longest_path import make_plan, replay
def now():
    times = os.times()
    return time.perf_counter(), times.user + times.system + times.children_user + times.children_system
def lap(name, work):
    wall, cpu = now()
    got = work()
    laps[name] = [after - before for after, before in zip(now(), (wall, cpu))]
    return got
laps = {}
run = lap("open", lambda: open_run(sys.argv[1], cache_dir=sys.argv[2]))
if sys.argv[3] == "replay":
    graph = lap("graph", lambda: graph_of(run.tables))
    plan = lap("plan", lambda: make_plan(graph))
    found = lap("replay", lambda: replay(graph, plan))
    said = f"{len(graph.nodes):,} nodes in {len(plan.heads):,} segments and {len(plan.rounds):,} rounds"
else:
    found = lap("findings", lambda: search(run.tables))
    said = f"{len(found.findings)} findings, {len(found.skipped)} rules skipped"
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"laps": laps, "said": said, "peak": peak}))
"""


def made_up(place: Path, ranks: int, events: int) -> Path:
    """Write a run with this number of ranks, and repeat each to size."""
    small, large = place / f"small{ranks}", place / f"run{ranks}"
    words = ["-m", "usp_prof.cli.app", "synth", str(small), "--mesh", MESHES[ranks], "--micro-batches", "8", "-q"]
    subprocess.run([sys.executable, *words], check=True)
    large.mkdir()
    files = sorted(small.glob("*rank*.json*"))
    apart = large_trace.span_us(files)
    for path in files:
        large_trace.build(path, large / path.name.removesuffix(".gz"), events=events, apart_us=apart)
    return large


def measure(folder: Path, cache: Path, what: str) -> float:
    """Measure in a separate process, and return the wall seconds of the last lap."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, folder, cache, what], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"failed:\n{done.stderr[-3000:]}")
    got = json.loads(done.stdout.splitlines()[-1])
    laps = ", ".join(f"{name} {wall:.2f} s ({cpu:.2f} CPU s)" for name, (wall, cpu) in got["laps"].items())
    print(f"  {laps}; {got['said']}; {got['peak'] / 1e9:.1f} GB")
    return float(got["laps"][what][0])


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64, choices=sorted(MESHES))
    parser.add_argument("--events", type=int, default=200_000, help="events per rank")
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many counts")
    args = parser.parse_args()
    bars = []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for ranks, what, most in ((8, "replay", REPLAY_SECONDS), (args.ranks, "findings", FINDINGS_SECONDS)):
            folder = place / f"run{ranks}"
            if not folder.exists():
                made_up(place, ranks, args.events)
                subprocess.run([sys.executable, "-c", MEASURE, folder, place / "cache", "replay"], check=True)
            print(f"{ranks} ranks x {args.events:,} events, {what}")
            seconds = sorted(measure(folder, place / "cache", what) for _ in range(args.rounds))[args.rounds // 2]
            bars.append((f"{what} of {ranks} ranks takes {seconds:.2f} s (at most {most:.0f})", seconds <= most))
    for text, kept in bars:
        print(f"{'ok    ' if kept else 'MISSED'} {text}")
    return 0 if all(kept for _, kept in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
