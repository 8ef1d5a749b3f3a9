"""Show what was recorded: ranks, axes, steps, devices, versions, health."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from usp_prof.cli.opening import open_from, output, run_options, write_out
from usp_prof.model.printable import first_and_more
from usp_prof.report.words import health_lines
from usp_prof.run import Run

EXAMPLES = """\
  usp-prof info traces/my-run
  usp-prof info 'traces/*/rank0*.json.gz' --run before
  usp-prof info traces/my-run --format json
"""
_SEVERITY_STYLE = {"data_loss": "bold red", "error": "yellow", "info": "dim"}
_RANKS = """
    SELECT r.rank, r.host, r.device, r.events, r.bytes,
           (SELECT count(*) FROM kernels k WHERE k.rank = r.rank AND k.kind NOT IN ('memcpy', 'memset')) AS kernels,
           (SELECT count(*) FROM kernels k WHERE k.rank = r.rank AND k.kind IN ('memcpy', 'memset')) AS copies,
           (SELECT count(*) FROM collectives c WHERE c.rank = r.rank) AS collectives,
           (SELECT min(step) FROM steps s WHERE s.rank = r.rank) AS first_step,
           (SELECT max(step) FROM steps s WHERE s.rank = r.rank) AS last_step,
           (SELECT count(*) FROM steps s WHERE s.rank = r.rank) AS steps,
           r.last_ns - r.first_ns AS span_ns, r.torch, r.backend, r.world_size, r.device_kind, r.file
    FROM ranks r ORDER BY r.rank
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    run_options(parser)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Print the description of the run."""
    opened = open_from(args)
    ranks = opened.query(_RANKS).to_arrow_table().to_pylist()
    if args.format == "json":
        write_out(json.dumps(_as_data(opened, ranks), indent=2) + "\n")
        return 0
    console = output(args)
    _overview(console, opened, ranks)
    _rank_table(console, ranks)
    _health(console, opened)
    return 0


def _as_data(opened: Run, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    topology = opened.tables.topology
    return {
        "run": opened.name,
        "others": list(opened.others),
        "axes": dict(topology.axes),
        "axes_source": topology.source,
        "groups": [
            {
                "group": group.key,
                "description": group.description,
                "size": group.size,
                "axis": str(group.axis),
                "axis_source": str(group.axis_source),
                "axis_reason": group.axis_reason,
            }
            for group in topology.groups
        ],
        "coordinates": {str(rank): dict(place) for rank, place in sorted(topology.coordinates.items())},
        "ranks": ranks,
        "health": [asdict(row) for row in opened.health],
    }


def _overview(console: Console, opened: Run, ranks: list[dict[str, Any]]) -> None:
    topology = opened.tables.topology
    axes = " x ".join(f"{axis} {size}" for axis, size in topology.axes.items()) or "none known"
    world = max((row["world_size"] for row in ranks), default=-1)
    megabytes = sum(row["bytes"] for row in ranks) / 1e6
    rows = {
        "run": opened.name,
        "others": _other_runs(opened),
        "ranks": f"{len(ranks)}" + (f" of {world}" if world > len(ranks) else ""),
        "axes": axes + (f" ({topology.source})" if topology.axes else ""),
        "groups": str(len(topology.groups)),
        "steps": _steps(ranks),
        "devices": _devices(ranks),
        "hosts": _distinct(ranks, "host") or "not recorded",
        "torch": _distinct(ranks, "torch") or "not recorded",
        "backend": _distinct(ranks, "backend") or "not recorded",
        "events": f"{sum(row['events'] for row in ranks):,} in {megabytes:,.1f} MB of JSON",
    }
    for name, value in rows.items():
        if value:
            console.print(f"{name:9}{value}", markup=False)


def _other_runs(opened: Run) -> str:
    """Return the other runs in the same place, one per line; each can be opened by its name."""
    if not opened.others:
        return ""
    lines = (f"\n{'':9}{name}" for name in opened.others)
    return f"{len(opened.others)} more runs here, to be opened as FOLDER/NAME or by --run NAME:{''.join(lines)}"


def _steps(ranks: list[dict[str, Any]]) -> str:
    spans = {(row["first_step"], row["last_step"], row["steps"]) for row in ranks}
    if len(spans) == 1:
        first, last, count = spans.pop()
        if count == 1:
            return f"1 (step {first})"
        return "none" if not count else f"{count} (from {first} to {last})"
    return "differ between ranks"


def _devices(ranks: list[dict[str, Any]]) -> str:
    device_names = _distinct(ranks, "device")
    kinds = {row["device_kind"] for row in ranks}
    if "unrecorded" not in kinds:
        return device_names or "CPU only"
    label = device_names or "unnamed"
    return f"{label}, " + ("not recorded" if kinds == {"unrecorded"} else "on some ranks not recorded")


def _distinct(ranks: list[dict[str, Any]], column: str) -> str:
    return first_and_more(sorted({row[column] for row in ranks if row[column]}), 6)


def _rank_table(console: Console, ranks: list[dict[str, Any]]) -> None:
    lined = box.SIMPLE_HEAD if console.is_terminal else None
    table = Table(box=lined, pad_edge=False, show_edge=False, padding=(0, 1 if lined else 2, 0, 0))
    for name in ("rank", "events", "kernels", "copies", "collectives", "steps", "span ms"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("file", overflow="fold")
    for row in ranks:
        counts = (f"{row[name]:,}" for name in ("events", "kernels", "copies", "collectives"))
        table.add_row(str(row["rank"]), *counts, str(row["steps"]), f"{row['span_ns'] / 1e6:,.1f}", row["file"])
    console.print()
    console.print(table)


def _health(console: Console, opened: Run) -> None:
    console.print()
    if not opened.health:
        console.print("health   no data lost (notes on figures: usp-prof analyze --section health)")
    worst_first = sorted(opened.health, key=lambda row: (list(_SEVERITY_STYLE).index(row.severity), row))
    for severity, problem in health_lines(worst_first):
        console.print(Text.assemble((severity, _SEVERITY_STYLE[severity]), f" {problem}"), soft_wrap=False)
