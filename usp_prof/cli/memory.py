"""What fills memory? `usp-prof memory` predicts every pipeline rank, part by part, beside what a run measured."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from usp_prof.analyses import memory as measured_memory
from usp_prof.cli.opening import choice_options, open_from
from usp_prof.cli.plan_text import bar
from usp_prof.model.configuration import Configuration, Recompute, broken_rule
from usp_prof.model.errors import InputError, UsageError
from usp_prof.model.hardware import find
from usp_prof.model.metric import Unit
from usp_prof.planner import memory
from usp_prof.planner.calibration import NEUTRAL, recorded_configuration
from usp_prof.planner.cluster import of_device
from usp_prof.planner.models import model_named
from usp_prof.planner.profiles import DEFAULT_TRAINER, PROFILES, profile_named
from usp_prof.report.format import quantity

if TYPE_CHECKING:
    import argparse

    from usp_prof.contract import ModelEntry
    from usp_prof.model.footprint import Footprint
    from usp_prof.planner.profiles import Profile
    from usp_prof.tables.table_set import TableSet

EXAMPLES = """\
  usp-prof memory --model Llama-3-70B --sequence 8192 --dp 4 --tp 8 --pp 4 --zero 1 --micro-batches 16 --device H100
  usp-prof memory --model config.json --sequence 4096 --tp 4 --sequence-parallel off --attention unfused
  usp-prof memory traces/run-8r
"""
NUMBERS = ("dp", "tp", "cp", "pp", "ep", "micro_batch", "micro_batches", "chunks", "replicas")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("path", metavar="PATH", nargs="?", help="a recorded run: its configuration and its peaks")
    choice_options(parser)
    parser.add_argument("--model", metavar="MODEL", help="a known name, a Hugging Face config.json, or our own fields")
    parser.add_argument("--sequence", metavar="N", type=int, default=0, help="tokens of a sequence")
    parser.add_argument("--device", metavar="NAME", help="draw the bars against this device's memory")
    for name in NUMBERS:
        parser.add_argument("--" + name.replace("_", "-"), metavar="N", type=int, default=1)
    parser.add_argument("--zero", metavar="N", type=int, default=0, help="ZeRO stage, 0 to 3")
    parser.add_argument("--schedule", metavar="NAME", default="1f1b", help="pipeline schedule")
    parser.add_argument("--recompute", choices=tuple(Recompute), default="none", help="what backward computes again")
    parser.add_argument("--dtype", choices=("bf16", "fp16", "fp32", "fp8"), default="bf16", help="type of training")
    parser.add_argument("--sequence-parallel", choices=("on", "off"), default="on", help="beside tensor parallelism")
    parser.add_argument("--attention", choices=("fused", "unfused"), default="fused", help="unfused keeps the scores")
    parser.add_argument("--gradient-bytes", metavar="N", type=float, default=0, help="of a gradient (default: habit)")
    parser.add_argument("--habits", choices=sorted(PROFILES), default=DEFAULT_TRAINER, help="whose habits")
    parser.add_argument("--format", choices=("terminal", "json"), default="terminal", help="how to write it")


def run(args: argparse.Namespace) -> int:
    """Predict and print; 1 when the fullest rank does not fit the device."""
    tables = open_from(args).tables if args.path else None
    model, configuration = _of_run(tables) if tables is not None else _asked(args)
    rule = broken_rule(model, configuration)
    if rule:
        raise UsageError(rule)
    ranks = memory.of_ranks(model, configuration, _profile(args, tables))
    measured = _measured(tables) if tables is not None else {}
    room = of_device(args.device, configuration.dtype).memory_bytes if args.device else 0.0
    write = _json if args.format == "json" else _text
    sys.stdout.write(write(configuration, ranks, measured, room))
    return 1 if room and max(rank.total_bytes for rank in ranks) > room else 0


def _profile(args: argparse.Namespace, tables: TableSet | None) -> Profile:
    """Give whose habits to predict with: a run on a device that nobody knows (a CPU) has the formulas alone."""
    if tables is None or tables.manifest is None:
        return profile_named(args.habits)
    return profile_named("usp-prof") if find(tables.manifest.device) is not None else NEUTRAL


def _asked(args: argparse.Namespace) -> tuple[ModelEntry, Configuration]:
    if not args.model:
        raise UsageError("give a run, or --model with the degrees", hint=EXAMPLES.splitlines()[0].strip())
    model = model_named(args.model, args.sequence)
    if not model.sequence:
        raise UsageError("the model's description gives no sequence length", hint="give --sequence")
    return model, Configuration(
        **{name: getattr(args, name) for name in NUMBERS},
        zero=args.zero,
        schedule=args.schedule,
        recompute=Recompute(args.recompute),
        dtype=args.dtype,
        sequence_parallel=args.sequence_parallel == "on",
        fused_attention=args.attention == "fused",
        gradient_bytes=args.gradient_bytes,
    )


def _of_run(tables: TableSet) -> tuple[ModelEntry, Configuration]:
    manifest = tables.manifest
    model = tables.assumptions.model or (manifest.model if manifest is not None else None)
    if manifest is None or model is None or not (model.layers and model.hidden and model.sequence):
        raise InputError(
            "the run does not tell its model and mesh, so that its memory cannot be predicted",
            hint="record it with usp_prof.record, which writes run.json, or give --model and the degrees",
        )
    return model, replace(recorded_configuration(manifest, model), fused_attention=True)


def _measured(tables: TableSet) -> dict[int, int]:
    """Give the highest measured peak of the ranks of each pipeline rank, from the traces or their snapshots."""
    manifest = tables.manifest
    found: dict[int, int] = {}
    for peak in measured_memory.compute(tables).peaks:
        place = manifest.coordinates.get(str(peak.rank), {}).get("pp", 0) if manifest is not None else 0
        found[place] = max(found.get(place, 0), peak.allocated)
    return found


def _text(configuration: Configuration, ranks: tuple[Footprint, ...], measured: dict[int, int], room: float) -> str:
    fullest = max(range(len(ranks)), key=lambda rank: ranks[rank].total_bytes)
    whole = room or ranks[fullest].total_bytes
    lines = [f"{configuration}: predicted peak of each pipeline rank"]
    for rank, need in enumerate(ranks):
        words = [f"pipeline rank {rank}: {quantity(need.total_bytes, Unit.BYTES)}"]
        words += ["the fullest"] if rank == fullest and len(ranks) > 1 else []
        words += [f"measured {quantity(measured[rank], Unit.BYTES)}"] if rank in measured else []
        words += [f"{need.total_bytes / room:.0%} of the device"] if room else []
        lines += ["", ", ".join(words)]
        lines += [
            bar(part.removesuffix("_bytes"), size, whole, Unit.BYTES) for part, size in need.parts().items() if size
        ]
    return "\n".join(lines) + "\n"


def _json(configuration: Configuration, ranks: tuple[Footprint, ...], measured: dict[int, int], room: float) -> str:
    data = {
        "format": "usp-prof-memory",
        "version": 1,
        "configuration": str(configuration),
        "device_bytes": room or None,
        "ranks": [
            {
                "pipeline_rank": rank,
                "total_bytes": need.total_bytes,
                "measured_bytes": measured.get(rank),
                **need.parts(),
            }
            for rank, need in enumerate(ranks)
        ],
    }
    return json.dumps(data, indent=1, sort_keys=True) + "\n"
