"""Fault rules: which injected faults can strike in a run; those that would change nothing are refused."""

from __future__ import annotations

from trainer.configuration.config import Config
from trainer.configuration.faults import KINDS, ONCE, Fault
from trainer.configuration.options import refuse
from trainer.instrumentation.injection import struck
from trainer.instrumentation.slow_link import LONGEST_MS

LOOKED_AT = 100_000
"""Steps that are checked: a fault must act in at least one."""


def check_faults(config: Config) -> None:
    """Refuse a fault that cannot strike, and a second one that would change nothing more."""
    for fault in config.faults:
        _check_fault(fault, config)
    kinds = [fault.kind for fault in config.faults]
    twice = next((kind for kind in ONCE if kinds.count(kind) > 1), "")
    refuse(twice, f"--fault {twice} is given twice, and the second changes nothing", "leave one out")


def _check_fault(fault: Fault, config: Config) -> None:
    """Refuse a fault whose settings are out of range, which begins too late, or which strikes no rank."""
    layout, shape, title = config.layout, config.shape, f"--fault {fault.kind}"
    fitting = "--experts 8" if shape.can_have_experts else "leave --fault out"
    refuse("expert" in fault.settings and not shape.experts, f"{title} needs routed experts", fitting)
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
    never = not any(fault.acts(step, config.options.seed) for step in range(min(steps, LOOKED_AT)))
    refuse(never, f"{title}: it acts in none of the {steps} steps", "leave out what says when it acts")
    refuse(not struck(fault, config), f"{title}: it strikes no rank", f"hosts={layout.world}")
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
    fitting = f"axis={min(axes)}" if axes else "leave --fault out"
    refuse(fault["axis"] not in axes, f"{title}: axis={fault['axis']} has one rank here", fitting)
    rule = f"{title}: Linux holds a message back for {LONGEST_MS} ms at most"
    refuse(fault["delay_ms"] >= LONGEST_MS, rule, f"delay_ms={LONGEST_MS // 2}")
    slow = fault["mbps"] or fault["delay_ms"]
    refuse(not slow, f"{title}: neither mbps nor delay_ms is given, so nothing is slow", "delay_ms=1")
