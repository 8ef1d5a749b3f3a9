"""Unused options: an option that would change nothing in this run is refused, with what it would need.

An option at its default asks for nothing. Each row of `rows` is an option, whether it acts in this run, and why not.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from trainer.configuration.options import OptionError, Options, default, flag_of, refuse
from trainer.configuration.settled import Settled
from trainer.synthetic.pacing import ACHIEVED

AT_LEAST_ONE = ("steps", "timeout", "profile_steps")
WARMUP = 1
"""Steps between the skipped and the recorded ones, in which the profiler warms up."""


def check_numbers(options: Options) -> None:
    """Refuse figures that are none, are below zero, or make a run of nothing."""
    for item in fields(options):
        value, flag = getattr(options, item.name), flag_of(item)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        fitting = f"{flag} {default(item) or 1}"
        refuse(not math.isfinite(value), f"{flag} {value} is no number", fitting)
        refuse(value < 0, f"{flag} {value} is below zero", fitting)
        refuse(item.name in AT_LEAST_ONE and value == 0, f"{flag} 0 leaves nothing to do", f"{flag} 1")


def rows(settled: Settled) -> Iterator[tuple[str, bool, str]]:
    """Name each option that acts only beside others, whether it acts, and what it would need."""
    options, layout, shape = settled.options, settled.layout, settled.shape
    summed = layout.dp * layout.cp > 1
    yield "schedule", layout.pp > 1, "orders the work of a pipeline, and --pp is 1"
    yield "stages_per_rank", settled.traits.is_looped, "is for the interleaved schedules"
    yield "top_k", shape.experts > 0, "chooses among experts, and the model has none"
    yield "capacity", shape.experts > 0, "limits what experts take, and the model has none"
    yield "bucket_mb", options.zero < 2 and summed, "sizes gradient buckets, which take ZeRO-0 or -1 and dp or cp"
    yield "sequence_parallel", layout.tp > 1, "is about tensor parallelism, and --tp is 1"
    yield "prefetch", options.zero >= 2, "is about gathered weights, which ZeRO-2 and -3 have"
    yield "cp_method", layout.cp > 1, "is how context ranks attend, and --cp is 1"
    yield "cp_layout", layout.cp > 1, "is how context ranks share a sequence, and --cp is 1"
    yield "ep_layout", layout.ep > 1, "is which ranks experts borrow, and --ep is 1"
    yield "checkpoint_every", bool(options.checkpoint), "needs the folder of the checkpoints: --checkpoint"
    yield "resume", bool(options.checkpoint), "needs the folder of the checkpoints: --checkpoint"
    for recorded in ("output", "profile_skip", "profile_steps", "profile_memory"):
        yield recorded, options.profile, "is about traces, which --profile records"
    yield "pace_model", options.pace in ACHIEVED, "is what a named device computes: --pace h100, a100 or b200"
    yield "flop_convention", not options.pace, "is of the MFU, which a paced run has not"


def check_effects(settled: Settled) -> None:
    """Refuse options that would change nothing."""
    options = settled.options
    items = {item.name: item for item in fields(Options)}
    for name, acts, need in rows(settled):
        item, value = items[name], getattr(options, name)
        asked = value not in {default(item), 0, ""}
        typed = flag_of(item) if isinstance(value, bool) else f"{flag_of(item)} {value}"
        if name in {"prefetch", "profile_memory", "sequence_parallel"}:
            asked, typed = not value, flag_of(item).replace("--", "--no-", 1)
        refuse(asked and not acts, f"{typed} {need}", f"leave {typed.split()[0]} out")
    needed = options.profile_skip + WARMUP + options.profile_steps
    rule = f"--profile records steps {needed - options.profile_steps} to {needed - 1}, and --steps is {options.steps}"
    refuse(options.profile and options.steps < needed, rule, f"--steps {needed}")
    _check_pace(settled)


def _check_pace(settled: Settled) -> None:
    """Refuse times that are none, and those of work that this run has not."""
    if not settled.options.pace or settled.options.pace in ACHIEVED:
        return
    times = [float(part) for part in settled.options.pace.split(",")]
    wrong = any(not math.isfinite(time) or time < 0 for time in times)
    refuse(wrong, f"--pace {settled.options.pace}: times are milliseconds from zero up", "--pace 20,20,20")
    ring = settled.layout.cp > 1 and settled.options.cp_method == "ring"
    for index, acts, what in ((4, settled.shape.experts > 0, "routed experts"), (3, ring, "ring attention")):
        vain = len(times) > index and times[index] > 0 and not acts
        kept = [*times[:index], *(0.0 for _ in times[index : index + 1]), *times[index + 1 :]]
        fitting = ",".join(f"{time:g}" for time in kept)
        refuse(vain, f"--pace {settled.options.pace}: this run has no {what} to wait for", f"--pace {fitting}")


def check_folders(options: Options) -> None:
    """Refuse a folder that cannot be written, before anything is trained for it."""
    for flag, path in (("--checkpoint", options.checkpoint), ("--output", options.output)):
        if not path:
            continue
        place = Path(path).absolute()
        while not place.exists() and place != place.parent:
            place = place.parent
        try:
            with tempfile.TemporaryFile(dir=place):
                pass
        except OSError as error:
            raise OptionError(f"{flag} {path} cannot be written: {error.strerror}", f"{flag} /tmp/run") from error
