"""Shared parts of the benchmarks: cost of a program in a separate process, bars, synthetic and recorded runs, tables.

A program's imports run before its clock starts, for ours as for others. The program marks its parts with `lap(name)`;
what runs after the last lap is not measured. It puts other values into `results`, and finds its arguments in
`arguments`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import large_trace

from usp_prof.findings import find
from usp_prof.inputs.discovery import discover
from usp_prof.model.edit import parse_edit
from usp_prof.replay.step_times import unedited
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from usp_prof.model.finding import Finding
    from usp_prof.run import Run
    from usp_prof.whatif.predict import Prediction as PredictedStep

ROOT = Path(__file__).resolve().parents[1]
TEST_SUPPORT = ROOT / "tests" / "support"
_FRAME = """
import json, os, resource, sys, time
arguments = sys.argv[1:]
{imports}
laps, results = {{}}, {{}}
def seconds():
    return time.perf_counter(), sum(os.times()[:4])
def peak_bytes(who):
    return resource.getrusage(who).ru_maxrss * 1024
def lap(name):
    global before, peaks
    now = seconds()
    laps[name] = [after - earlier for after, earlier in zip(now, before)]
    peaks = [peak_bytes(resource.RUSAGE_SELF), peak_bytes(resource.RUSAGE_CHILDREN)]
    before = now
before = seconds()
{code}
if not laps:
    lap("all")
print(json.dumps([laps, peaks, results]))
"""


@dataclass(frozen=True, slots=True)
class Program:
    """Imports before the clock starts, and the code to measure."""

    imports: str
    code: str


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one run of a program: seconds per lap, peak memory, and the program's results."""

    laps: dict[str, tuple[float, float]]
    """Wall and CPU seconds; CPU time includes child processes that have ended."""
    peak_bytes: int
    largest_child_bytes: int
    results: dict[str, Any]

    @property
    def wall_s(self) -> float:
        """Wall time of all laps."""
        return sum(wall for wall, _ in self.laps.values())

    @property
    def cpu_s(self) -> float:
        """CPU time of all laps; less than a clock tick cannot be measured."""
        return max(sum(cpu for _, cpu in self.laps.values()), 1 / os.sysconf("SC_CLK_TCK"))

    def __str__(self) -> str:
        """Format the cost as a line."""
        laps = ", ".join(f"{name} {cpu:.2f}" for name, (_, cpu) in self.laps.items())
        return f"{self.cpu_s:8.2f} CPU s {self.wall_s:8.2f} s {self.peak_bytes / 1e6:8.0f} MB   CPU s by part: {laps}"


def measure(program: Program, *arguments: object, python: str = sys.executable) -> Cost:
    """Run a program in a separate process."""
    code = _FRAME.format(imports=program.imports, code=program.code)
    command = [python, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"failed: a measurement ended with {done.returncode}:\n{done.stdout}{done.stderr[-3000:]}")
    laps, (peak, largest_child), results = json.loads(done.stdout.splitlines()[-1])
    return Cost({name: (wall, cpu) for name, (wall, cpu) in laps.items()}, peak, largest_child, results)


def by_turns(programs: Mapping[str, tuple[str, Program]], rounds: int, *arguments: object) -> dict[str, list[Cost]]:
    """Run programs (with their Python) in turn, so that a change of the machine's load affects all of them."""
    costs: dict[str, list[Cost]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, (python, program) in programs.items():
            costs[name].append(measure(program, *arguments, python=python))
    return costs


@dataclass(frozen=True, slots=True)
class Bar:
    """A measured value, its bound, and whether the bound is met."""

    text: str
    is_met: bool


def at_most(label: str, measured: float, bar: float, unit: str = "") -> Bar:
    """Compare a value with its upper bound."""
    return Bar(f"{label}: {measured:.2f}{unit} (at most {bar:g}{unit})", measured <= bar)


def at_least(label: str, measured: float, bar: float, unit: str = "") -> Bar:
    """Compare a value with its lower bound."""
    return Bar(f"{label}: {measured:.2f}{unit} (at least {bar:g}{unit})", measured >= bar)


def status(bars: Sequence[Bar]) -> int:
    """Print the bars, and return the exit status: 1 if one is missed."""
    for bar in bars:
        print(f"{'ok    ' if bar.is_met else 'MISSED'} {bar.text}")
    return int(not all(bar.is_met for bar in bars))


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted share of the step, with its stated error, and the true or measured share."""

    predicted: float
    error: float
    truth: float

    @property
    def off(self) -> float:
        """Distance from the truth."""
        return abs(self.predicted - self.truth)

    @property
    def holds(self) -> bool:
        """Whether the truth is within the stated error."""
        return self.off <= self.error


def in_cells(predictions: Sequence[Prediction]) -> str:
    """Return the cells of a table: number, range of truths, median and worst error in points, and how many hold."""
    off = [100 * prediction.off for prediction in predictions]
    low, high = (100 * bound(prediction.truth for prediction in predictions) for bound in (min, max))
    holds, count = sum(prediction.holds for prediction in predictions), len(predictions)
    return f"{count} | {low:.0f}-{high:.0f}% | {median(off):.1f} | {max(off):.1f} | {holds} of {count}"


def repair_of(run: Run, code: str, edit: str, in_both: str) -> tuple[list[Finding], Finding | PredictedStep | None]:
    """Return the findings of a faulty run, and the predicted repair: by `edit`, if the finding names another one.

    Findings with the code `in_both`, of a fault that the repaired run has too, are left out.
    """
    findings = [finding for finding in find(run.tables) if finding.code != in_both]
    expected = next((finding for finding in findings if finding.code == code), None)
    return findings, predict(run.tables, [parse_edit(edit)]) if expected and edit else expected


def gain_of(repair: Finding | PredictedStep | None, faulty: Run, repaired: Run) -> Prediction:
    """Compare the predicted gain of a repair (0 without one) with that of the repaired run."""
    before, after = (unedited(run.tables).mean_measured_ns for run in (faulty, repaired))
    gain, error = (repair.gain_fraction, repair.error_fraction) if repair else (0.0, 0.0)
    return Prediction(gain, error, 1 - after / before)


def case_options(doc: str | None) -> argparse.Namespace:
    """Parse the folders of the runs of a benchmark, and the page for its table."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--page", type=Path, help="write the table between its marks in this page")
    return parser.parse_args()


def accuracy(predictions: Sequence[Prediction], first: float) -> list[Bar]:
    """Return the bars of predicted repairs, with the share of cases whose fault is the first finding."""
    points = [100 * prediction.off for prediction in predictions]
    signs = sum(prediction.predicted > 0 for prediction in predictions)
    within = sum(prediction.holds for prediction in predictions)
    print(f"sign right: {signs} of {len(points)}; within the stated error: {within} of {len(points)}")
    return [
        at_most("gain error, median", median(points), 3, " points"),
        at_most("gain error, worst", max(points), 6, " points"),
        at_least(f"share of {len(points)} cases whose fault is the first finding", first, 0.95),
    ]


def synthesize(folder: Path, *options: str) -> Path:
    """Write a synthetic run with the options of `usp-prof synth`."""
    subprocess.run([sys.executable, "-m", "usp_prof.cli.app", "synth", folder, *options, "-q"], check=True, cwd=ROOT)
    return folder


def enlarge(source: Path, folder: Path, *, megabytes: float = 0, events: int = 0) -> Path:
    """Repeat each rank of a run up to its share of the megabytes, or up to a number of events."""
    files = [file.path for file in discover(source).runs[0].files]
    folder.mkdir()
    apart_us = large_trace.span_us(files)
    for path in files:
        target = folder / path.name.removesuffix(".gz")
        large_trace.build(path, target, megabytes=megabytes / len(files), events=events, apart_us=apart_us)
    return folder


def record(folder: Path, processes: int, options: str) -> None:
    """Record a run of the trainer, unless it exists."""
    if (folder / "run.json").exists():
        return
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command += ["trainer/run.py", "--profile", "--no-profile-memory", *options.split(), "--output", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, check=True, env=environment, timeout=300, stdout=subprocess.DEVNULL)
    print(f"recorded {folder.parent.name} {folder.name}", flush=True)


def write_table(lines: Sequence[str], page: Path | None, begin: str, end: str) -> None:
    """Print a table, and replace what is between the marks of the page, if one is given."""
    print("\n".join(lines))
    if page is not None:
        before, rest = page.read_text(encoding="utf-8").split(begin)
        page.write_text("\n".join([before + begin, "", *lines, "", end + rest.split(end)[1]]), encoding="utf-8")
