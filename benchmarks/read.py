"""Speed and memory of reading a trace, compared with a bare decode and with HTA in the same run.

    python benchmarks/read.py                                    one trace of 520 MB, eight ranks of 65 MB, imports
    python benchmarks/read.py --hta-python /tmp/hta/bin/python   compare with HolisticTraceAnalysis' load of the one
    python benchmarks/read.py --growth                           3 and 12 million events in one file: needs 8 GB of disk

Each measurement is a separate process; rounds are interleaved, and results are medians. Every bar is printed with its
ratio; the exit code is 1 if one is missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import large_trace
import read_bodies as bodies
from timed_process import Figures, measure

HERE = Path(__file__).parent
RANKS = 8
MILLIONS = (3, 12)


@dataclass(frozen=True, slots=True)
class Bar:
    """A requirement, the measured value, and whether it is met."""

    text: str
    kept: bool

    def __str__(self) -> str:
        """Format the bar as a line."""
        return f"{'ok    ' if self.kept else 'MISSED'} {self.text}"


def at_most(what: str, measured: float, bar: float, unit: str = "") -> Bar:
    """Compare a value with its upper bound."""
    return Bar(f"{what}: {measured:.2f}{unit} (at most {bar:g}{unit})", measured <= bar)


def at_least(what: str, measured: float, bar: float, unit: str = "") -> Bar:
    """Compare a value with its lower bound."""
    return Bar(f"{what}: {measured:.2f}{unit} (at least {bar:g}{unit})", measured >= bar)


def rounds(wanted: dict[str, tuple[str, bodies.Body]], path: Path, cache: Path, count: int) -> dict[str, Figures]:
    """Interleave measurements, and return the medians of each."""
    found: dict[str, list[Figures]] = {name: [] for name in wanted}
    for _ in range(count):
        for name, (python, body) in wanted.items():
            found[name].append(measure(python, body, str(path), str(cache)))
    return {name: Figures.median(each) for name, each in found.items()}


def show(figures: dict[str, Figures], size: int) -> None:
    """Print a table of the measurements."""
    print(f"{'':10}{'CPU s':>8}{'wall s':>8}{'MB/CPU s':>10}{'peak MB':>9}{'peak/size':>11}")
    for name, got in figures.items():
        line = f"{name:10}{got.cpu:8.2f}{got.wall:8.2f}{size / 1e6 / got.cpu:10.0f}"
        print(line + f"{got.peak / 1e6:9.0f}{got.peak / size:11.2f}")


def one_trace(large: Path, count: int, hta_python: str | None, folder: Path) -> list[Bar]:
    """Measure one large trace."""
    wanted = {name: (sys.executable, body) for name, body in bodies.OURS.items()}
    if hta_python:
        wanted["hta"] = (hta_python, bodies.HTA)
    measure(sys.executable, bodies.WARM, str(large), str(folder / "cache"))
    figures = rounds(wanted, large, folder / "cache", count)
    size = large.stat().st_size
    show(figures, size)
    bare, cold = figures["bare"].cpu, figures["cold"]
    bars = [
        at_most("CPU of a file to all its tables / a bare typed decode", figures["tables"].cpu / bare, 3),
        at_most("CPU of a cold open_run, hashed and stored as well / a bare typed decode", cold.cpu / bare, 3),
        at_most("peak memory of a cold open_run / size of the file", cold.peak / size, 1),
        at_most("warm open_run with its first table", figures["warm"].wall, 1, " s"),
    ]
    if "hta" in figures:
        hta = figures["hta"].cpu
        bars.append(at_least("CPU of HTA's load / of a file to all its tables", hta / figures["tables"].cpu, 15))
        bars.append(at_least("CPU of HTA's load / of a cold open_run", hta / cold.cpu, 15))
    return bars


def many_ranks(small: Path, megabytes: float, count: int, folder: Path) -> list[Bar]:
    """Measure the ranks of one run, read in parallel."""
    run = folder / "run"
    run.mkdir()
    first = run / "rank0.json"
    large_trace.build(small, first, megabytes=megabytes / RANKS)
    text = first.read_bytes()
    for rank in range(RANKS):
        (run / f"rank{rank}.json").write_bytes(large_trace.of_rank(text, rank, RANKS))
    del text
    got = rounds({"ranks": (sys.executable, bodies.RANKS)}, run, folder / "none", count)
    size = sum(file.stat().st_size for file in run.iterdir())
    show(got, size)
    cores = min(bodies.cores(), RANKS)
    busy = got["ranks"].cpu / got["ranks"].wall
    return [at_least(f"{RANKS} ranks side by side on {cores} cores: cores kept busy / cores", busy / cores, 0.8)]


def growth(small: Path, folder: Path) -> list[Bar]:
    """Measure how the peak grows with the number of events."""
    peaks, sizes, columns = [], [], []
    for millions in MILLIONS:
        large = folder / f"{millions}m.json"
        count = large_trace.build(small, large, events=millions * 1_000_000)
        got = measure(sys.executable, bodies.COLD, str(large), str(folder / "none"))
        sizes.append(large.stat().st_size)
        peaks.append(got.peak)
        columns.append(got.extra)
        large.unlink()
        print(f"{count:,} events, {sizes[-1] / 1e6:.0f} MB, columns of {columns[-1] / 1e6:.0f} MB: {got}", flush=True)
    peak, size, column = (values[1] - values[0] for values in (peaks, sizes, columns))
    print(f"from {MILLIONS[0]} to {MILLIONS[1]} million events the peak grows by {peak / size:.2f} of the JSON")
    return [
        at_most("growth of peak memory / growth of the tables' columns without arguments", peak / column, 2),
        *(
            at_most(f"peak memory / size of the file at {millions} million events", peak / size, 1)
            for millions, peak, size in zip(MILLIONS, peaks, sizes, strict=True)
        ),
    ]


def imports(count: int) -> list[Bar]:
    """Measure the cost of `import usp_prof`."""
    times = [measure(sys.executable, bodies.IMPORT, "", "").cpu for _ in range(max(count, 3))]
    return [at_most("CPU of import usp_prof", median(times), 0.15, " s")]


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
    small = args.trace or next(iter(sorted((HERE.parent / "traces").glob("**/rank0.json*"))), None)
    if small is None:
        parser.error("no recorded trace in traces/; give one with --trace")
    print(f"{bodies.cores()} cores, {args.rounds} rounds, from {small.name}")
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.growth:
            bars += growth(small, folder)
        if not args.growth and args.only in {None, "one"}:
            large = folder / "rank0.json"
            count = large_trace.build(small, large, megabytes=args.megabytes)
            print(f"{large.stat().st_size / 1e6:.1f} MB, {count:,} events")
            bars += one_trace(large, args.rounds, args.hta_python, folder)
            large.unlink()
        if not args.growth and args.only in {None, "ranks"}:
            bars += many_ranks(small, args.megabytes, args.rounds, folder)
        if not args.growth and args.only in {None, "imports"}:
            bars += imports(args.rounds)
    print(*bars, sep="\n")
    return int(not all(bar.kept for bar in bars))


if __name__ == "__main__":
    sys.exit(main())
