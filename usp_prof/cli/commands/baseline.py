"""Save runs as a baseline for later checks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from usp_prof import checking
from usp_prof.cli.opening import note
from usp_prof.gate import measured as baselines
from usp_prof.gate.facts import FactKind, differences
from usp_prof.gate.measured import Measured
from usp_prof.gate.verdict import unusable_input
from usp_prof.model.errors import InputError
from usp_prof.model.health import Severity
from usp_prof.model.printable import counted
from usp_prof.run import open_run

EXAMPLES = """\
  usp-prof baseline save traces/monday -o baseline.json
  usp-prof baseline save traces/try1 traces/try2 traces/try3 -o baseline.json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("action", choices=["save"], help="save: measure runs and write the file")
    parser.add_argument(
        "paths", metavar="RUN", nargs="+", help="folders of traces; several runs measure the noise between runs"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="baseline.json", help="file to write (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Save a baseline; reject runs that cannot be compared with anything."""
    runs = [checking.measured(open_run(path, cache_dir=args.cache_dir), path) for path in args.paths]
    _check_alike(runs)
    # Ops and kernels are stored for the last run only: a check uses it to explain why a step got longer.
    stored_runs = [*(replace(run, work=()) for run in runs[:-1]), runs[-1]]
    baselines.save(baselines.Baseline(tuple(stored_runs)), args.output)
    steps = ", ".join(str(max((len(series.steps) for series in run.series), default=0)) for run in runs)
    note(args, f"wrote {args.output}: {counted(len(runs), 'run')}, {steps} {'step' if steps == '1' else 'steps'}")
    return 0


def _check_alike(runs: Sequence[Measured]) -> None:
    """Raise if runs differ in configuration, or cannot be compared with anything."""
    first = runs[0]
    for run in runs:
        configuration_differences = [
            difference for difference in differences(first.facts, run.facts) if difference.kind is not FactKind.SOFTWARE
        ]
        if configuration_differences:
            raise InputError(
                f"{run.label} has another configuration than {first.label}: {configuration_differences[0]}",
                hint="save them as separate baselines",
            )
        reasons = unusable_input((first,), run, Severity.DATA_LOSS, ())
        if reasons:
            raise InputError(f"no baseline can be made: {reasons[0]}", hint="usp-prof info RUN shows what is damaged")
