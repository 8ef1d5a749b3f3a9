"""Compare runs: metrics, parts of the step, ops, kernels, calls."""

from __future__ import annotations

import argparse

from usp_prof import checking
from usp_prof.cli.opening import format_option, output, write_drawn, write_out
from usp_prof.gate.comparison import compare
from usp_prof.gate.facts import FactKind
from usp_prof.model.errors import UsageError
from usp_prof.report.answers import comparison
from usp_prof.run import open_run

EXAMPLES = """\
  usp-prof compare traces/before traces/after
  usp-prof compare traces/h100 traces/b200 --across hardware
  usp-prof compare traces/gpipe traces/1f1b traces/zb-h1 --all --format markdown
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("paths", metavar="RUN", nargs="+", help="folders of traces; each is compared with the first")
    parser.add_argument("--all", action="store_true", help="list all metrics, also by axis, cause and rank")
    parser.add_argument(
        "--across", metavar="KIND", action="append", default=[], choices=[str(kind) for kind in FactKind],
        help=f"compare even if this differs: {', '.join(FactKind)}",
    )  # fmt: skip
    format_option(parser, comparison.FORMATS)


def run(args: argparse.Namespace) -> int:
    """Compare the runs; always returns 0."""
    if len(args.paths) < 2:
        raise UsageError("one run cannot be compared", hint="usp-prof compare BEFORE AFTER")
    runs = [checking.measured(open_run(path, cache_dir=args.cache_dir), path) for path in args.paths]
    compared = compare(runs, tuple(FactKind(kind) for kind in args.across))
    screen = output(args)
    text = comparison.render(compared, args.format, color=not screen.no_color, everything=args.all, width=screen.width)
    (write_drawn if args.format == "terminal" else write_out)(text)
    return 0
