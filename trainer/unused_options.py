"""Unused options: options and faults without an effect in this run are refused, with what they would need.

    torchrun --nproc-per-node 2 trainer/run.py --schedule zbv
    error: --schedule zbv needs --pp
    hint: leave --schedule out

Most such options declare what they need (`options.py`); `conditions` adds the others. An option at its default is never
refused. Paces of work that the run does not do are refused as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, fields, replace
from typing import Any

from trainer.configuration.config import Config
from trainer.configuration.faults import HOUR_MS, KINDS, ONCE, Fault
from trainer.configuration.layout import ORDER
from trainer.configuration.options import OptionError, Options, flag_of, refuse
from trainer.instrumentation.injection import affected_ranks
from trainer.instrumentation.pacing import ACHIEVED
from trainer.instrumentation.slow_link import LONGEST_MS

WEIGHT_BYTES = 4
"""Size of one weight in fp32, the type of masters and gradients."""
CHECKED_STEPS = 100_000
"""Maximum number of steps in which a fault must act at least once."""


def conditions(config: Config) -> Iterator[tuple[str, bool, str]]:
    """Yield options that need others: the option, whether it has an effect, and the reason if it has none."""
    options, layout = config.options, config.layout
    for item in fields(options):
        if need := item.metadata["needs"]:
            yield item.name, _has(config, need), f"needs --{need}"

    # Before --zero itself: with --dp-replicate, a replica may have nothing to shard over.
    unreplicated = replace(layout, dp_replicate=1, dp_shard=layout.dp)
    confines_experts = layout.groups("ep") != unreplicated.groups("ep")
    yield ("dp_replicate", options.zero > 0 or confines_experts, "is for sharding, and --zero is 0")
    leaves_ranks = options.zero == 0 or config.can_shard
    yield ("dp_replicate", leaves_ranks, "leaves each replica no ranks that --zero could shard over")
    yield ("zero", config.can_shard, "shards over dp and cp, which are 1")

    in_buckets = options.zero < 2 and config.sums_gradients
    yield ("bucket_mb", in_buckets, "is for gradient buckets, which need ZeRO-0 or -1 and dp or cp")
    unbucketed = any(fault.kind == "unbucketed" for fault in config.faults)
    yield ("bucket_mb", not unbucketed, "is for gradient buckets, and --fault unbucketed leaves none")
    yield ("prefetch", options.zero >= 2, "is for the gathered weights of ZeRO-2 and -3")

    yield ("stages_per_rank", config.traits.is_looped, "is for the interleaved schedules")
    other_layout = replace(layout, ep_outer=not layout.ep_outer)
    differs = layout.groups("ep") != other_layout.groups("ep")
    yield ("ep_layout", differs, "changes nothing: experts borrow the same ranks either way")

    never = f"is not before the end of the run, which --steps {options.steps} sets"
    yield ("checkpoint_every", options.checkpoint_every < options.steps, never)
    yield ("log_every", options.log_every <= options.steps, never)
    writes = options.profile or options.metrics != "json"
    yield ("output", writes, "is for traces and metrics on disk, and --metrics json writes neither")
    names_device = options.pace in ACHIEVED
    yield ("pace_model", names_device, "is for a named device: --pace h100, a100 or b200")
    yield ("flop_convention", not options.pace, "is for MFU, which paced runs do not show")


def _has(config: Config, need: str) -> bool:
    """Return whether a run has several ranks on an axis, experts, or a value of another option."""
    if need in ORDER or need == "ep":
        return bool(getattr(config.layout, need) > 1)
    return bool(config.shape.experts if need == "experts" else getattr(config.options, need))


def check_effects(config: Config) -> None:
    """Refuse options without an effect."""
    options = config.options
    items = {item.name: item for item in fields(Options)}
    for name, acts, why_not in conditions(config):
        typed = _typed(items[name], options)
        refuse(typed and not acts, f"{typed} {why_not}", f"leave {typed.partition(' ')[0]} out")
    rule = f"--bucket-mb {options.bucket_mb:g} is less than one weight"
    refuse(0 < options.bucket_mb * 2**20 < WEIGHT_BYTES, rule, "--bucket-mb 25")
    too_long = options.warmup > max(options.steps, Options().warmup)
    rule = f"--warmup {options.warmup} is longer than the run, which --steps {options.steps} sets"
    refuse(too_long, rule, f"--warmup {options.steps}")
    check_window(options)
    _check_pace(config)


def _typed(item: Field[Any], options: Options) -> str:
    """Return an option as it was typed; empty if it has its default or no effect."""
    value, flag = getattr(options, item.name), flag_of(item)
    if item.default is True:
        return "" if value else flag.replace("--", "--no-", 1)
    if value in {item.default, 0, ""}:
        return ""
    return flag if value is True else f"{flag} {value}"


def check_window(options: Options, begun: int = 0) -> None:
    """Refuse a run that ends before the steps that it should record; a resumed run begins with step `begun`."""
    window = options.recorded_steps(begun)
    rule = f"--profile records steps {window.start} to {window.stop - 1}, and --steps is {options.steps}"
    refuse(options.profile and begun < options.steps < window.stop, rule, f"--steps {window.stop}")


def _check_pace(config: Config) -> None:
    """Refuse invalid times, and times of work that this run does not do."""
    pace = config.options.pace
    if not pace or pace in ACHIEVED:
        return
    times = [float(part) for part in pace.split(",")]
    wrong = not all(0 <= time <= HOUR_MS for time in times)
    refuse(wrong, f"--pace {pace}: times must be milliseconds from zero to an hour", "--pace 20,20,20")
    refuse(not any(times), f"--pace {pace}: all waits are zero", "--pace 20,20,20")

    # F,I,W,A,E: the fourth time is attention's if its work varies, the fifth that of the routed experts.
    has_ring = config.layout.cp > 1 and config.options.cp_method == "ring"
    has_documents = any(fault.kind == "unequal-lengths" for fault in config.faults)
    has_experts = config.shape.experts > 0
    varies = has_ring or has_documents
    if has_documents and not any(times[3:4]):
        rule = f"--pace {pace}: documents of unequal lengths differ in attention, the fourth time"
        suggestion = [*times[:3], times[0] or 20.0, *times[4:]]
        raise OptionError(rule, hint=f"--pace {','.join(f'{time:g}' for time in suggestion)}")
    for place, present, work in ((4, has_experts, "routed experts"), (3, varies, "ring attention")):
        if len(times) > place and times[place] > 0 and not present:
            times[place] = 0.0
            rule = f"--pace {pace}: this run has no {work} to wait for"
            raise OptionError(rule, hint=f"--pace {','.join(f'{time:g}' for time in times)}")


def check_faults(config: Config) -> None:
    """Refuse a fault without an effect, and a second one without a further effect."""
    for fault in config.faults:
        _check_fault(fault, config)
    kinds = [fault.kind for fault in config.faults]
    twice = next((kind for kind in ONCE if kinds.count(kind) > 1), "")
    refuse(twice, f"--fault {twice} is given twice, and the second changes nothing", "leave one out")


def _check_fault(fault: Fault, config: Config) -> None:
    """Refuse a fault whose settings are out of range, which starts too late, or which affects no rank."""
    layout, shape, title = config.layout, config.shape, f"--fault {fault.kind}"
    suggestion = "--experts 8" if shape.can_have_experts else "leave --fault out"
    refuse("expert" in fault.settings and not shape.experts, f"{title} needs routed experts", suggestion)
    limits = {"rank": layout.world, "stage": config.stages, "dp": layout.dp, "expert": shape.experts}
    limits["host"] = fault.settings.get("hosts")
    for key, limit in limits.items():
        if key in fault.settings:
            lowest = min(0, KINDS[fault.kind][key])  # -1: all
            rule = f"{title}: {key}={fault[key]} must be 0 to {limit - 1}"
            refuse(not lowest <= fault[key] < limit, rule, f"{key}={limit - 1}")
    steps = config.options.steps
    first = int(str(fault.settings.get("steps") or "0").partition("-")[0])
    refuse(first >= steps, f"{title}: it begins with step {first} of {steps}", f"steps={steps - 1}")
    never = not any(fault.acts(step, config.options.seed) for step in range(min(steps, CHECKED_STEPS)))
    refuse(never, f"{title}: it acts in none of the {steps} steps", "leave out what says when it acts")
    refuse(not affected_ranks(fault, config), f"{title}: it affects no rank", f"hosts={layout.world}")
    match fault.kind:
        case "slow-link":
            _check_slow_link(fault, config)
        case "unequal-lengths":
            _check_lengths(fault, config)
        case "expert-imbalance":
            everyone = shape.top_k >= shape.experts
            rule = f"{title}: each token takes all {shape.experts} experts, so none can be preferred"
            refuse(everyone, rule, f"--experts {2 * shape.experts}")
        case "unbucketed" | "unoverlapped":
            rule = f"{title}: no gradients are summed, dp and cp are 1"
            refuse(not config.sums_gradients, rule, "leave --fault out")
            rule = f"{title} is about gradient buckets, which ZeRO-2 and -3 do not have"
            refuse(config.options.zero >= 2, rule, "--zero 1")


def _check_lengths(fault: Fault, config: Config) -> None:
    title, options, sequence = "--fault unequal-lengths", config.options, config.shape.sequence
    refuse(config.layout.cp > 1, f"{title} cuts sequences that cp holds together", "--cp 1")
    most = sequence // 2  # documents of one token each would all be equal
    rule = f"{title}: {fault['documents']} documents of unequal lengths in {sequence} tokens"
    refuse(most < 2, rule, "--sequence 64")
    refuse(fault["documents"] > most, rule, f"documents={most}")
    rule = f"{title} cuts each micro-batch differently, and --compile would compile the layers for each"
    refuse(options.compile, rule, "leave --compile out")


def _check_slow_link(fault: Fault, config: Config) -> None:
    title = "--fault slow-link"
    axes = {axis for axis, size in config.layout.axes().items() if size > 1}
    suggestion = f"axis={min(axes)}" if axes else "leave --fault out"
    refuse(fault["axis"] not in axes, f"{title}: axis={fault['axis']} has one rank here", suggestion)
    rule = f"{title}: Linux holds a message back for {LONGEST_MS} ms at most"
    refuse(fault["delay_ms"] >= LONGEST_MS, rule, f"delay_ms={LONGEST_MS // 2}")
    slow = fault["mbps"] or fault["delay_ms"]
    refuse(not slow, f"{title}: neither mbps nor delay_ms is given, so nothing is slow", "delay_ms=1")
