"""Find jumps and drift over a history of checked runs.

`usp-prof check --history` appends the runs to the history.
"""

from __future__ import annotations

import argparse

from usp_prof.cli.opening import format_option, output, write_out
from usp_prof.cli.wrapping import wrapped
from usp_prof.gate import history
from usp_prof.gate.history import MetricTrend
from usp_prof.model.errors import unknown_name
from usp_prof.model.metric import Better
from usp_prof.report.answers import trend

EXAMPLES = """\
  usp-prof trend runs.parquet
  usp-prof trend runs.parquet --metric step_time --metric mfu
  usp-prof trend runs.parquet --changed --fail
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("history", metavar="FILE", help="file written by usp-prof check --history FILE")
    parser.add_argument("--metric", metavar="NAME", action="append", default=[], help="only this metric; repeatable")
    parser.add_argument("--changed", action="store_true", help="only metrics that changed or drift")
    parser.add_argument("--fail", action="store_true", help="exit with 1 if a metric got worse")
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the trends; return 1 with `--fail` if a metric got worse."""
    trends = history.trends(history.read(args.history))
    for name in args.metric:
        if name not in {metric.key for metric in trends}:
            raise unknown_name("metric", name, (metric.key for metric in trends))
    shown = [metric for metric in trends if not args.metric or metric.key in args.metric]
    if args.format == "json":
        write_out(trend.json_text([metric for metric in shown if trend.sentences(metric) or not args.changed]))
    else:
        write_out(wrapped(trend.text(shown, only_changed=args.changed), output(args).width, 2))
    return 1 if args.fail and any(_worse(metric) for metric in shown) else 0


def _worse(metric: MetricTrend) -> bool:
    if metric.better is Better.NEITHER:
        return False
    sign = 1 if metric.better is Better.LOWER else -1
    amounts = [metric.trend.drift_per_run, *(change.after - change.before for change in metric.trend.changes)]
    return any(sign * amount > 0 for amount in amounts)
