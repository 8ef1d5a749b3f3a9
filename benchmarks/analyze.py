"""Cost of a complete report, cold and warm, compared with HTA's load, breakdown and overlap; of findings and replays.

    python benchmarks/analyze.py                                   8 ranks, 500 MB
    python benchmarks/analyze.py --hta-python /tmp/hta/bin/python  compare with HolisticTraceAnalysis
    python benchmarks/analyze.py --source FOLDER                   repeat another run's ranks
    python benchmarks/analyze.py --findings 64                     one replay of 8 ranks, all findings of 64 ranks, with
                                                                   200,000 events each (6 GB of disk)

Runs are synthetic (GPU, tensor and pipeline parallel) and repeated to size. Each measurement is a separate process and
includes its children's CPU time; imports are not counted for either tool. A warm report reads the cached findings of
the cold one; the third report is warm but computes the findings again. Results are medians of several rounds. In each
round HTA runs after our own cold report. The two tools are compared by their minimum times, because other load can only
add time. Findings and replays are timed from the opened run. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

from harness import Bar, Program, at_least, at_most, enlarge, measure, status, synthesize

MESHES = {8: "dp=2,tp=2,pp=2", 64: "dp=8,tp=2,pp=4"}
REPLAYED_RANKS = 8

# Modules that load on first use are imported before the clock starts, because HTA has loaded all of its own by then.
_OURS = """
import io
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from rich.console import Console
from usp_prof import analyses, checking, findings, open_run, whatif
from usp_prof.findings.search import search
from usp_prof.gate.measured import Baseline, save
from usp_prof.replay.build import graph_of
from usp_prof.replay.longest_path import replay
from usp_prof.replay.plan import make_plan
from usp_prof.report import sections
from usp_prof.report.build import analyze, build
from usp_prof.report.writers import terminal
for package in (analyses, findings, whatif, sections):
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        import_module(module.name)
folder, cache = arguments
"""
_OPEN = """
run = open_run(folder, cache_dir=cache)
lap("open")
"""
_REPORT = """
analyzed = analyze(run.tables)
lap("analyze")
document = build(run.tables, analyzed, name=run.name)
lap("findings and document")
terminal.write(document, Console(file=io.StringIO(), width=80))
lap("write")
"""
REPORT = Program(_OURS, _OPEN + _REPORT)
WITHOUT_CACHED_FINDINGS = Program(_OURS, _OPEN + "run.tables.kept = None\n" + _REPORT)
CHECK = Program(
    _OURS,
    _OPEN
    + """
after = checking.measured(run)
lap("measure")
file = str(Path(cache) / "baseline.json")
save(Baseline((after,)), file)
report = checking.check_measured(after, checking.read_terms(file))
checking.text(report)
lap("check")
""",
)
FINDINGS = Program(
    _OURS,
    _OPEN
    + """
found = search(run.tables)
lap("findings")
results["counts"] = f"{len(found.findings)} findings, {len(found.skipped)} rules skipped"
""",
)
REPLAY = Program(
    _OURS,
    _OPEN
    + """
graph = graph_of(run.tables)
lap("graph")
plan = make_plan(graph)
lap("plan")
replay(graph, plan)
lap("replay")
segments, rounds = (sum(len(getattr(block, name)) for block in plan.blocks) for name in ("heads", "rounds"))
results["counts"] = f"{len(graph.nodes):,} nodes in {segments:,} segments and {rounds:,} rounds"
""",
)
HTA = Program(
    """
import logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
folder, cache = arguments
""",
    """
analysis = TraceAnalysis(trace_dir=folder)
lap("load")
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
lap("breakdown and overlap")
""",
)


def small_run(place: Path, ranks: int) -> Path:
    """Write the synthetic run that is repeated."""
    return synthesize(place / f"small{ranks}", "--mesh", MESHES[ranks], "--micro-batches", "8")


def reports(place: Path, run: Path, rounds: int, hta_python: str | None) -> list[Bar]:
    """Measure reports and checks of a run."""
    caches = [place / f"cache{number}" for number in range(rounds)]
    cold_s, hta_s, bars = [], [], []
    for cache in caches:
        cost = measure(REPORT, run, cache)
        print(f"cold    {cost}")
        cold_s.append(cost.cpu_s)
        if hta_python:
            cost = measure(HTA, run, cache, python=hta_python)
            print(f"HTA     {cost}")
            hta_s.append(cost.cpu_s)
    for name, program, bar_s in (
        ("report", REPORT, 3),
        ("check", CHECK, 5),
        ("no cache", WITHOUT_CACHED_FINDINGS, None),
    ):
        costs = [measure(program, run, caches[0]) for _ in range(rounds)]
        print(*(f"{name:8}{cost}" for cost in costs), sep="\n")
        if bar_s is not None:
            bars.append(at_most(f"a warm {name}", median(cost.wall_s for cost in costs), bar_s, " s"))
    if hta_s:
        ratio = median(hta_s) / median(cold_s)
        bars.append(at_least(f"CPU of HTA / of a cold report (by medians {ratio:.1f})", min(hta_s) / min(cold_s), 10))
    return bars


def findings(place: Path, ranks: int, events: int, rounds: int) -> list[Bar]:
    """Measure a replay of 8 ranks, and the findings of some."""
    bars = []
    for size, name, program, bar_s in ((REPLAYED_RANKS, "replay", REPLAY, 2), (ranks, "findings", FINDINGS, 60)):
        run, cache = place / f"run{size}", place / "cache"
        if not run.exists():
            enlarge(small_run(place, size), run, events=events)
            measure(REPLAY, run, cache)
        costs = [measure(program, run, cache) for _ in range(rounds)]
        print(f"{size} ranks x {events:,} events", *(f"{cost}; {cost.results['counts']}" for cost in costs), sep="\n")
        bars.append(at_most(f"{name} of {size} ranks", median(cost.laps[name][0] for cost in costs), bar_s, " s"))
    return bars


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, help="the run to repeat (default: a synthetic one)")
    parser.add_argument("--megabytes", type=float, default=500)
    parser.add_argument("--hta-python", help="a Python that has HolisticTraceAnalysis 0.5.0 and pandas < 3")
    parser.add_argument(
        "--findings", type=int, choices=sorted(MESHES), help="measure findings of this many ranks instead"
    )
    parser.add_argument("--events", type=int, default=200_000, help="with --findings: events per rank")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        if args.findings:
            return status(findings(place, args.findings, args.events, args.rounds))
        run = enlarge(args.source or small_run(place, REPLAYED_RANKS), place / "run", megabytes=args.megabytes)
        sizes = [file.stat().st_size for file in run.iterdir()]
        print(f"{len(sizes)} ranks, {sum(sizes) / 1e6:.0f} MB")
        return status(reports(place, run, args.rounds, args.hta_python))


if __name__ == "__main__":
    sys.exit(main())
