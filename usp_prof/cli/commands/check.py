"""Check whether a run is slower than its baseline, and why.

The verdict is the exit code.
"""

from __future__ import annotations

import argparse
import sys

from usp_prof import checking
from usp_prof.cli.opening import open_from, output, run_options
from usp_prof.gate import history
from usp_prof.gate.policy import Judge, parse_pairs
from usp_prof.gate.verdict import Inconclusive, Report
from usp_prof.model.errors import UsageError
from usp_prof.model.files import add_to, write
from usp_prof.model.printable import for_log

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
    parser.add_argument("--baseline", metavar="FILE", help="file written by usp-prof baseline save")
    parser.add_argument("--policy", metavar="FILE", help="rules in TOML; see docs/reference/gate.md")
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
        "--write", metavar="FORMAT=FILE", action="append", default=[], help="also write the check to a file; repeatable"
    )
    parser.add_argument("--history", metavar="FILE", help="append the run to this Parquet file, for usp-prof trend")
    parser.add_argument("--commit", metavar="NAME", default="", help="name of the run in the history")


def run(args: argparse.Namespace) -> int:
    """Check the run and return the verdict's exit code."""
    copies = {form: file for form, file in parse_pairs(args.write).items() if _is_format(form)}
    keeps_history = bool(_file(args, "history"))
    terms = checking.read_terms(  # reports errors in options and files before a large run is read
        _file(args, "baseline"),
        _file(args, "policy"),
        {name: _number(name, value) for name, value in parse_pairs(args.min).items()},
        parse_pairs(args.max_regression),
        inconclusive=args.inconclusive,
        judge=args.judge or "",
    )
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
    file_name: str | None = getattr(args, option)
    if file_name == "":
        raise UsageError(f"--{option} needs a file name", hint=f"name one, or leave --{option} out")
    return file_name or ""


def _is_format(form: str) -> bool:
    if form not in checking.FORMATS:
        raise UsageError(f"no format is named {form!r}", hint=f"one of {', '.join(checking.FORMATS)}")
    return True


def _number(name: str, value: str) -> float:
    try:
        return float(value[:-1]) / 100 if value.endswith("%") else float(value)
    except ValueError as error:
        raise UsageError(f"--min {name}={value} is not a number", hint="for example --min mfu=0.38") from error
