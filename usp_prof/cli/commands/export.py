"""Export all ranks to one trace file for Perfetto."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from usp_prof.cli.opening import note, open_from, parse_steps, run_options, steps_option
from usp_prof.export.merged_trace import export
from usp_prof.model.errors import UsageError
from usp_prof.model.files import check_file_name
from usp_prof.model.printable import counted
from usp_prof.model.selection import Selection

EXAMPLES = """\
  usp-prof export traces/my-run -o merged.json.gz
  usp-prof export traces/my-run -o two.json.gz --ranks 0,7 --steps 3:4
  usp-prof export traces/my-run -o start.json.gz --range 0ms-250ms
"""
_UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_SPAN = re.compile(
    r"(?P<first>\d+(?:\.\d+)?)(?P<first_unit>ns|us|ms|s)\s*-\s*(?P<last>\d+(?:\.\d+)?)(?P<last_unit>ns|us|ms|s)\Z"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    run_options(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="output file; .gz and .zst are compressed"
    )
    steps_option(parser)
    parser.add_argument(
        "--range", metavar="SPAN", help="only this span, counted from the start of the run, such as 100ms-1.5s"
    )


def run(args: argparse.Namespace) -> int:
    """Write the file."""
    selection = Selection(None, *parse_steps(args.steps))
    window = _window(args.range) if args.range else None
    check_file_name(args.output)
    opened = open_from(args)
    target = Path(args.output)
    read = [file.path for file in opened.files if isinstance(file.path, Path)]  # other files are in an object store
    if target.exists() and any(path.exists() and target.samefile(path) for path in read):
        raise UsageError(f"{target} is a trace of this run", hint="choose another file with -o")
    opened.tables.refuse_if_absent(selection, opened.name)
    done = export(opened.tables, Path(args.output), selection, window_ns=window)
    note(
        args,
        f"wrote {done.events} events of {counted(done.ranks, 'rank')} to {args.output}; open it at https://ui.perfetto.dev",
    )
    if not done.aligned:
        note(args, "the clocks of the ranks are not connected: each rank keeps its own clock")
    return 0


def _window(text: str) -> tuple[int, int]:
    """Parse `100ms-1.5s` into nanoseconds."""
    match = _SPAN.match(text.strip())
    if match is None:
        raise UsageError(f"--range {text!r} is not a span of time", hint="write it like --range 100ms-1.5s")
    first = round(float(match["first"]) * _UNITS[match["first_unit"]])
    last = round(float(match["last"]) * _UNITS[match["last_unit"]])
    if last <= first:
        raise UsageError(f"--range {text!r} is empty", hint="write the earlier time first")
    return first, last
