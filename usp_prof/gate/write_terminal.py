"""What does a person see who runs a check? The verdict, the metrics that matter, and why."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from usp_prof.gate.judgement import Verdict
from usp_prof.gate.terminal_table import bare_table, metric_cell
from usp_prof.gate.units import change, figure, interval
from usp_prof.gate.wording import headline, removed, why_lines, worst_first

if TYPE_CHECKING:
    from rich.table import Table

    from usp_prof.gate.judgement import Judgement
    from usp_prof.gate.verdict import Report

_STYLES = {
    Verdict.PASS: "green",
    Verdict.REGRESSED: "bold red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.IMPROVED: "bold green",
    Verdict.NOT_COMPARED: "dim",
}
_ORDER = (Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.IMPROVED, Verdict.PASS, Verdict.NOT_COMPARED)


def render(report: Report, *, color: bool, width: int = 120) -> str:
    """Write the check for a terminal."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=color, no_color=not color, highlight=False)
    console.print(Text(headline(report), style=_STYLES[report.verdict]), soft_wrap=True)
    runs = f", {report.baseline_runs} runs" if report.baseline_runs > 1 else ""
    console.print(Text(f"{report.after} against {report.before}{runs}"), soft_wrap=True)
    for reason in (report.unusable + report.unanswered)[1:]:
        console.print(Text(f"  {reason}"), soft_wrap=True)
    for difference in report.differences:
        console.print(Text(f"  differs: {difference}"), soft_wrap=True)
    console.print(_table(report, width))
    for found in report.judgements:
        if found.reason and found.verdict is not Verdict.PASS:
            console.print(Text(f"  {found.key}: {found.reason}"), soft_wrap=True)
    left_out = next((removed(each) for each in report.judgements if removed(each)), "")
    if left_out:
        console.print(Text(f"  left out: {left_out}"), soft_wrap=True)
    lines = why_lines(report.why)
    if lines:
        console.print(Text("why"), soft_wrap=True)
        for line in lines:
            console.print(Text(f"  {line}"), soft_wrap=True)
    if report.ratchet:
        console.print(Text(f"to keep what improved: {report.ratchet}"), soft_wrap=True)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _table(report: Report, width: int) -> Table:
    table = bare_table(width)
    table.add_column("verdict")
    table.add_column("metric", overflow="fold")
    for name in ("before", "after", "change", "interval"):
        table.add_column(name, justify="right", no_wrap=True)
    for verdict in _ORDER:
        for each in worst_first(report.of(verdict)) if verdict is Verdict.REGRESSED else report.of(verdict):
            table.add_row(*_row(each, width))
    return table


def _row(each: Judgement, width: int) -> tuple[Text, ...]:
    return (
        Text(each.verdict, style=_STYLES[each.verdict]),
        metric_cell(each.key, width),
        Text(figure(each.before, each.unit)),
        Text(figure(each.after, each.unit)),
        Text(change(each)),
        Text(interval(each)),
    )
