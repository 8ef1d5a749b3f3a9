"""Show predicted and measured memory of each pipeline rank, by part."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import isfinite

from usp_prof.cli.opening import (
    choice_options,
    format_option,
    number_option,
    open_from,
    refuse_choice_without_path,
    write_out,
)
from usp_prof.contract import ModelEntry
from usp_prof.extras.planner.answers.one_plan import bars, fullest, memory_parts
from usp_prof.extras.planner.candidates import KNOBS
from usp_prof.extras.planner.filled import Filled, fill_of_model, fill_of_run, rank_rows
from usp_prof.extras.planner.options import add_habits, add_knobs, add_types
from usp_prof.extras.planner.profiles import DEFAULT_TRAINER
from usp_prof.extras.planner.question import not_modelled, planned_model
from usp_prof.extras.planner.ranges import SIZES, check_numbers, option
from usp_prof.model.errors import UsageError
from usp_prof.model.metric import Unit
from usp_prof.model.printable import counted
from usp_prof.report.format import quantity
from usp_prof.report.writers.json_text import answer_text

EXAMPLES = """\
  usp-prof memory --model Llama-3-8B --sequence 8192 --tp 8 --device H100
  usp-prof memory --model Llama-3-70B --sequence 8192 --dp 4 --tp 8 --pp 4 \\
    --zero 1 --micro-batches 16 --device H100
  usp-prof memory --model config.json --sequence 4096 --tp 4 \\
    --sequence-parallel off --attention unfused
  usp-prof memory traces/run-8r
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "path", metavar="PATH", nargs="?", help="recorded run, for its configuration and measured peaks"
    )
    choice_options(parser)
    parser.add_argument("--model", metavar="MODEL", help="known name, Hugging Face config.json, or our JSON")
    number_option(parser, "--sequence", "tokens per sequence (default: as pretrained)")
    parser.add_argument("--device", metavar="NAME", help="device whose memory size is shown")
    add_knobs(parser)
    parser.add_argument(
        "--attention", choices=("fused", "unfused"), default="fused", help="unfused stores the score matrix"
    )
    add_types(parser)
    add_habits(parser, DEFAULT_TRAINER, DEFAULT_TRAINER)
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    """Predict and print; return 1 if the fullest rank does not fit the device."""
    refuse_choice_without_path(args)
    device = args.device or ""
    if args.path:
        filled = fill_of_run(open_from(args).tables, device)
        assumed = [] if filled.measured_bytes else ["measured: nothing (a CPU, or recorded without memory)"]
    elif args.model:
        check_numbers({name: getattr(args, name) for name in ("sequence", *SIZES)}, option)
        model = planned_model(args.model, args.sequence, None, "give --sequence")
        filled, assumed = _of_options(args, model, device), [f"sequence: {model.sequence} tokens"]
        assumed += [f"trainer: {args.habits}", *(f"not modeled: {omission}" for omission in not_modelled(model))]
    else:
        raise UsageError("give a run, or --model with the degrees", hint=EXAMPLES.splitlines()[0].strip())
    write_out(_json(filled) if args.format == "json" else _text(filled, assumed))
    return 0 if filled.fits else 1


def _of_options(args: argparse.Namespace, model: ModelEntry, device: str) -> Filled:
    """Predict the configuration that the options describe."""
    given = {name: value for name in (*KNOBS, "dtype", *SIZES) if (value := getattr(args, name))}
    return fill_of_model(model, given | {"fused_attention": args.attention == "fused"}, device, args.habits)


def _text(filled: Filled, assumed: Sequence[str]) -> str:
    """Format what was assumed, then one line per pipeline rank, followed by one bar per part of its memory."""
    footprints = filled.footprints
    largest = fullest(footprints)
    full_bar_bytes = filled.room_bytes if isfinite(filled.room_bytes) else footprints[largest].total_bytes
    configuration = filled.configuration
    number, size = configuration.micro_batches, configuration.micro_batch
    micro_batches = f"{number:,} micro-batch{'' if number == 1 else 'es'}"
    lines = [
        f"predicted peak memory of each pipeline rank: {configuration}",
        f"{number}x{size} means {micro_batches} of {counted(size, 'sequence')}",
        *assumed,
    ]
    if isfinite(filled.room_bytes):
        lines.append(f"memory that tensors can fill: {quantity(filled.room_bytes, Unit.BYTES)} per device")
        lines.append(f"fits with probability {filled.fit_probability:.0%}")
    for rank, need in enumerate(footprints):
        lines += ["", _rank_line(filled, rank, is_fullest=rank == largest and len(footprints) > 1)]
        lines += bars(memory_parts(need, ""), full_bar_bytes)
    return "\n".join(lines) + "\n"


def _rank_line(filled: Filled, rank: int, *, is_fullest: bool) -> str:
    needed = filled.footprints[rank].total_bytes
    words = [f"pipeline rank {rank}: {quantity(needed, Unit.BYTES)}"]
    if is_fullest:
        words.append("the fullest")
    if rank in filled.measured_bytes:
        words.append(f"measured {quantity(filled.measured_bytes[rank], Unit.BYTES)}")
    if isfinite(filled.room_bytes):
        words.append(f"{needed / filled.room_bytes:.0%} of what tensors can fill")
    return ", ".join(words)


def _json(filled: Filled) -> str:
    fields = {
        "configuration": str(filled.configuration),
        "device_bytes": filled.room_bytes,
        "fit_probability": filled.fit_probability,
        "ranks": rank_rows(filled, without_measurement=None),
    }
    return answer_text("memory", fields)
