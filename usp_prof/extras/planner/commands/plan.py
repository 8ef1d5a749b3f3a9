"""Rank the configurations that fit in memory by predicted step time.

Settings may be fixed (`--tp 8 --pp 4`), and all others are searched. `--table` predicts a table of configurations.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from io import StringIO
from typing import Any

from usp_prof.cli.opening import (
    choice_options,
    format_option,
    number_option,
    open_from,
    output,
    planning_status,
    refuse_choice_without_path,
    write_out,
)
from usp_prof.extras.planner.answers.plan_text import GIVEN, as_csv, as_json, as_text
from usp_prof.extras.planner.calibration import Calibration, calibrate
from usp_prof.extras.planner.candidates import KNOBS
from usp_prof.extras.planner.launch import TRAINERS
from usp_prof.extras.planner.options import add_habits, add_knobs, add_types
from usp_prof.extras.planner.profiles import DEFAULT_TRAINER, PROFILES
from usp_prof.extras.planner.question import Question, question_of
from usp_prof.extras.planner.ranges import SHARES, SIZES, STATES, WHOLE, check_numbers, checked_settings, option
from usp_prof.extras.planner.search import search
from usp_prof.extras.planner.table import KNOWN, predict_table, read_rows
from usp_prof.model.errors import UsageError
from usp_prof.model.files import read_text
from usp_prof.model.flops import check_convention
from usp_prof.model.hardware import DEVICES
from usp_prof.model.known_models import model_names
from usp_prof.model.printable import counted, one_line

EXAMPLES = """\
  usp-prof plan --model Llama-3-8B --sequence 8192 --devices 64 --device H100 \\
    --batch 512
  usp-prof plan --model llama.json --sequence 8192 --devices 64 --device H100 \\
    --batch 512 --tp 8 --pp 2 --zero 1
  usp-prof plan --table rows.csv > predicted.csv
  usp-prof plan traces/run-8r --devices 16 --batch 64
  usp-prof plan --model Llama-3-8B --sequence 8192 --devices 8 --device A100 \\
    --batch 64 --for torchtitan --format json
"""
MACHINE = ("node", "network", "efficiency", "memory_share")
"""Options that describe the cluster, besides its device."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "path",
        metavar="PATH",
        nargs="?",
        help="recorded run to calibrate on; without PATH or --table, give --model, --device, --devices and --batch",
    )
    choice_options(parser)
    parser.add_argument(
        "--table", metavar="CSV", help="predict each row of a table (see docs/reference/planner.md); - reads stdin"
    )
    parser.add_argument("--devices-known", action="store_true", help="list the devices that --device accepts")
    parser.add_argument("--models-known", action="store_true", help="list the model names that --model accepts")
    _what_to_plan(parser)
    pins = parser.add_argument_group("fixed settings", "these options fix a setting; the planner searches the others")
    add_knobs(pins)
    _how_to_write(parser)


def _what_to_plan(parser: argparse.ArgumentParser) -> None:
    needed = parser.add_argument_group("required without PATH or --table")
    needed.add_argument("--model", metavar="MODEL", help="known name, Hugging Face config.json, or our JSON")
    needed.add_argument("--device", metavar="NAME", help="device, such as H100 (default: the run's)")
    number_option(needed, "--devices", "number of devices (default: the run's)")
    number_option(needed, "--batch", "sequences per step over all devices")
    number_option(parser, "--sequence", "tokens per sequence (default: as the model was pretrained)")
    add_types(parser)
    number_option(parser, "--node", "devices per node (default: 8; GB200, GB300: 72)")
    parser.add_argument(
        "--network", metavar="GB/S", type=float, default=0,
        help="network bandwidth per device and direction (default: 50, less for old devices)",
    )  # fmt: skip
    parser.add_argument(
        "--efficiency", metavar="X", type=float, default=0,
        help="fraction of the peak that large products reach, 0..1 (default: measured, or 0.75)",
    )  # fmt: skip
    parser.add_argument(
        "--memory-share", metavar="X", type=float, default=0, help="fraction of memory that a plan may use, 0..1"
    )


def _how_to_write(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--convention", default="palm", help="FLOP convention of MFU: palm, matmul or causal")
    parser.add_argument(
        "--for",
        dest="trainer",
        choices=sorted(TRAINERS),
        default="",
        help="trainer that must be able to run the plans (default: usp-prof with a run, or megatron)",
    )
    add_habits(parser, "", "as --for")
    number_option(parser, "--top", "number of plans to list (default: %(default)s)", default=10)
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    """Search and print; return 1 if nothing fits."""
    if args.devices_known or args.models_known:
        names = [device.name for device in DEVICES] if args.devices_known else list(model_names())
        write_out("\n".join(names) + "\n")
        return 0
    refuse_choice_without_path(args)
    if args.table:
        return _table(args)
    _check(args)
    calibration = calibrate(open_from(args).tables) if args.path else None
    args.trainer = args.trainer or ("usp-prof" if args.path else DEFAULT_TRAINER)
    question = _question(args, calibration)
    with planning_status(args):
        plans = search(question)
    if args.format == "json":
        write_out(as_json(plans, calibration, args.trainer, args.top))
    else:
        write_out(as_text(plans, calibration, args.trainer, args.top, output(args).width))
    return 0 if plans.best else 1


def _table(args: argparse.Namespace) -> int:
    """Predict each row of a table; return 2 if any row was rejected."""
    if args.table == "-":
        columns, rows = read_rows(sys.stdin)
    else:
        text = read_text(args.table, "table", "a CSV file with a row for each configuration, or - for standard input")
        columns, rows = read_rows(StringIO(text, newline=""))
    _check(args)
    predictions = predict_table(rows, check_convention(args.convention), _cells_of_options(args))
    write_out(as_csv(columns, rows, predictions))
    ignored = [one_line(column) for column in columns if column not in KNOWN and column not in GIVEN]
    if ignored:
        sys.stderr.write(f"columns that are not read: {', '.join(ignored)}\n")
    refused = sum(isinstance(prediction, str) for prediction in predictions)
    if refused:
        sys.stderr.write(f"refused {refused} of {counted(len(rows), 'row')}: see the column error\n")
    return 2 if refused else 0


def _cells_of_options(args: argparse.Namespace) -> dict[str, str]:
    """Return the options as cells, for rows of a table that leave these cells empty."""
    if args.path or args.format == "json":
        refused_option = "a recorded run" if args.path else "--format json"
        raise UsageError(f"{refused_option} does not apply to --table, which writes CSV", hint="leave it out")
    names = ("model", "device", "devices", "batch", "sequence", "dtype", *SIZES, *MACHINE)
    cells = {name: f"{value}" for name in names if (value := getattr(args, name))}
    cells |= {"trainer": trainer} if (trainer := args.habits or args.trainer) else {}
    return cells | {name: _cell(getattr(args, name)) for name in KNOBS if getattr(args, name) is not None}


def _cell(value: object) -> str:
    if isinstance(value, list):
        return " ".join(value)
    return str(int(STATES[value])) if isinstance(value, str) and value in STATES else str(value)


def _check(args: argparse.Namespace) -> None:
    """Raise for values that no machine can have."""
    check_numbers({name: getattr(args, name) for name in (*WHOLE, *SHARES, "network", *SIZES)}, option)


def _question(args: argparse.Namespace, calibration: Calibration | None) -> Question:
    question = question_of(
        calibration, model=args.model or "", sequence=args.sequence, device=args.device or "", devices=args.devices,
        batch=args.batch, dtype=args.dtype, profile=PROFILES[args.habits or args.trainer], spelled=option,
    )  # fmt: skip
    overrides: dict[str, Any] = {
        "devices_per_node": args.node,
        "network_rate": args.network * 1e9,
        "efficiency": args.efficiency,
        "memory_share": args.memory_share,
    }
    return replace(
        question,
        cluster=replace(question.cluster, **{name: value for name, value in overrides.items() if value}),
        convention=check_convention(args.convention),
        gradient_bytes=args.gradient_bytes,
        optimizer_bytes=args.optimizer_bytes,
        pinned=checked_settings({name: value for name in KNOBS if (value := getattr(args, name)) is not None}, KNOBS),
        trainer=args.trainer,
    )
