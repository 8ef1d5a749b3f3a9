"""What would a change be worth? `usp-prof whatif` replays the run with edits made and says how the step changes."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from usp_prof.cli.opening import open_from, run_options
from usp_prof.model.edit import parse_edit
from usp_prof.model.errors import UsageError
from usp_prof.whatif.edits import EDITS
from usp_prof.whatif.predict import Prediction, predict, unedited

if TYPE_CHECKING:
    import argparse

    from usp_prof.whatif.step_times import StepTimes

EXAMPLES = """\
  usp-prof whatif traces/run-8r --edit rank_as_peers=7
  usp-prof whatif traces/run-8r --edit comm_faster=2,axis=dp --edit no_input_wait
  usp-prof whatif traces/run-8r --edit schedule=interleaved,v=2 --format json
"""

MORE = (
    (
        "schedule=interleaved,v=2",
        "Let the pipeline run another schedule; keys: v (stages on a rank), m (micro-batches).",
    ),
    ("balance_stages", "Let every pipeline stage take the mean time of all."),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    run_options(parser)
    listed = "; ".join(example for example, _ in (*((each.example, each.doc) for each in EDITS), *MORE))
    parser.add_argument("--edit", metavar="EDIT", action="append", default=[], help=f"a change, such as {listed}")
    parser.add_argument("--list", action="store_true", help="list the edits with what they do")
    parser.add_argument("--format", choices=("terminal", "json"), default="terminal", help="how to write it")


def run(args: argparse.Namespace) -> int:
    """Replay and print."""
    edits = [parse_edit(text) for text in args.edit]
    if not edits and not args.list:
        raise UsageError("no change was named", hint="give --edit, or --list to see which there are")
    if args.list:
        sys.stdout.write("".join(f"{example}\n    {doc}\n" for example, doc in _listed()))
        return 0
    tables = open_from(args).tables
    alone = [predict(tables, [edit]) for edit in edits]
    together = predict(tables, edits)
    text = _json if args.format == "json" else _text
    sys.stdout.write(text(alone, together, unedited(tables)))
    return 0


def _listed() -> list[tuple[str, str]]:
    return [*((each.example, each.doc) for each in EDITS), *MORE]


def _text(alone: list[Prediction], together: Prediction, measured: StepTimes) -> str:
    lines = [f"step {_ms(together.before_ns)}, replayed with an error of {measured.error.max(initial=0.0):.2%} at most"]
    lines += [f"  {each.edits[0]!s:32} {_line(each)}" for each in alone]
    if len(alone) > 1:
        lines.append(f"  {'all together':32} {_line(together)}")
    return "\n".join(lines) + "\n"


def _line(each: Prediction) -> str:
    return f"{_ms(each.after_ns)}  gain {each.gain_fraction:7.2%} +- {each.error_fraction:.2%}  {each.basis}"


def _ms(value_ns: float) -> str:
    return f"{value_ns / 1e6:.3f} ms"


def _json(alone: list[Prediction], together: Prediction, measured: StepTimes) -> str:
    data = {
        "format": "usp-prof-whatif",
        "version": 1,
        "replay_error_fraction": float(measured.error.max(initial=0.0)),
        "edits": [_plain(each) for each in alone],
        "together": _plain(together),
    }
    return json.dumps(data, indent=1, sort_keys=True) + "\n"


def _plain(each: Prediction) -> dict[str, Any]:
    return {
        "edits": [str(edit) for edit in each.edits],
        "before_ns": each.before_ns,
        "after_ns": each.after_ns,
        "gain_fraction": each.gain_fraction,
        "error_fraction": each.error_fraction,
        "basis": str(each.basis),
    }
