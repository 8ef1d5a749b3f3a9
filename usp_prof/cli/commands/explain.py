"""Explain a finding, a health row, an edit or a metric."""

from __future__ import annotations

import argparse
import inspect
from importlib import import_module

from usp_prof.analyses import NAMES
from usp_prof.cli.opening import completes, output, write_out
from usp_prof.cli.wrapping import wrapped, wrapped_page
from usp_prof.findings import all_rules
from usp_prof.gate.series import SHARES
from usp_prof.model.errors import unknown_name
from usp_prof.model.finding import JOB_SLOWDOWN, REPAIR_GAIN
from usp_prof.model.health import HEALTH_CODES
from usp_prof.model.metric import Better, Metric

EXAMPLES = """\
  usp-prof explain
  usp-prof explain slow-rank
  usp-prof explain missing_ranks
  usp-prof explain rank_as_peers
  usp-prof explain clock_residual_p99
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    code = parser.add_argument(
        "code", metavar="CODE", nargs="?", help="finding, health row, edit or metric; without one, all are listed"
    )
    completes(code, _pages)


def run(args: argparse.Namespace) -> int:
    """Print one page, or the list."""
    screen_width = output(args).width
    if args.code:
        write_out(f"{args.code}\n\n{wrapped_page(page(args.code), screen_width)}\n")
        return 0
    headed = {
        "findings": {rule.CODE: rule.TITLE for rule in all_rules()},
        "health": dict(sorted(HEALTH_CODES.items())),
        "edits": _edits(),
        "metrics": {metric.id: metric.title for metric in _metrics()} | dict(SHARES.values()),
    }
    for head, lines in headed.items():
        width = max(len(code) for code in lines)
        entries = "\n".join(f"  {code:{width}}  {title}" for code, title in lines.items())
        write_out(f"{head}\n{wrapped(entries, screen_width, hanging=width + 2)}")
    return 0


def page(code: str) -> str:
    """Return the page of any code that a report may print."""
    pages = _pages()
    if code not in pages:
        raise unknown_name("finding, health row, edit or metric", code, pages, list_command="usp-prof explain")
    return pages[code]


def _pages() -> dict[str, str]:
    rules = {rule.CODE: inspect.cleandoc(rule.__doc__ or "") for rule in all_rules()}
    metrics = {metric.id: _metric_page(metric) for metric in _metrics()}
    shares = {
        name: f"{metrics[time]}\n\n{name} is this time divided by the step, or by the window if steps are unknown."
        for time, (name, _) in SHARES.items()
    }
    return HEALTH_CODES | metrics | shares | _edits() | rules


def _metrics() -> list[Metric]:
    declared = [metric for name in NAMES for metric in import_module(f"usp_prof.analyses.{name}").METRICS]
    return [*declared, JOB_SLOWDOWN, REPAIR_GAIN]


def _metric_page(metric: Metric) -> str:
    better = "" if metric.better is Better.NEITHER else f", {metric.better} is better"
    return f"{metric.title} ({metric.unit}{better})\n\n{metric.doc}"


def _edits() -> dict[str, str]:
    from usp_prof.whatif.edits import EDITS, PIPELINE_EDITS  # noqa: PLC0415 - imports the replay

    pages = {kind.name: f"{kind.doc} Example: --edit {kind.example}" for kind in EDITS}
    return pages | {kind.name: f"{kind.doc} Example: --edit {kind.example}" for kind in PIPELINE_EDITS}
