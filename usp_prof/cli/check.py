"""`usp-prof check`: judge a run against a baseline; the verdict is the exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from usp_prof import checking
from usp_prof.cli.opening import open_from, output, run_options
from usp_prof.gate import history
from usp_prof.gate.policy import Judge, parse_pairs
from usp_prof.gate.verdict import Inconclusive
from usp_prof.model.errors import UsageError
from usp_prof.model.files import write

if TYPE_CHECKING:
    import argparse

    from usp_prof.gate.verdict import Report

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


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    run_options(parser)
    parser.add_argument("--baseline", metavar="FILE", default="", help="made by: usp-prof baseline save")
    parser.add_argument("--policy", metavar="FILE", default="", help="rules as TOML; see docs/ci.md")
    parser.add_argument(
        "--min", metavar="NAME=X", action="append", default=[], help="absolute lower bounds, such as mfu=0.38"
    )
    parser.add_argument(
        "--max-regression", metavar="NAME=X", action="append", default=[],
        help="allowed change: 2%% of the baseline, 1pp (points), or a number in the metric's unit",
    )  # fmt: skip
    parser.add_argument(
        "--inconclusive", choices=[str(each) for each in Inconclusive], default=str(Inconclusive.DEFAULT),
        help="default: noise only warns, input that cannot be judged exits with 2",
    )  # fmt: skip
    parser.add_argument(
        "--judge", choices=[str(each) for each in Judge], default=None,
        help="runs (default): doubt a single baseline run; medians: let the steps at hand decide",
    )  # fmt: skip
    parser.add_argument("--format", choices=checking.FORMATS, default="terminal", help="what goes to standard output")
    parser.add_argument(
        "--write", metavar="FORMAT=FILE", action="append", default=[], help="write the check to a file as well"
    )
    parser.add_argument("--history", metavar="FILE", help="append the run to this Parquet file, for usp-prof trend")
    parser.add_argument("--commit", metavar="NAME", default="", help="what to call the run in the history")


def run(args: argparse.Namespace) -> int:
    """Check; the exit code is the verdict's."""
    copies = {form: file for form, file in parse_pairs(args.write).items() if _known(form)}
    demand = checking.Demand(
        baseline=args.baseline,
        policy=args.policy,
        minimum={name: _number(name, value) for name, value in parse_pairs(args.min).items()},
        max_regression=parse_pairs(args.max_regression),
        inconclusive=args.inconclusive,
        judge=args.judge or "",
    )
    terms = demand.read()  # what is wrong with the words or the files is said before a large run is read
    opened = open_from(args)
    after = checking.measured(opened, args.path) if args.history else None
    report = checking.check_measured(after, terms) if after else checking.check_run(opened, terms, args.path)
    screen = output(args)
    is_screen, color = screen.is_terminal, not screen.no_color
    sys.stdout.write(checking.render(report, args.format, color=color, width=screen.width, is_screen=is_screen))
    for form, file in copies.items():
        _write(report, form, file)
    if after:
        history.append(args.history, after, verdict=str(report.verdict), commit=args.commit)
    return report.exit_code


def _write(report: Report, form: str, file: str) -> None:
    text = checking.render(report, form)
    if form == "markdown" and Path(file).is_file():  # a step summary is added to
        text = Path(file).read_text(encoding="utf-8") + text
    write(file, text, "name another file")


def _known(form: str) -> bool:
    if form not in checking.FORMATS:
        raise UsageError(f"no format is named {form!r}", hint=f"one of {', '.join(checking.FORMATS)}")
    return True


def _number(name: str, value: str) -> float:
    try:
        return float(value[:-1]) / 100 if value.endswith("%") else float(value)
    except ValueError as error:
        raise UsageError(f"--min {name}={value}: no number", hint="for example --min mfu=0.38") from error
