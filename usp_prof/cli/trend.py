"""`usp-prof trend`: checked runs over commits, with change points and slow drift."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.cli.opening import output, write_out
from usp_prof.cli.wrapping import wrapped
from usp_prof.gate import history
from usp_prof.model.errors import unknown_name
from usp_prof.model.metric import Better
from usp_prof.report.answers import trend

if TYPE_CHECKING:
    import argparse

    from usp_prof.gate.history import MetricTrend

EXAMPLES = """\
  usp-prof trend runs.parquet
  usp-prof trend runs.parquet --metric step_time --metric mfu
  usp-prof trend runs.parquet --changed --fail
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("history", metavar="FILE", help="made by: usp-prof check ... --history FILE")
    parser.add_argument("--metric", metavar="NAME", action="append", default=[], help="only this metric")
    parser.add_argument("--changed", action="store_true", help="only metrics that changed or drift")
    parser.add_argument("--fail", action="store_true", help="exit with 1 when one got worse")
    parser.add_argument("--format", choices=("terminal", "json"), default="terminal", help="how to write it")


def run(args: argparse.Namespace) -> int:
    """Draw the trends."""
    found = history.trends(history.read(args.history))
    for name in args.metric:
        if name not in {each.key for each in found}:
            raise unknown_name("metric", name, (each.key for each in found))
    shown = [each for each in found if not args.metric or each.key in args.metric]
    if args.changed:
        shown = [each for each in shown if trend.sentences(each)]
    write_out(trend.json_text(shown) if args.format == "json" else wrapped(trend.text(shown), output(args).width, 2))
    return 1 if args.fail and any(_worse(each) for each in shown) else 0


def _worse(each: MetricTrend) -> bool:
    if each.better is Better.NEITHER:
        return False
    sign = 1 if each.better is Better.LOWER else -1
    amounts = [each.trend.drift_per_run, *(change.after - change.before for change in each.trend.changes)]
    return any(sign * amount > 0 for amount in amounts)
