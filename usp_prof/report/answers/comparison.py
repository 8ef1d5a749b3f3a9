"""The report of a comparison: terminal, Markdown, JSON."""

from __future__ import annotations

import io
import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from usp_prof.gate.comparison import direction
from usp_prof.report.answers.check import plain
from usp_prof.report.answers.units import bare_table, change, duration, figure, interval, metric_cell, signed_duration
from usp_prof.report.answers.wording import why_lines

if TYPE_CHECKING:
    from rich.table import Table

    from usp_prof.gate.comparison import Comparison, Pair
    from usp_prof.gate.judgement import Judgement

FORMATS = ("terminal", "markdown", "json")
_STYLES = {"better": "green", "worse": "red", "changed": "yellow"}


def render(found: Comparison, form: str, *, color: bool = False, everything: bool = False, width: int = 120) -> str:
    """Write a comparison in one of `FORMATS`; places of metrics (axes, causes) only with `everything`."""
    if form == "json":
        data = {"format": "usp-prof-compare", "version": 1, **plain(asdict(found))}
        return json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n"
    if form == "markdown":
        return _markdown(found, everything=everything)
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=color, no_color=not color, highlight=False)
    for pair in found.pairs:
        console.print(Text(f"{found.label} -> {pair.label}", style="bold"), soft_wrap=True)
        for line in _said_first(pair):
            console.print(Text(f"  {line}"), soft_wrap=True)
        console.print(_metrics(pair, width, everything=everything))
        if pair.waterfall:
            console.print(_waterfall(pair, width))
        for line in why_lines(pair.why):
            console.print(Text(f"  {line}"), soft_wrap=True)
        console.print()
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines()) + "\n"


def _said_first(pair: Pair) -> list[str]:
    return [f"caution: {doubt}" for doubt in pair.doubts] + [f"differs: {each}" for each in pair.differences]


def _shown(pair: Pair, *, everything: bool) -> list[Judgement]:
    return [each for each in pair.judgements if everything or "[" not in each.key]


def _metrics(pair: Pair, width: int, *, everything: bool) -> Table:
    table = bare_table(width)
    table.add_column("metric", overflow="fold")
    for name in ("before", "after", "change", "interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for each in _shown(pair, everything=everything):
        word = direction(each)
        note = Text(word or each.reason, style=_STYLES.get(word, "dim"))
        key, *figures = _cells(each)
        table.add_row(metric_cell(key, width), *(Text(cell) for cell in figures), note)
    return table


def _cells(each: Judgement) -> tuple[str, str, str, str, str]:
    before, after = figure(each.before, each.unit), figure(each.after, each.unit)
    return (each.key, before, after, change(each), interval(each))


def _waterfall(pair: Pair, width: int) -> Table:
    table = bare_table(width, title="where the step goes")
    table.add_column("part")
    for name in ("before", "after", "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    largest = max((abs(part.delta_ns) for part in pair.waterfall), default=0.0)
    for part in pair.waterfall:
        bar = "#" * math.ceil(20 * abs(part.delta_ns) / largest) if largest else ""
        row = (part.name, duration(part.before_ns), duration(part.after_ns), signed_duration(part.delta_ns), bar)
        table.add_row(*(Text(cell) for cell in row))
    return table


def _markdown(found: Comparison, *, everything: bool) -> str:
    lines = []
    for pair in found.pairs:
        lines += [f"## {found.label} -> {pair.label}", ""]
        lines += [f"- {line}" for line in _said_first(pair)] + [""]
        lines += ["| metric | before | after | change | interval | |", "|---|---:|---:|---:|---:|---|"]
        for each in _shown(pair, everything=everything):
            lines.append("| " + " | ".join((*_cells(each), direction(each) or each.reason)).replace("\n", " ") + " |")
        lines += ["", *(f"- {line}" for line in why_lines(pair.why)), ""]
    return "\n".join(lines).rstrip() + "\n"
