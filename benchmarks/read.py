"""Speed and memory of reading a trace, compared with a bare decode and with HTA in the same run.

    python benchmarks/read.py                                    one trace of 520 MB, eight ranks of 65 MB, imports
    python benchmarks/read.py --hta-python /tmp/hta/bin/python   compare with HolisticTraceAnalysis' load of the one
    python benchmarks/read.py --growth                           3 and 12 million events in one file: needs 8 GB of disk

Each measurement is a separate process; rounds are interleaved, and results are medians. Every bar is printed with its
ratio; the exit code is 1 if one is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import large_trace
from harness import ROOT, Bar, Program, at_least, at_most, by_turns, measure, status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness import Cost

RANKS = 8
MILLIONS = (3, 12)

# Arrow loads pandas with its first number, so that is done before the clock starts.
_OURS = "import duckdb, pyarrow, pyarrow.parquet, usp_prof.run\npyarrow.scalar(0)\npath, *cache = arguments"
BARE = Program(
    "import msgspec\npath, cache = arguments",
    """
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
msgspec.json.decode(open(path, "rb").read(), type=Trace)
""",
)
EVENTS = Program(
    _OURS,
    """
from pathlib import Path
from usp_prof.inputs.kineto.reader import read
read(Path(path))
""",
)
TABLES = Program(
    _OURS,
    """
from pathlib import Path
from usp_prof.store.load import build
tables, _ = build(Path(path), 0, None)
for table in tables.values():
    for _ in table.parts(1 << 17) if hasattr(table, "parts") else ():
        pass
""",
)
COLD = Program(
    _OURS,
    """
import tempfile
from usp_prof import open_run
with tempfile.TemporaryDirectory() as folder:
    run = open_run(path, cache_dir=folder)
    run.query("SELECT sum(events) FROM ranks").fetchall()
    lap("cold")
    from pathlib import Path
    import pyarrow.parquet as pq
    results["columns"] = 0
    for file in Path(folder).rglob("*.parquet"):
        schema, rows = pq.read_schema(file), pq.read_metadata(file).num_rows
        widths = [8 if f.type.bit_width == 64 else 4 for f in map(lambda f: f if not hasattr(f.type, "index_type")
                  else f.with_type(f.type.index_type), schema) if f.name != "args"]
        results["columns"] += rows * sum(widths)
""",
)
MANY = Program(
    _OURS,
    """
import tempfile
from usp_prof import open_run
with tempfile.TemporaryDirectory() as folder:
    run = open_run(path, cache_dir=folder)
    lap("ranks")
""",
)
WARM = Program(
    _OURS,
    """
from usp_prof import open_run
open_run(path, cache_dir=cache[0]).table("kernels").df()
""",
)
IMPORT = Program("", "import usp_prof")
HTA = Program(
    "from hta.common import trace as _\npath, cache = arguments",
    """
import logging
logging.disable(logging.CRITICAL)
from hta.common.trace import Trace
trace = Trace(trace_files={0: path}, trace_dir="")
trace.parse_traces(use_multiprocessing=False)
trace.decode_symbol_ids(use_shorten_name=False)
""",
)


def show(costs: Mapping[str, Sequence[Cost]], size: int) -> None:
    """Print a table of the medians."""
    print(f"{'':10}{'CPU s':>8}{'wall s':>8}{'MB/CPU s':>10}{'peak MB':>9}{'peak/size':>11}")
    for name, rounds in costs.items():
        cpu_s, wall_s = median(cost.cpu_s for cost in rounds), median(cost.wall_s for cost in rounds)
        peak = median(cost.peak_bytes for cost in rounds)
        print(f"{name:10}{cpu_s:8.2f}{wall_s:8.2f}{size / 1e6 / cpu_s:10.0f}{peak / 1e6:9.0f}{peak / size:11.2f}")


def one_trace(large: Path, rounds: int, hta_python: str | None, cache: Path) -> list[Bar]:
    """Measure one large trace."""
    ours = {"bare": BARE, "events": EVENTS, "tables": TABLES, "cold": COLD, "warm": WARM}
    programs = {name: (sys.executable, program) for name, program in ours.items()}
    if hta_python:
        programs["hta"] = (hta_python, HTA)
    measure(WARM, large, cache)
    costs = by_turns(programs, rounds, large, cache)
    size = large.stat().st_size
    show(costs, size)
    cpu_s = {name: median(cost.cpu_s for cost in of_name) for name, of_name in costs.items()}
    peak = median(cost.peak_bytes for cost in costs["cold"])
    bars = [
        at_most("CPU of a file to all its tables / a bare typed decode", cpu_s["tables"] / cpu_s["bare"], 3),
        at_most("CPU of a cold open_run, hashed and stored as well / a bare decode", cpu_s["cold"] / cpu_s["bare"], 3),
        at_most("peak memory of a cold open_run / size of the file", peak / size, 1),
        at_most("warm open_run with its first table", median(cost.wall_s for cost in costs["warm"]), 1, " s"),
    ]
    if hta_python:
        for name, program_name in (("tables", "a file to all its tables"), ("cold", "a cold open_run")):
            bars.append(at_least(f"CPU of HTA's load / of {program_name}", cpu_s["hta"] / cpu_s[name], 15))
    return bars


def many_ranks(small: Path, megabytes: float, rounds: int, folder: Path) -> list[Bar]:
    """Measure the ranks of one run, read in parallel."""
    run = folder / "run"
    run.mkdir()
    first = run / "rank0.json"
    large_trace.build(small, first, megabytes=megabytes / RANKS)
    text = first.read_bytes()
    for rank in range(RANKS):
        (run / f"rank{rank}.json").write_bytes(large_trace.of_rank(text, rank, RANKS))
    del text
    costs = by_turns({"ranks": (sys.executable, MANY)}, rounds, run)
    show(costs, sum(file.stat().st_size for file in run.iterdir()))
    cores = min(usable_cores(), RANKS)
    busy = median(cost.cpu_s / cost.wall_s for cost in costs["ranks"])
    return [at_least(f"{RANKS} ranks in parallel on {cores} cores: busy cores / cores", busy / cores, 0.8)]


def growth(small: Path, folder: Path) -> list[Bar]:
    """Measure how the peak grows with the number of events."""
    peaks, sizes, columns = [], [], []
    for millions in MILLIONS:
        large = folder / f"{millions}m.json"
        count = large_trace.build(small, large, events=millions * 1_000_000)
        cost = measure(COLD, large)
        sizes.append(large.stat().st_size)
        peaks.append(cost.peak_bytes)
        columns.append(cost.results["columns"])
        large.unlink()
        print(f"{count:,} events, {sizes[-1] / 1e6:.0f} MB, columns of {columns[-1] / 1e6:.0f} MB: {cost}", flush=True)
    peak, size, column = (values[1] - values[0] for values in (peaks, sizes, columns))
    print(f"from {MILLIONS[0]} to {MILLIONS[1]} million events the peak grows by {peak / size:.2f} of the JSON")
    return [
        at_most("growth of peak memory / growth of the tables' columns without arguments", peak / column, 2),
        *(
            at_most(f"peak memory / size of the file at {millions} million events", peak / size, 1)
            for millions, peak, size in zip(MILLIONS, peaks, sizes, strict=True)
        ),
    ]


def imports(rounds: int) -> list[Bar]:
    """Measure the cost of `import usp_prof`."""
    return [at_most("CPU of import usp_prof", median(measure(IMPORT).cpu_s for _ in range(max(rounds, 3))), 0.15, " s")]


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="a small recorded trace to repeat (default: one of traces/)")
    parser.add_argument("--megabytes", type=float, default=520)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hta-python", help="a Python that has HolisticTraceAnalysis 0.5.0 and pandas < 3")
    parser.add_argument("--only", choices=("one", "ranks", "imports"), help="measure no more than this")
    parser.add_argument("--growth", action="store_true", help="measure 3 and 12 million events instead")
    args = parser.parse_args()
    small = args.trace or next(iter(sorted((ROOT / "traces").glob("**/rank0.json*"))), None)
    if small is None:
        parser.error("no recorded trace in traces/; give one with --trace")
    print(f"{usable_cores()} cores, {args.rounds} rounds, from {small.name}")
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.growth:
            return status(growth(small, folder))
        if args.only in {None, "one"}:
            large = folder / "rank0.json"
            count = large_trace.build(small, large, megabytes=args.megabytes)
            print(f"{large.stat().st_size / 1e6:.1f} MB, {count:,} events")
            bars += one_trace(large, args.rounds, args.hta_python, folder / "cache")
            large.unlink()
        if args.only in {None, "ranks"}:
            bars += many_ranks(small, args.megabytes, args.rounds, folder)
        if args.only in {None, "imports"}:
            bars += imports(args.rounds)
    return status(bars)


if __name__ == "__main__":
    sys.exit(main())
