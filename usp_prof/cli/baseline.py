"""`usp-prof baseline save`: measure runs of one configuration into a baseline file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from usp_prof import checking
from usp_prof.cli.opening import note
from usp_prof.gate import measured as baselines
from usp_prof.gate.facts import FactKind, differences
from usp_prof.gate.verdict import unusable_input
from usp_prof.model.errors import InputError
from usp_prof.model.health import Severity
from usp_prof.run import open_run

if TYPE_CHECKING:
    import argparse

    from usp_prof.gate.measured import Measured

EXAMPLES = """\
  usp-prof baseline save traces/monday -o baseline.json
  usp-prof baseline save traces/try1 traces/try2 traces/try3 -o baseline.json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("action", choices=["save"], help="measure runs and write them down")
    parser.add_argument("paths", metavar="RUN", nargs="+", help="folders of traces; several tell how much runs differ")
    parser.add_argument("-o", "--output", metavar="FILE", default="baseline.json", help="where to write it")


def run(args: argparse.Namespace) -> int:
    """Save a baseline; runs that no check could be made against are refused."""
    runs = tuple(checking.measured(open_run(path, cache_dir=args.cache_dir), path) for path in args.paths)
    _fit(runs)
    runs = (*(replace(each, work=()) for each in runs[:-1]), runs[-1])  # why a step grew is told against the last
    baselines.save(baselines.Baseline(runs), args.output)
    steps = ", ".join(str(max((len(s.steps) for s in each.series), default=0)) for each in runs)
    note(args, f"wrote {args.output}: {len(runs)} run{'s' if len(runs) > 1 else ''}, {steps} steps")
    return 0


def _fit(runs: tuple[Measured, ...]) -> None:
    first = runs[0]
    for each in runs:
        bad = [d for d in differences(first.facts, each.facts) if d.kind is not FactKind.SOFTWARE]
        if bad:
            raise InputError(f"{each.label} is not of {first.label}'s configuration: {bad[0]}", hint="save them apart")
        reasons = unusable_input((first,), each, Severity.DATA_LOSS, ())
        if reasons:
            raise InputError(f"no baseline can be made: {reasons[0]}", hint="usp-prof info RUN shows what is damaged")
