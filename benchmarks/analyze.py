"""Cost of a complete report, cold and warm, compared with HTA's load, breakdown and overlap on the same files.

    python benchmarks/analyze.py                                   8 ranks, 500 MB
    python benchmarks/analyze.py --hta-python /tmp/hta/bin/python  compare with HolisticTraceAnalysis
    python benchmarks/analyze.py --source FOLDER                   repeat another run's ranks

The run is a synthetic one (GPU, dp 2 x tp 2 x pp 2) repeated to size. Each measurement is a separate process, and
includes its children's CPU time; imports are not counted for either tool. A warm report reads the cached findings of
the cold one; the third report is warm but computes the findings again. Results are medians of several rounds. In each
round HTA runs after our own cold report. The two tools are compared by their minimum times, because other load can only
add time. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import large_trace

from usp_prof.inputs.discovery import discover

LOADED = """
from importlib import import_module
from pkgutil import walk_packages
from usp_prof import analyses, findings, whatif
from usp_prof.report import sections
for package in (analyses, findings, whatif, sections):
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        import_module(module.name)
"""
"""Modules loaded on first use, because HTA has loaded all of its own by then; memory is limited as in the CLI."""
OURS = (
    LOADED
    + """
import io
from rich.console import Console
from usp_prof import open_run
from usp_prof.report.build import analyse, build
from usp_prof.report.writers import terminal
WORK = '''
run = open_run(FOLDER, cache_dir=CACHE)
lap("open")
results = analyse(run.tables)
lap("analyse")
document = build(run.tables, results, name=run.name)
lap("findings and document")
terminal.write(document, Console(file=io.StringIO(), width=80))
lap("write")
'''
"""
)
CHECK = (
    LOADED
    + """
from usp_prof import open_run
from usp_prof import checking
from usp_prof.gate.measured import Baseline, save
from pathlib import Path
WORK = '''
run = open_run(FOLDER, cache_dir=CACHE)
lap("open")
after = checking.measured(run)
lap("measure")
file = str(Path(CACHE) / "baseline.json")
save(Baseline((after,)), file)
report = checking.check_measured(after, checking.Demand(baseline=file).read())
checking.text(report)
lap("check")
'''
"""
)
ANEW = OURS.replace('lap("open")', 'run.tables.kept = None\nlap("open")')
"""The same report without cached findings."""
HTA = """
import logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
WORK = '''
analysis = TraceAnalysis(trace_dir=FOLDER)
lap("load")
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
lap("breakdown and overlap")
'''
"""
FRAME = """
import json, os, resource, sys, time
FOLDER, CACHE = sys.argv[1:3]
{body}
laps = {{}}
def cpu():
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
def lap(name):
    laps[name] = cpu() - start - sum(laps.values())
if __name__ == "__main__":
    wall, start = time.perf_counter(), cpu()
    exec(WORK)
    who = resource.RUSAGE_SELF
    print(json.dumps({{"wall": time.perf_counter() - wall, "cpu": cpu() - start, "laps": laps,
                      "peak": resource.getrusage(who).ru_maxrss * 1024}}))
"""


def measure(python: str, body: str, folder: Path, cache: Path) -> dict[str, object]:
    """Run one measurement in a separate process."""
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "measure.py"
        script.write_text(FRAME.format(body=body))
        done = subprocess.run([python, script, folder, cache], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"failed:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def enlarge(source: Path, folder: Path, megabytes: float) -> int:
    """Repeat each rank of a run to its share of the size, and return the number of bytes written."""
    files = [each.path for each in discover(source).runs[0].files]
    folder.mkdir()
    apart = large_trace.span_us(files)
    for path in files:
        name, share = path.name.removesuffix(".gz"), megabytes / len(files)
        large_trace.build(path, folder / name, megabytes=share, apart_us=apart)
    return sum(path.stat().st_size for path in folder.iterdir())


def made_up(folder: Path) -> Path:
    """Write the synthetic run that is repeated."""
    words = ["-m", "usp_prof.cli.app", "synth", str(folder), "--mesh", "dp=2,tp=2,pp=2", "--micro-batches", "8", "-q"]
    subprocess.run([sys.executable, *words], check=True)
    return folder


def show(name: str, got: dict[str, object]) -> float:
    """Print one measurement, and return its CPU time."""
    cpu, laps = float(str(got["cpu"])), got["laps"]
    parts = ", ".join(f"{lap} {seconds:.2f}" for lap, seconds in laps.items()) if isinstance(laps, dict) else ""
    print(f"{name:8}{cpu:8.2f} CPU s{float(str(got['wall'])):8.2f} s{float(str(got['peak'])) / 1e6:8.0f} MB   {parts}")
    return cpu


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, help="the run to repeat (default: a made-up one)")
    parser.add_argument("--megabytes", type=float, default=500)
    parser.add_argument("--hta-python", help="a Python that has HolisticTraceAnalysis 0.5.0 and pandas < 3")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    bars = []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        size = enlarge(args.source or made_up(place / "small"), place / "run", args.megabytes)
        print(f"{len(list((place / 'run').iterdir()))} ranks, {size / 1e6:.0f} MB")
        caches = [place / f"cache{number}" for number in range(args.rounds)]
        cold, hta = [], []
        for cache in caches:
            cold.append(show("cold", measure(sys.executable, OURS, place / "run", cache)))
            if args.hta_python:
                hta.append(show("HTA", measure(args.hta_python, HTA, place / "run", cache)))
        for kind, body, most in (("report", OURS, 3), ("check", CHECK, 5), ("anew", ANEW, None)):
            took = [measure(sys.executable, body, place / "run", caches[0]) for _ in range(args.rounds)]
            for got in took:
                show(kind, got)
            usual = median(float(str(got["wall"])) for got in took)
            if most is not None:
                bars.append((f"a warm {kind} takes {usual:.2f} s (at most {most})", usual <= most))
        if hta:
            least, usual = min(hta) / min(cold), median(hta) / median(cold)
            text = f"a cold report takes 1/{least:.1f} of the CPU of HTA (at most 1/10; by medians 1/{usual:.1f})"
            bars.append((text, least >= 10))
    for text, kept in bars:
        print(f"{'ok    ' if kept else 'MISSED'} {text}")
    return 0 if all(kept for _, kept in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
