"""Write synthetic traces with ground truth."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from usp_prof import limits
from usp_prof.cli.opening import note, whole_number
from usp_prof.extras.synth.declaration import Declaration, FaultKind, Mesh, Style, with_events
from usp_prof.extras.synth.write import write
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.model.files import read_json
from usp_prof.model.printable import counted

EXAMPLES = """\
  usp-prof synth traces/demo --mesh dp=2,tp=2,pp=2 --micro-batches 8
  usp-prof synth traces/slow --mesh dp=4 --fault slow_rank:rank=2,factor=1.5
  usp-prof synth traces/cpu --style gloo --mesh pp=4 --schedule GPipe
  usp-prof synth traces/large --mesh dp=8,tp=4,pp=2 --events 1000000
  usp-prof synth traces/own --declaration run.json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("folder", metavar="FOLDER", help="folder for the traces, run.json and truth.json")
    parser.add_argument("--declaration", metavar="FILE", help="declaration as JSON; the options override it")
    parser.add_argument("--mesh", metavar="AXES", help="sizes of the axes: dp=2,tp=2,pp=2,cp=1,ep=1")
    parser.add_argument("--style", choices=[str(style) for style in Style], help="nccl: GPUs; gloo: CPUs")
    parser.add_argument("--schedule", metavar="NAME", help="pipeline schedule: GPipe, 1F1B, ...")
    parser.add_argument("--micro-batches", metavar="N", type=whole_number(), help="micro-batches per step")
    parser.add_argument("--steps", metavar="N", type=whole_number(), help="number of steps")
    parser.add_argument(
        "--seed",
        metavar="N",
        type=whole_number(limits.MICRO_BATCHES),
        help="random seed; equal seeds write equal bytes",
    )
    parser.add_argument(
        "--fault", metavar="KIND:...", action="append", default=[],
        help=f"{', '.join(FaultKind)}; with rank=, step=, factor=, delay_ns=, axis=",
    )  # fmt: skip
    parser.add_argument(
        "--events", metavar="N", type=whole_number(), help="approximate number of events per rank, for scale tests"
    )
    parser.add_argument("--bare", action="store_true", help="write no manifest, as if recorded without usp-prof")


def run(args: argparse.Namespace) -> int:
    """Write the run."""
    if not args.folder.strip():
        raise UsageError("FOLDER is empty", hint="name a folder: usp-prof synth traces/demo")
    declared = Declaration.from_dict(_declaration(args))
    if args.events:
        declared = with_events(declared, args.events)
    files = write(declared, Path(args.folder), described=not args.bare)
    note(args, f"wrote {counted(len(files), 'rank')} and their truth to {args.folder}")
    return 0


def _declaration(args: argparse.Namespace) -> dict[str, Any]:
    """Return the declaration from its file, overridden by the given options."""
    declared: dict[str, Any] = _read(Path(args.declaration)) if args.declaration else {}
    work = declared.get("work", {})
    faults = declared.get("faults", [])
    if not isinstance(work, dict) or not isinstance(faults, list):
        return declared  # the declaration raises an error that names the field
    of_work = {name: getattr(args, name) for name in ("schedule", "micro_batches", "steps")}
    of_run = {"style": args.style, "seed": args.seed, "mesh": _mesh(args.mesh) if args.mesh else None}
    return {
        **declared,
        **_set_options(of_run),
        "work": {**work, **_set_options(of_work)},
        "faults": [*faults, *map(_fault, args.fault)],
    }


def _set_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that are present on the command line."""
    return {name: value for name, value in options.items() if value is not None}


def _read(path: Path) -> dict[str, Any]:
    data = read_json(path, "declaration", "truth.json of a synthetic run contains one")
    declared = data.get("declaration", data) if isinstance(data, dict) else data
    if not isinstance(declared, dict):
        raise UsageError(
            f"{path} is not a declaration: not an object", hint="truth.json of a synthetic run contains one"
        )
    return dict(declared)


def _mesh(text: str) -> dict[str, int]:
    """Parse `dp=2,tp=4`."""
    axis_names = [field.name for field in fields(Mesh)]
    pairs = [pair.partition("=") for pair in text.split(",")]
    names = [name for name, _, _ in pairs]
    is_axis = [
        name in axis_names and limits.parse_integer(value, limits.DEGREE) is not None for name, _, value in pairs
    ]
    if not all(is_axis) or len(set(names)) < len(names):
        raise UsageError(
            f"{text!r} is not a mesh", hint=f"write each axis once, like dp=2,tp=4; axes are {', '.join(axis_names)}"
        )
    return {name: int(value) for name, _, value in pairs}


_TYPES: dict[str, Callable[[str], Any]] = {"axis": str, "factor": float}
"""Types of a fault's values; all others are integers."""


def _fault(text: str) -> dict[str, Any]:
    """Parse `slow_rank:rank=2,factor=1.5`."""
    kind, _, rest = text.partition(":")
    values: dict[str, Any] = {"rank": 0, "kind": kind}
    if kind not in list(FaultKind):
        raise unknown_name("fault", kind, list(FaultKind), list_command="usp-prof synth --help")
    pairs = [pair.partition("=") for pair in filter(None, rest.split(","))]
    hint = "write it like slow_rank:rank=2,factor=1.5"
    if len({name for name, _, _ in pairs}) < len(pairs):
        raise UsageError(f"{text!r} is not a fault: it has a value twice", hint=hint)
    for name, _, value in pairs:
        try:
            values[name] = _TYPES.get(name, int)(value)
        except ValueError:
            raise UsageError(f"{text!r} is not a fault: {name} is not a number", hint=hint) from None
    return values
