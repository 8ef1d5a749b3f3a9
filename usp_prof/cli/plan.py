"""Which configuration should be trained? `usp-prof plan` predicts memory and time of every legal one and ranks them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from usp_prof.cli.console import progress_of
from usp_prof.cli.opening import choice_options, open_from
from usp_prof.model.errors import UsageError
from usp_prof.model.flops import check_convention, load
from usp_prof.model.metric import Unit
from usp_prof.planner import cluster as clusters
from usp_prof.planner.calibration import Calibration, calibrate
from usp_prof.planner.launch import TRAINERS, command
from usp_prof.planner.search import Plans, Question, search
from usp_prof.report.format import quantity

if TYPE_CHECKING:
    import argparse

    from usp_prof.planner.prediction import Prediction

EXAMPLES = """\
  usp-prof plan --model llama.json --sequence 8192 --devices 64 --device H100 --batch 512
  usp-prof plan traces/run-8r --devices 16 --batch 64
  usp-prof plan --model llama.json --sequence 8192 --devices 8 --device A100 --batch 64 --for torchtitan --format json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("path", metavar="PATH", nargs="?", help="a recorded run to learn from (see usp-prof info)")
    choice_options(parser)
    parser.add_argument("--model", metavar="FILE", help="model description, or a Hugging Face config.json")
    parser.add_argument("--sequence", metavar="N", type=int, default=0, help="tokens of a sequence")
    parser.add_argument("--devices", metavar="N", type=int, default=0, help="how many devices (default: the run's)")
    parser.add_argument("--device", metavar="NAME", help="which device, such as H100 (default: the run's)")
    parser.add_argument("--batch", metavar="N", type=int, default=0, help="sequences of a step, over all devices")
    parser.add_argument("--dtype", choices=("bf16", "fp16", "fp32", "fp8"), default="", help="type of training")
    parser.add_argument("--node", metavar="N", type=int, default=0, help="devices of a node")
    parser.add_argument("--network", metavar="GB/S", type=float, default=0, help="one device's share of the network")
    parser.add_argument("--efficiency", metavar="X", type=float, default=0, help="of the peak that layers reach, 0..1")
    parser.add_argument(
        "--memory-share", metavar="X", type=float, default=0, help="of memory that a plan may fill, 0..1"
    )
    parser.add_argument("--convention", default="palm", help="FLOP convention of MFU: palm, matmul or causal")
    parser.add_argument(
        "--for", dest="trainer", choices=sorted(TRAINERS), default="usp-prof", help="whose command to give"
    )
    parser.add_argument("--top", metavar="N", type=int, default=10, help="how many plans to list")
    parser.add_argument("--format", choices=("terminal", "json"), default="terminal", help="how to write it")


def run(args: argparse.Namespace) -> int:
    """Search and print; 1 when nothing fits."""
    calibration = calibrate(open_from(args).tables) if args.path else None
    question = _question(args, calibration)
    with progress_of(args, "planning") as progress:
        plans = search(question, progress)
    sys.stdout.write((_json if args.format == "json" else _text)(plans, calibration, args))
    return 0 if plans.best else 1


def _question(args: argparse.Namespace, calibration: Calibration | None) -> Question:
    if calibration is None and not (args.model and args.device and args.devices and args.batch):
        raise UsageError(
            "without a recorded run, a plan needs --model, --device, --devices and --batch",
            hint="usp-prof plan --model config.json --sequence 8192 --device H100 --devices 64 --batch 512",
        )
    recorded = calibration.configuration if calibration is not None else None
    dtype = args.dtype or (recorded.dtype if recorded is not None else "bf16")
    model = (
        load(Path(args.model), args.sequence) if args.model else calibration.model if calibration is not None else None
    )
    assert model is not None  # noqa: S101 - one of the two was given
    if args.sequence:
        model = replace(model, sequence=args.sequence, flop_per_token={})
    if not model.sequence:
        raise UsageError("the model's description gives no sequence length", hint="give --sequence")
    learnt = calibration.cluster if calibration is not None and not args.device else None
    machine = learnt or clusters.of_device(args.device, dtype)
    given: dict[str, Any] = {
        "devices_per_node": args.node,
        "network_rate": args.network * 1e9,
        "efficiency": args.efficiency,
        "memory_share": args.memory_share,
    }
    machine = replace(machine, **{name: value for name, value in given.items() if value})
    return Question(
        model,
        machine,
        args.devices or (recorded.devices if recorded is not None else 1),
        args.batch or (recorded.batch if recorded is not None else 1),
        dtype,
        check_convention(args.convention),
    )


def _text(plans: Plans, calibration: Calibration | None, args: argparse.Namespace) -> str:
    question = plans.question
    machine = question.cluster
    lines = [
        f"{question.devices} x {machine.device}, {question.batch} sequences of {question.model.sequence} tokens a step",
        f"layers taken to reach {100 * machine.efficiency:.3g} % of the dense peak ({machine.basis})",
        f"{plans.tried} legal configurations, {len(plans.best)} predicted to fit",
    ]
    if calibration is not None:
        lines.append(
            f"of the recorded run itself the step is predicted with an error of {calibration.error_fraction:+.1%}"
        )
    if not plans.best:
        need, room = (quantity(size, Unit.BYTES) for size in (plans.leanest_bytes, machine.room_bytes))
        lines.append(f"nothing fits: the leanest needs {need} of the {room} that it may fill")
        return "\n".join(lines) + "\n"
    lines.append("")
    head = f"{'':3}{'step':>8} {'tokens/s':>10} {'MFU':>5} {'memory':>8} {'bubble':>6} {'exposed':>7}  configuration"
    lines.append(head)
    lines += [f"{place:2} {_row(plan)}" for place, plan in enumerate(plans.best[: args.top], start=1)]
    best = plans.best[0].configuration
    lines += ["", f"start the first: {command(args.trainer, question.model, best)}"]
    return "\n".join(lines) + "\n"


def _row(plan: Prediction) -> str:
    exposed = sum(plan.exposed_ns.values()) / plan.step_ns
    step, memory = quantity(plan.step_ns, Unit.NS), quantity(plan.footprint.total_bytes, Unit.BYTES)
    return (
        f"{step:>8} {plan.tokens_per_second:10,.0f} {plan.mfu:5.1%} {memory:>8}"
        f" {plan.bubble_fraction:6.1%} {exposed:7.1%}  {plan.configuration}"
    )


def _json(plans: Plans, calibration: Calibration | None, args: argparse.Namespace) -> str:
    front = {plan.configuration for plan in plans.pareto()}
    data = {
        "format": "usp-prof-plan",
        "version": 1,
        "tried": plans.tried,
        "fitting": len(plans.best),
        "leanest_bytes": plans.leanest_bytes,
        "calibration_error_fraction": calibration.error_fraction if calibration is not None else None,
        "plans": [
            _plain(plan, plans, args.trainer) | {"pareto": plan.configuration in front}
            for plan in plans.best[: args.top]
        ],
    }
    return json.dumps(data, indent=1, sort_keys=True) + "\n"


def _plain(plan: Prediction, plans: Plans, trainer: str) -> dict[str, Any]:
    c = plan.configuration
    return {
        **c.degrees(),
        "zero": c.zero,
        "micro_batch": c.micro_batch,
        "micro_batches": c.micro_batches,
        "schedule": c.schedule if c.pp > 1 else "",
        "chunks": c.chunks,
        "recompute": str(c.recompute),
        "step_ns": round(plan.step_ns),
        "tokens_per_second": plan.tokens_per_second,
        "mfu": plan.mfu,
        "convention": plan.convention,
        "bubble_fraction": plan.bubble_fraction,
        "exposed_ns": {axis: round(time) for axis, time in plan.exposed_ns.items()},
        "memory_bytes": plan.footprint.parts(),
        "command": command(trainer, plans.question.model, c),
    }
