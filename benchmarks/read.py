"""How fast is a trace read, and in how much memory? Against a bare decode and against HTA, in the same run.

    python benchmarks/read.py                                  500 MB, against a bare typed msgspec decode
    python benchmarks/read.py --hta-python /tmp/hta/bin/python   and against HolisticTraceAnalysis' load
    python benchmarks/read.py --events 3000000                 the same for a number of events

Each measurement is a process of its own; several rounds are interleaved and the smallest CPU time counts, since other
work on the machine can only add. `--bars` exits with 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import large_trace

HERE = Path(__file__).parent

BARE = """
import msgspec
class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
class Trace(msgspec.Struct, gc=False):
    traceEvents: list[Event]
events = len(msgspec.json.decode(open(PATH, "rb").read(), type=Trace).traceEvents)
"""
EVENTS = """
from pathlib import Path
from usp_prof.readers.kineto import read
events = read(Path(PATH)).events.num_rows
"""
TABLES = """
from pathlib import Path
from usp_prof.tables.load import build
tables, _ = build(Path(PATH), 0, None)
events = tables["events"].num_rows
"""
COLD = """
import tempfile
from usp_prof import open_run
with tempfile.TemporaryDirectory() as cache:
    run = open_run(PATH, cache_dir=cache)
    events = run.query("SELECT sum(events) FROM ranks").fetchall()[0][0]
"""
WARM = """
from usp_prof import open_run
run = open_run(PATH, cache_dir=CACHE)
events = run.table("kernels").df().shape[0]
"""
HTA = """
import logging
logging.disable(logging.CRITICAL)
from hta.common.trace import Trace
trace = Trace(trace_files={0: PATH}, trace_dir="")
trace.parse_traces(use_multiprocessing=False)
trace.decode_symbol_ids(use_shorten_name=False)
events = len(trace.get_trace(0))
"""
FRAME = """
import json, resource, sys, time
PATH, CACHE = sys.argv[1:3]
{imports}
wall, cpu = time.perf_counter(), time.process_time()
{body}
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({{"cpu": cpu, "wall": wall, "peak": peak, "events": int(events)}}))
"""
IMPORTS = {
    "hta": "from hta.common import trace as _",
    "bare": "import msgspec",
}


def measure(python: str, name: str, body: str, trace: Path, cache: str) -> dict[str, float]:
    """Run one measurement in a process of its own; imports are not counted."""
    imports = IMPORTS.get(name, "import duckdb, usp_prof.run")
    script = FRAME.format(imports=imports, body=body)
    done = subprocess.run([python, "-c", script, str(trace), cache], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def rounds(trace: Path, count: int, hta_python: str | None, cache: str) -> dict[str, dict[str, float]]:
    """Interleave the measurements; the least of each figure counts."""
    bodies = {"bare": BARE, "events": EVENTS, "tables": TABLES, "cold": COLD, "warm": WARM}
    if hta_python:
        bodies["hta"] = HTA
    best: dict[str, dict[str, float]] = {}
    measure(sys.executable, "warm", WARM, trace, cache)
    for _ in range(count):
        for name, body in bodies.items():
            got = measure(hta_python if name == "hta" and hta_python else sys.executable, name, body, trace, cache)
            known = best.setdefault(name, got)
            best[name] = {key: min(value, known[key]) for key, value in got.items()}
    return best


def report(best: dict[str, dict[str, float]], size: int) -> list[str]:
    """Print figures and ratios; gives the bars that were missed."""
    print(f"{'':10}{'CPU s':>8}{'wall s':>8}{'MB/CPU s':>10}{'peak MB':>9}{'peak/size':>11}")
    for name, got in best.items():
        line = f"{name:10}{got['cpu']:8.2f}{got['wall']:8.2f}{size / 1e6 / got['cpu']:10.0f}"
        print(line + f"{got['peak'] / 1e6:9.0f}{got['peak'] / size:11.2f}")
    ratio = best["tables"]["cpu"] / best["bare"]["cpu"]
    bars = [
        (f"all tables take {ratio:.2f} x the CPU of a bare typed decode (at most 3)", ratio <= 3),
        (
            f"peak memory of a cold read is {best['cold']['peak'] / size:.2f} x the file (at most 1)",
            best["cold"]["peak"] <= size,
        ),
        (f"a warm open with its first table takes {best['warm']['wall']:.2f} s (at most 1)", best["warm"]["wall"] <= 1),
    ]
    if "hta" in best:
        gain = best["hta"]["cpu"] / best["tables"]["cpu"]
        bars.append((f"all tables take 1/{gain:.1f} of the CPU of HTA's load (at most 1/15)", gain >= 15))
    for text, kept in bars:
        print(f"{'ok    ' if kept else 'MISSED'} {text}")
    return [text for text, kept in bars if not kept]


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="a small recorded trace to repeat (default: one of traces/)")
    parser.add_argument("--megabytes", type=float, default=500)
    parser.add_argument("--events", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hta-python", help="a Python that has HolisticTraceAnalysis 0.5.0 and pandas < 3")
    parser.add_argument("--bars", action="store_true", help="exit with 1 when a bar is missed")
    args = parser.parse_args()
    small = args.trace or next(iter(sorted((HERE.parent / "traces").glob("**/rank0*.json*"))), None)
    if small is None:
        parser.error("no recorded trace in traces/; give one with --trace")
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / "rank0.json"
        megabytes = 0 if args.events else args.megabytes
        count = large_trace.build(small, large, megabytes=megabytes, events=args.events)
        print(f"{large.stat().st_size / 1e6:.1f} MB, {count:,} events, from {small.name}")
        best = rounds(large, args.rounds, args.hta_python, str(Path(folder) / "cache"))
        missed = report(best, large.stat().st_size)
    return 1 if missed and args.bars else 0


if __name__ == "__main__":
    sys.exit(main())
