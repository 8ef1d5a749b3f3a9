"""Regressions: comparison of a run with a baseline, of runs with each other, and of runs over commits.

`usp-prof baseline save` measures runs into a file. `check` judges a run against it and returns the verdict as exit
code. `compare` shows runs next to each other. `trend` finds changes in the history that checks append to.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from usp_prof import checking
from usp_prof.cli.opening import note, open_from, output, run_options, write_out
from usp_prof.cli.wrapping import wrapped
from usp_prof.gate import history
from usp_prof.gate import measured as baselines
from usp_prof.gate.comparison import compare
from usp_prof.gate.facts import FactKind, differences
from usp_prof.gate.policy import Judge, parse_pairs
from usp_prof.gate.verdict import Inconclusive, unusable_input
from usp_prof.model.errors import InputError, UsageError, unknown_name
from usp_prof.model.files import add_to, write
from usp_prof.model.health import Severity
from usp_prof.model.metric import Better
from usp_prof.model.printable import counted, for_log
from usp_prof.report.answers import comparison, trend
from usp_prof.run import open_run

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from usp_prof.gate.history import MetricTrend
    from usp_prof.gate.measured import Measured
    from usp_prof.gate.verdict import Report


class Baseline:
    """`usp-prof baseline save`: measure runs of one configuration into a baseline file."""

    EXAMPLES = """\
  usp-prof baseline save traces/monday -o baseline.json
  usp-prof baseline save traces/try1 traces/try2 traces/try3 -o baseline.json
"""

    @staticmethod
    def configure(parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("action", choices=["save"], help="save: measure runs and write the file")
        parser.add_argument(
            "paths", metavar="RUN", nargs="+", help="folders of traces; several runs measure the noise between runs"
        )
        parser.add_argument(
            "-o", "--output", metavar="FILE", default="baseline.json", help="file to write (default: %(default)s)"
        )

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        """Save a baseline; reject runs that cannot be compared with anything."""
        runs = [checking.measured(open_run(path, cache_dir=args.cache_dir), path) for path in args.paths]
        _check_alike(runs)
        # Ops and kernels are stored for the last run only: a check uses it to explain why a step got longer.
        kept = [*(replace(run, work=()) for run in runs[:-1]), runs[-1]]
        baselines.save(baselines.Baseline(tuple(kept)), args.output)
        steps = ", ".join(str(_step_count(run)) for run in runs)
        note(args, f"wrote {args.output}: {counted(len(runs), 'run')}, {steps} {'step' if steps == '1' else 'steps'}")
        return 0


def _step_count(run: Measured) -> int:
    return max((len(series.steps) for series in run.series), default=0)


def _check_alike(runs: Sequence[Measured]) -> None:
    """Raise if runs differ in configuration, or cannot be compared with anything."""
    first = runs[0]
    for run in runs:
        others = [
            difference for difference in differences(first.facts, run.facts) if difference.kind is not FactKind.SOFTWARE
        ]
        if others:
            raise InputError(
                f"{run.label} has another configuration than {first.label}: {others[0]}", hint="save them apart"
            )
        reasons = unusable_input((first,), run, Severity.DATA_LOSS, ())
        if reasons:
            raise InputError(f"no baseline can be made: {reasons[0]}", hint="usp-prof info RUN shows what is damaged")


class Check:
    """`usp-prof check`: judge a run against a baseline; the verdict is the exit code."""

    EXAMPLES = """\
  usp-prof check traces/today --baseline baseline.json
  usp-prof check traces/today --baseline baseline.json \\
    --max-regression mfu=2%,step_time=3%
  usp-prof check traces/today --min mfu=0.38
  usp-prof check traces/today --baseline baseline.json \\
    --write markdown=summary.md --write junit=check.xml
  usp-prof check traces/today --baseline baseline.json \\
    --history runs.parquet --commit abc123
"""

    @staticmethod
    def configure(parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        run_options(parser)
        parser.add_argument("--baseline", metavar="FILE", help="file written by usp-prof baseline save")
        parser.add_argument("--policy", metavar="FILE", help="rules in TOML; see docs/ci.md")
        parser.add_argument(
            "--min", metavar="NAME=X", action="append", default=[], help="lower bounds, such as mfu=0.38; repeatable"
        )
        parser.add_argument(
            "--max-regression", metavar="NAME=X", action="append", default=[],
            help="allowed change: 2%% of the baseline, 1pp (points), or a number in the metric's unit",
        )  # fmt: skip
        parser.add_argument(
            "--inconclusive", choices=[str(choice) for choice in Inconclusive], default=str(Inconclusive.DEFAULT),
            help="exit code if undecided (default: 0 with a warning for noise, 2 for unusable input)",
        )  # fmt: skip
        parser.add_argument(
            "--judge", choices=[str(choice) for choice in Judge], default=None,
            help="runs (default): consider noise between runs; medians: decide by the recorded steps",
        )  # fmt: skip
        parser.add_argument("--format", choices=checking.FORMATS, default="terminal", help="format of standard output")
        parser.add_argument(
            "--write",
            metavar="FORMAT=FILE",
            action="append",
            default=[],
            help="also write the check to a file; repeatable",
        )
        parser.add_argument("--history", metavar="FILE", help="append the run to this Parquet file, for usp-prof trend")
        parser.add_argument("--commit", metavar="NAME", default="", help="name of the run in the history")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        """Check the run and return the verdict's exit code."""
        copies = {form: file for form, file in parse_pairs(args.write).items() if _known(form)}
        demand = checking.Demand(
            baseline=_file(args, "baseline"),
            policy=_file(args, "policy"),
            minimum={name: _number(name, value) for name, value in parse_pairs(args.min).items()},
            max_regression=parse_pairs(args.max_regression),
            inconclusive=args.inconclusive,
            judge=args.judge or "",
        )
        keeps_history = bool(_file(args, "history"))
        terms = demand.read()  # reports errors in options and files before a large run is read
        opened = open_from(args)
        after = checking.measured(opened, args.path) if keeps_history else None
        report = checking.check_measured(after, terms) if after else checking.check_run(opened, terms, args.path)
        screen = output(args)
        is_screen, color = screen.is_terminal, not screen.no_color
        text = checking.render(report, args.format, color=color, width=screen.width, is_screen=is_screen)
        sys.stdout.write(text if args.format == "github" else for_log(text))  # these are our own workflow commands
        for form, file in copies.items():
            _write(report, form, file)
        if after:
            history.append(args.history, after, verdict=str(report.verdict), commit=args.commit)
        return report.exit_code


def _write(report: Report, form: str, file: str) -> None:
    text = checking.render(report, form)
    write_to = add_to if form == "markdown" else write  # appends to a step summary
    write_to(file, text, "name another file")


def _file(args: argparse.Namespace, option: str) -> str:
    """Return the file that an option names, "" if it is absent; raise if the option is given without a name.

    `--baseline "$BASELINE"` in a CI script with an unset variable would otherwise check against nothing.
    """
    named: str | None = getattr(args, option)
    if named == "":
        raise UsageError(f"--{option} names no file", hint=f"name one, or leave --{option} out")
    return named or ""


def _known(form: str) -> bool:
    if form not in checking.FORMATS:
        raise UsageError(f"no format is named {form!r}", hint=f"one of {', '.join(checking.FORMATS)}")
    return True


def _number(name: str, value: str) -> float:
    try:
        return float(value[:-1]) / 100 if value.endswith("%") else float(value)
    except ValueError as error:
        raise UsageError(f"--min {name}={value}: no number", hint="for example --min mfu=0.38") from error


class Compare:
    """`usp-prof compare`: runs next to each other, by metrics, parts of the step, ops and calls."""

    EXAMPLES = """\
  usp-prof compare traces/before traces/after
  usp-prof compare traces/h100 traces/b200 --across hardware
  usp-prof compare traces/gpipe traces/1f1b traces/zb-h1 --all --format markdown
"""

    @staticmethod
    def configure(parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "paths", metavar="RUN", nargs="+", help="folders of traces; each is compared with the first"
        )
        parser.add_argument("--all", action="store_true", help="also list each metric by axis, cause and rank")
        parser.add_argument(
            "--across", metavar="KIND", action="append", default=[], choices=[str(kind) for kind in FactKind],
            help=f"compare even if this differs: {', '.join(FactKind)}",
        )  # fmt: skip
        parser.add_argument(
            "--format", choices=comparison.FORMATS, default="terminal", help="output format (default: terminal)"
        )

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        """Compare the runs; always returns 0."""
        if len(args.paths) < 2:
            raise UsageError("one run cannot be compared", hint="usp-prof compare BEFORE AFTER")
        runs = [checking.measured(open_run(path, cache_dir=args.cache_dir), path) for path in args.paths]
        compared = compare(runs, tuple(FactKind(kind) for kind in args.across))
        screen = output(args)
        text = comparison.render(
            compared, args.format, color=not screen.no_color, everything=args.all, width=screen.width
        )
        write_out(text)
        return 0


class Trend:
    """`usp-prof trend`: checked runs over commits, with change points and slow drift."""

    EXAMPLES = """\
  usp-prof trend runs.parquet
  usp-prof trend runs.parquet --metric step_time --metric mfu
  usp-prof trend runs.parquet --changed --fail
"""

    @staticmethod
    def configure(parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("history", metavar="FILE", help="file written by usp-prof check --history FILE")
        parser.add_argument(
            "--metric", metavar="NAME", action="append", default=[], help="only this metric; repeatable"
        )
        parser.add_argument("--changed", action="store_true", help="only metrics that changed or drift")
        parser.add_argument("--fail", action="store_true", help="exit with 1 if a metric got worse")
        parser.add_argument(
            "--format", choices=("terminal", "json"), default="terminal", help="output format (default: terminal)"
        )

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        """Print the trends; return 1 with `--fail` if a metric got worse."""
        trends = history.trends(history.read(args.history))
        for name in args.metric:
            if name not in {metric.key for metric in trends}:
                raise unknown_name("metric", name, (metric.key for metric in trends))
        shown = [metric for metric in trends if not args.metric or metric.key in args.metric]
        if args.changed:
            shown = [metric for metric in shown if trend.sentences(metric)]
        if args.format == "json":
            write_out(trend.json_text(shown))
        elif args.changed and not shown:
            write_out("no metric changed or drifts\n")
        else:
            write_out(wrapped(trend.text(shown), output(args).width, 2))
        return 1 if args.fail and any(_worse(metric) for metric in shown) else 0


def _worse(metric: MetricTrend) -> bool:
    if metric.better is Better.NEITHER:
        return False
    sign = 1 if metric.better is Better.LOWER else -1
    amounts = [metric.trend.drift_per_run, *(change.after - change.before for change in metric.trend.changes)]
    return any(sign * amount > 0 for amount in amounts)
