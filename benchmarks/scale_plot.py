"""Table and plot of the measurements of `scale.py --results`: CPU time and memory over the number of ranks.

    python benchmarks/scale_plot.py scale.csv docs/images/scale.svg

The table is printed. Straight lines through the origin in the upper plot mean time proportional to the ranks.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from usp_prof.charts.svg_marks import WIDTH, framed, legend_row, line, text_at, ticks
from usp_prof.charts.theme import LIGHT

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
    across, up = max(ranks), max(max(each) for each in values.values())
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
    parts.append(f'<g transform="translate(0,{top - 34})">{legend_row(entries, LEFT + 20, LIGHT)}</g>')
    return parts


def main() -> int:
    """Print the table, write the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, metavar="CSV")
    parser.add_argument("plot", type=Path, metavar="SVG")
    args = parser.parse_args()
    with args.results.open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: (int(row["events"]), int(row["ranks"])))
    print(table(rows))
    parts = [*panel(rows, SECONDS, "CPU s", TOP), *panel(rows, MEGABYTES, "MB", TOP + PANEL + GAP)]
    args.plot.write_text(framed(parts, TOP + 2 * PANEL + GAP + 30, LIGHT) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
