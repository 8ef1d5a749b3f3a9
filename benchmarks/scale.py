"""Cost of runs with many ranks, cold and warm, checked on synthetic ranks with known ground truth.

    python benchmarks/scale.py                          8 and 64 ranks of 5,000 events
    python benchmarks/scale.py --events 50000
    python benchmarks/scale.py --ranks 8,64,256,512,1024 --results scale.csv --sets FOLDER
    python benchmarks/scale.py --plot scale.csv docs/images/scale.svg  the table and plot of docs/reference/scale.md

The run has dp x tp x pp with a slow rank, skewed clocks per host of 8 ranks, and a longer last stage. Cold reads the
traces with worker processes, warm opens the store. CPU time is measured rather than wall time, because other load
affects it less. Exits with 1 if the culprit, an offset (20 us) or the bubble (0.5 points) is wrong.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, astuple, dataclass, fields
from multiprocessing import get_context
from pathlib import Path

from harness import Program, measure

from usp_prof.charts.svg_marks import WIDTH, framed, legend_row, line, text_at, ticks
from usp_prof.charts.theme import LIGHT
from usp_prof.extras.synth.declaration import Declaration, with_events
from usp_prof.extras.synth.write import write
from usp_prof.run import open_run

ANALYZE = Program(
    "",
    """
from usp_prof.cli.app import main
assert main(["analyze", *arguments]) == 0
spent = os.times()
results["workers_s"] = spent.children_user + spent.children_system
""",
)
OFFSET_NS, BUBBLE = 20_000, 0.005
PIPELINE, TENSOR = 4, 2
LEFT, RIGHT, PANEL, GAP, TOP = 70, WIDTH - 30, 180, 60, 40
SECONDS = {
    "cold, head": ("cold_head_s", "compute"),
    "cold, workers": ("cold_workers_s", "comm"),
    "warm": ("warm_head_s", "memcpy"),
}
MEGABYTES = {
    "cold, head": ("cold_head_mb", "compute"),
    "one worker": ("cold_worker_mb", "comm"),
    "warm": ("warm_head_mb", "memcpy"),
}


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


def analyze(folder: Path, store: Path, report: Path) -> list[float]:
    """Run the analysis in a separate process, and return a row's values of it."""
    cost = measure(ANALYZE, folder, "--store", store, "--format", "json", "-o", report, "-q")
    workers_s = cost.results["workers_s"]
    megabytes = (size / 2**20 for size in (cost.peak_bytes, cost.largest_child_bytes))
    return [round(value, 1) for value in (cost.cpu_s - workers_s, workers_s, *megabytes, cost.wall_s)]


def worst_offset(folder: Path, store: Path) -> float:
    """Return the largest error of a rank's clock in ns, after removing the common offset."""
    truth = json.loads((folder / "truth.json").read_text())["clocks"]
    rows = open_run(folder, cache_dir=store).sql("SELECT rank, offset_ns FROM clock ORDER BY rank").fetchall()
    errors = [offset + truth[str(rank)]["offset_ns"] for rank, offset in rows]
    middle = sorted(errors)[len(errors) // 2]
    return max(abs(error - middle) for error in errors)


def errors_of(run: Path, base: Path) -> list[str]:
    """Return what the analysis got wrong: culprit, clocks, bubble."""
    report = json.loads((base / "report.json").read_text())
    truth = json.loads((run / "truth.json").read_text())
    mistakes = []
    if report["findings"][0]["where"].get("rank") != truth["culprits"][0]["rank"]:
        mistakes.append("another culprit")
    offset = worst_offset(run, base / "store")
    if offset > OFFSET_NS:
        mistakes.append(f"a clock is {offset / 1000:.0f} us off")
    measured = {
        str(metric["dims"]["step"]): metric["value"]
        for metric in report["metrics"]
        if metric["id"] == "bubble_fraction" and set(metric["dims"]) == {"step"}
    }
    if measured.keys() != truth["bubble_fraction"].keys():
        return [*mistakes, "no bubble of some steps"]
    bubble = max(abs(value - truth["bubble_fraction"][step]) for step, value in measured.items())
    return mistakes if bubble <= BUBBLE else [*mistakes, f"the bubble is {bubble * 100:.1f} points off"]


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
        cold, warm = (analyze(run, base / "store", base / "report.json") for _ in range(2))
        return Row(ranks, events, round(load, 1), *cold, *warm, ", ".join(errors_of(run, base)))


def table(rows: list[dict[str, str]]) -> str:
    """Return the table in Markdown."""
    lines = [
        "| ranks x events | cold CPU, head + workers | warm CPU | head's peak, cold; warm | worker's | load | right |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        value = {name: float(text) for name, text in row.items() if name != "wrong"}
        lines.append(
            f"| {value['ranks']:,.0f} x {value['events']:,.0f} "
            f"| {value['cold_head_s']:.0f} + {value['cold_workers_s']:.0f} s "
            f"| {value['warm_head_s'] + value['warm_workers_s']:.1f} s | {value['cold_head_mb']:,.0f}; "
            f"{value['warm_head_mb']:,.0f} MB | {value['cold_worker_mb']:,.0f} MB | {value['load']:.0f} "
            f"| {row['wrong'] or 'yes'} |"
        )
    return "\n".join(lines)


def panel(rows: list[dict[str, str]], series: dict[str, tuple[str, str]], unit: str, top: float) -> list[str]:
    """Return the SVG of lines over the number of ranks."""
    ranks = [float(row["ranks"]) for row in rows]
    values = {label: [float(row[column]) for row in rows] for label, (column, _) in series.items()}
    across, up = max(ranks), max(max(heights) for heights in values.values())
    bottom = top + PANEL

    def x(value: float) -> float:
        return LEFT + (RIGHT - LEFT) * value / across

    def y(value: float) -> float:
        return bottom - PANEL * value / up

    parts = [line(LEFT, bottom, RIGHT, bottom, LIGHT.ink), text_at(LEFT, top - 6, unit, LIGHT.ink, "end")]
    parts += [text_at(x(value), bottom + 16, f"{value:,.0f}", LIGHT.ink, "middle") for value in ranks]
    parts += [text_at(LEFT - 6, y(value) + 4, f"{value:,.0f}", LIGHT.ink, "end") for value in ticks(up) if value <= up]
    for label, (_, role) in series.items():
        points = " ".join(f"{x(rank):.1f},{y(value):.1f}" for rank, value in zip(ranks, values[label], strict=True))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{LIGHT.color(role)}" stroke-width="2">'
            f"<title>{label}</title></polyline>"
        )
    entries = [(label, role) for label, (_, role) in series.items()]
    parts.append(f'<g transform="translate(0,{top - 34})">{legend_row(entries, LEFT + 20)}</g>')
    return parts


def plot(results: Path, target: Path) -> None:
    """Print the table of results, and write their plot; lines through the origin mean proportional CPU time."""
    with results.open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: (int(row["events"]), int(row["ranks"])))
    print(table(rows))
    parts = [*panel(rows, SECONDS, "CPU s", TOP), *panel(rows, MEGABYTES, "MB", TOP + PANEL + GAP)]
    target.write_text(framed(parts, TOP + 2 * PANEL + GAP + 30) + "\n")


def main() -> int:
    """Measure each number of ranks, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="8,64", metavar="LIST")
    parser.add_argument("--events", type=int, default=5_000)
    parser.add_argument("--results", metavar="CSV", type=Path, help="add each row to this file")
    parser.add_argument("--sets", metavar="FOLDER", type=Path, help="keep the synthetic runs here, and reuse them")
    parser.add_argument("--plot", nargs=2, metavar=("CSV", "SVG"), type=Path, help="plot results instead")
    args = parser.parse_args()
    if args.plot:
        plot(*args.plot)
        return 0
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
