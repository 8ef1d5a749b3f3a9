"""Open all ranks in Perfetto's page, without an upload."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from usp_prof.cli.opening import note, open_from, parse_steps, run_options, steps_option, write_out
from usp_prof.export.merged_trace import export
from usp_prof.export.perfetto import TraceServer
from usp_prof.model.selection import Selection

EXAMPLES = """\
  usp-prof open traces/my-run --perfetto
  usp-prof open traces/my-run --perfetto --ranks 0,7 --steps 3:4
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    run_options(parser)
    parser.add_argument(
        "--perfetto",
        action="store_true",
        required=True,
        help="print a link to ui.perfetto.dev that loads the run from this machine; ends when the page has it",
    )
    steps_option(parser)


def run(args: argparse.Namespace) -> int:
    """Write all ranks to one file and serve it until the page has fetched it."""
    selection = Selection(None, *parse_steps(args.steps))
    opened = open_from(args)
    with TemporaryDirectory(prefix="usp-prof-") as folder:
        trace = Path(folder) / "trace.json.gz"
        done = export(opened.tables, trace, selection)
        if not done.aligned:
            note(args, "the clocks of the ranks are not connected: each rank keeps its own clock")
        server = TraceServer(trace)
        write_out(f"{server.link}\n")
        note(args, "open the link in a browser on this machine, or forward port 9001 to it; Ctrl-C stops waiting")
        server.serve()
    note(args, f"Perfetto has loaded {opened.name}; the trace did not leave this machine")
    return 0
