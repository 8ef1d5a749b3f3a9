"""Cases: simulated jobs with one drawn fault, the edits that repair it, and the findings that explain it.

The repaired job has the same random draws as the faulty one, so the difference of their steps is the cost of the fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from simulated_jobs.draws import Dice, draw_options
from simulated_jobs.job import Job
from simulated_jobs.options import Fault, Group, Options, groups_by_rank

LONGEST_PLAIN_GAP_US = 3_000.0
"""Shorter pauses of a host are not distinguished from ordinary work."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A fault, and what is expected of the product."""

    fault: Fault
    codes: tuple[str, ...]
    """Findings that explain the fault."""
    edits: tuple[str, ...]
    """Edits that repair it."""
    names_rank: bool = False
    """Whether the finding must name one of the fault's ranks."""
    repaired: Options | None = None
    """The job after the repair, if that is not the job without the fault."""


@dataclass(frozen=True, slots=True)
class Case:
    """A drawn job and its plan; a clean job has none."""

    workload: str
    fault_name: str
    options: Options
    plan: Plan | None


@dataclass(frozen=True, slots=True)
class Draw:
    """What plans are made of: the job, a rank, and a time that the fault costs."""

    options: Options
    dice: Dice
    rank: int
    place: str
    steps: tuple[int, ...] | None
    cost_us: float
    """Cost per step, times the number of steps if only one has the fault."""

    @property
    def all_ranks(self) -> tuple[int, ...]:
        """All ranks of the job."""
        return tuple(range(self.options.ranks))

    def as_peers(self) -> tuple[str, ...]:
        """Return the edit that makes the rank like its peers, if it has any."""
        return (f"rank_as_peers={self.rank}",) if self.options.has_peers else ()

    def node(self) -> tuple[int, ...]:
        """Return the ranks of the rank's node."""
        first = self.rank // self.options.ranks_per_node * self.options.ranks_per_node
        return tuple(range(first, first + self.options.ranks_per_node))


def draw_case(workload: str, fault_name: str, seed: int) -> Case | None:
    """Draw a case, or return `None` if the workload cannot have this fault."""
    names = (workload, fault_name)
    dice = Dice(seed, *(int.from_bytes(name.encode(), "big") % 2**32 for name in names))
    options = _suited(draw_options(workload, dice), fault_name, dice)
    if fault_name == "clean":
        return Case(workload, fault_name, options, None)
    step_us = Job(options).simulate().rank_step_us()
    place = dice.pick(("forward", "backward", "optimizer"))
    if options.workload in ("graph", "zero3", "pipeline") or (options.steps == 1 and place == "optimizer"):
        place = "forward"
    steps = None if options.steps == 1 or dice.chance(0.7) else (dice.pick(range(options.steps)),)
    share = dice.pick((0.03, 0.06, 0.12, 0.2, 0.35)) * dice.between(1, 1.6)
    cost_us = share * step_us * (options.steps if steps else 1)
    plan = FAULTS[fault_name](Draw(options, dice, dice.pick(range(options.ranks)), place, steps, cost_us))
    return None if plan is None else Case(workload, fault_name, options, plan)


def _suited(options: Options, fault_name: str, dice: Dice) -> Options:
    """Remove what a repair of all blocking calls would remove, too, and give nodes several ranks."""
    if fault_name in ("syncs_all", "copies", "copies_all"):
        clip = "yes" if options.clip else ""
        return replace(options, clip=clip, host_to_device="pinned", log_every=1, has_device_syncs=False)
    if fault_name.endswith("_of_node") and options.ranks == 8:
        return replace(options, ranks_per_node=dice.pick((2, 4)))
    return options


def _pause(draw: Draw) -> Plan:
    fault = Fault("pause", (draw.rank,), draw.cost_us, draw.steps, draw.place)
    edits = (f"no_pauses,rank={draw.rank}",) if draw.cost_us > LONGEST_PLAIN_GAP_US else ()
    return Plan(fault, ("host-pause", "late-rank", "slow-host"), (*edits, *draw.as_peers()), names_rank=True)


def _pause_all(draw: Draw) -> Plan | None:
    fault = Fault("pause", draw.all_ranks, draw.cost_us, draw.steps, draw.place)
    return Plan(fault, ("host-pause",), ("no_pauses",)) if draw.cost_us > LONGEST_PLAIN_GAP_US else None


def _slow_host(draw: Draw) -> Plan | None:
    fault = Fault("slow_host", (draw.rank,), draw.dice.pick((1.5, 2.0, 3.0, 5.0)))
    edits = (*draw.as_peers(), f"host_as_peers={draw.rank}")
    return Plan(fault, ("slow-host", "late-rank"), edits, names_rank=True) if draw.options.has_peers else None


def _slow_gpu(draw: Draw) -> Plan:
    factor = draw.dice.pick((1.08, 1.15, 1.3, 1.5))
    count = draw.dice.pick((1, 1, 2)) if draw.options.ranks == 8 and draw.options.workload != "pipeline" else 1
    ranks = draw.dice.sample(count, draw.options.ranks)
    steps = draw.steps if factor > 1.2 else None
    edits: tuple[str, ...] = ()
    if draw.options.has_peers:
        edits += ("rank_as_peers=" + "+".join(map(str, ranks)),)
    if count == 1 and not steps:
        edits += (f"compute_faster={factor},rank={ranks[0]}",)
    codes = ("slow-rank", "late-rank") if draw.options.has_peers else ("stage-imbalance",)
    return Plan(Fault("slow_gpu", ranks, factor, steps), codes, edits, names_rank=draw.options.has_peers)


def _whole_node(kind: str, sizes: tuple[float, ...], code: str) -> Callable[[Draw], Plan | None]:
    def plan(draw: Draw) -> Plan | None:
        if draw.options.ranks < 8 or draw.options.workload == "pipeline":
            return None
        ranks = draw.node()
        edit = "rank_as_peers=" + "+".join(map(str, ranks))
        fault = Fault(kind, ranks, draw.dice.pick(sizes) if sizes else draw.cost_us, None if sizes else draw.steps)
        edits = (edit,) if sizes else ("no_input_wait", edit)
        return Plan(fault, (code, "late-rank"), edits, names_rank=bool(sizes))

    return plan


def _slow_link(draw: Draw) -> Plan | None:
    options, groups = draw.options, groups_by_rank(draw.options)
    if options.workload == "pipeline":
        is_one_link = options.pp == 2 and options.ranks == 4
        return _link(draw, groups[draw.rank]["pp"], (3.0, 6.0)) if is_one_link else None
    role = {"fsdp": "shard", "moe": "ep", "tp": "tp"}.get(options.workload, "")
    group = groups[draw.rank].get(role)
    return _link(draw, group, (1.5, 2.0, 4.0)) if group and len(group.ranks) < options.ranks else None


def _link(draw: Draw, group: Group, factors: tuple[float, ...]) -> Plan:
    fault = Fault("slow_link", group.ranks, draw.dice.pick(factors), axis=group.axis)
    return Plan(fault, ("slow-link",), ("link_as_peers=all",), names_rank=True)


def _late_input(draw: Draw) -> Plan:
    fault = Fault("late_input", (draw.rank,), draw.cost_us, draw.steps)
    edits = (f"no_input_wait,rank={draw.rank}", *draw.as_peers())
    return Plan(fault, ("late-input", "late-rank"), edits, names_rank=True)


def _late_input_all(draw: Draw) -> Plan:
    return Plan(Fault("late_input", draw.all_ranks, draw.cost_us, draw.steps), ("late-input",), ("no_input_wait",))


def _sync_fault(draw: Draw, ranks: tuple[int, ...]) -> Fault:
    in_layers, count = draw.dice.chance(0.7), draw.dice.pick((1, 3))
    return Fault("syncs", ranks, place=draw.place, is_in_each_layer=in_layers, count=count)


def _syncs(draw: Draw) -> Plan:
    fault = _sync_fault(draw, (draw.rank,))
    return Plan(fault, ("blocking-sync", "late-rank", "slow-host"), draw.as_peers(), names_rank=True)


def _syncs_all(draw: Draw) -> Plan | None:
    fault = _sync_fault(draw, draw.all_ranks)
    repaired = replace(draw.options, fault=replace(fault, is_repaired=True))
    reads_values = draw.options.workload in ("zero3", "moe")
    return None if reads_values else Plan(fault, ("blocking-sync",), ("no_blocking",), repaired=repaired)


def _allocation_fault(draw: Draw, ranks: tuple[int, ...]) -> Fault:
    in_layers, count, us = draw.dice.chance(0.5), draw.dice.pick((1, 3)), draw.dice.pick((200.0, 800.0))
    return Fault("allocations", ranks, us, draw.steps, draw.place, in_layers, count)


def _allocations(draw: Draw) -> Plan:
    fault, edit = _allocation_fault(draw, (draw.rank,)), f"no_allocator_calls,rank={draw.rank}"
    codes = ("memory-pressure", "late-rank", "slow-host")
    return Plan(fault, codes, (edit, *draw.as_peers()), names_rank=True)


def _allocations_all(draw: Draw) -> Plan:
    return Plan(_allocation_fault(draw, draw.all_ranks), ("memory-pressure",), ("no_allocator_calls",))


def _copy_plan(draw: Draw, ranks: tuple[int, ...], codes: tuple[str, ...]) -> Plan | None:
    in_layers, us = draw.dice.chance(0.5), draw.dice.pick((50.0, 300.0))
    fault = Fault("copies", ranks, us, is_in_each_layer=in_layers)
    repaired = replace(draw.options, fault=replace(fault, is_repaired=True))
    reads_values = draw.options.workload in ("zero3", "moe")
    return None if reads_values else Plan(fault, codes, ("no_blocking=copies", "pinned_copies"), repaired=repaired)


def _copies(draw: Draw) -> Plan | None:
    return _copy_plan(draw, (draw.rank,), ("blocking-copies", "late-rank", "slow-host"))


def _copies_all(draw: Draw) -> Plan | None:
    return _copy_plan(draw, draw.all_ranks, ("blocking-copies",))


def _experts(draw: Draw) -> Plan | None:
    fault = Fault("experts", (draw.rank,), draw.dice.pick((1.5, 2.0, 3.0)))
    repaired = replace(draw.options, routing_spread=0.0)
    is_moe = draw.options.workload == "moe"
    return Plan(fault, ("uneven-experts",), ("even_work=ep",), repaired=repaired) if is_moe else None


def _stage(draw: Draw) -> Plan | None:
    options, factor = draw.options, draw.dice.pick((1.2, 1.5, 2.0))
    if options.workload != "pipeline":
        return None
    group = groups_by_rank(options)[draw.rank]["pp"]
    per_stage = options.ranks // options.pp
    first = group.ranks.index(draw.rank) * per_stage
    fault = Fault("stage", tuple(range(first, first + per_stage)), factor)
    repaired = replace(options, scale=options.scale * (options.pp - 1 + factor) / options.pp)
    return Plan(fault, ("stage-imbalance",), ("balance_stages",), repaired=repaired)


def _contention(draw: Draw) -> Plan | None:
    probability, us = draw.dice.pick((0.01, 0.05)), draw.dice.pick((200.0, 600.0))
    fault = Fault("contention", (draw.rank,), us, probability=probability)
    edits = (*draw.as_peers(), f"host_as_peers={draw.rank}")
    codes = ("slow-host", "host-pause", "late-rank")
    return Plan(fault, codes, edits, names_rank=True) if draw.options.has_peers else None


def _long_sequences(draw: Draw) -> Plan | None:
    fault = Fault("long_sequences", (draw.rank,), draw.dice.pick((1.3, 1.6)))
    codes = ("slow-rank", "unequal-lengths", "uneven-sequence", "late-rank")
    has_attention = draw.options.has_peers and draw.options.workload not in ("compile", "graph")
    return Plan(fault, codes, draw.as_peers(), names_rank=True) if has_attention else None


FAULTS: dict[str, Callable[[Draw], Plan | None]] = {
    "pause": _pause,
    "pause_all": _pause_all,
    "slow_host": _slow_host,
    "slow_gpu": _slow_gpu,
    "slow_link": _slow_link,
    "late_input": _late_input,
    "late_input_all": _late_input_all,
    "syncs": _syncs,
    "syncs_all": _syncs_all,
    "allocations": _allocations,
    "allocations_all": _allocations_all,
    "copies": _copies,
    "copies_all": _copies_all,
    "slow_gpus_of_node": _whole_node("slow_gpu", (1.15, 1.3, 1.5), "slow-rank"),
    "slow_hosts_of_node": _whole_node("slow_host", (2.0, 4.0), "slow-host"),
    "late_input_of_node": _whole_node("late_input", (), "late-input"),
    "experts": _experts,
    "stage": _stage,
    "contention": _contention,
    "long_sequences": _long_sequences,
    "clean": lambda _: None,
}
"""Plan of every fault; `_all` is a fault of all ranks."""
