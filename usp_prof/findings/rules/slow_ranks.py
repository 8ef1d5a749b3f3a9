"""Rules on ranks that delay the others: slower than its peers in compute or launches, or late."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from usp_prof.analyses import stragglers
from usp_prof.analyses.measures.lateness import COVERS, Why
from usp_prof.analyses.stragglers import Culprit
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft, Input
from usp_prof.findings.micro_batches import has_longer_sequences
from usp_prof.findings.proof import longest, slowest_step
from usp_prof.findings.repairs import LATENESS_NEEDS, MOST_RANKS, late_in_messages, repair_edit
from usp_prof.findings.work_shares import has_more_work, is_slow_in_all_work
from usp_prof.model.edit import Edit
from usp_prof.model.printable import spans
from usp_prof.model.rule_code import RuleCode
from usp_prof.model.topology import Axis
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import Graph, NodeKind
from usp_prof.replay.pauses import pauses
from usp_prof.replay.peers import Slowness, compute_by_step, slowness
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.extra_waits import extra_waits, wait_times
from usp_prof.whatif.host_steps import host_slowness, host_steps

SLOW_COMPUTE = 1.05
STEADY = 0.8
"""Share of steps in which a slow rank is slower; a rank with occasional longer batches is not slow."""


class SlowRank:
    """A rank computes slower than its peers.

    What it finds
        A rank whose compute for the same work takes at least 5% longer than the median of its peers, in the median over
        steps and in four of five steps. Peers are the ranks of the same pipeline stage. Repeats of one kernel on one
        machine differ by 1 to 2%, and boards of one model by up to 3%. Several slow ranks are one finding, because
        repairing only one of them saves nothing.

    Why it costs time
        All other ranks of its groups wait for it in every collective. The wait appears as long communication on the
        *other* ranks; the slow rank has the shortest.

    What to do
        Check the rank's clocks, temperature and power (`nvidia-smi -q -d CLOCK,PERFORMANCE`) and other processes on its
        host. Drain the machine if it stays slow.
        - Megatron-LM: `--log-straggler` monitors this, as does NVIDIA's resiliency extension.
        - torchtitan, DeepSpeed, nanotron: no setting.
        - our trainer: `--fault slow-rank` reproduces it.

    How the gain is predicted
        The run is replayed with everything the rank does taking as long as the median of its peers: compute, host work,
        pauses and launches (`rank_as_peers`). If its host's pauses outweigh its slow compute, only the compute is
        changed (`compute_faster`), and `host-pause` covers the rest.

    When it is wrong
        If the rank has more work by design in all micro-batches, such as an uneven division of layers within a stage.
        Ranks with more work in some calls or micro-batches are reported as `uneven-experts`, `uneven-sequence` or
        `unequal-lengths` instead.
    """

    CODE = RuleCode.SLOW_RANK
    TITLE = "A rank computes slower than its peers"
    NEEDS = (Input.ALL_RANKS,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Compare each rank's compute with its peers'; several slow ranks are one finding: fixing one gains nothing."""
        graph = graph_of(tables)
        slow = [
            candidate
            for candidate in slowness(tables, graph).values()
            if candidate.ratio >= SLOW_COMPUTE and _steady(graph, candidate)
        ]
        slow = [candidate for candidate in slow if is_slow_in_all_work(tables, graph, candidate.rank, candidate.ratio)]
        slow = [
            candidate
            for candidate in slow
            if not has_longer_sequences(tables, candidate.rank, candidate.peers, candidate.ratio)
        ]
        if not slow:
            return
        worst = max(slow, key=lambda candidate: (candidate.ratio, -candidate.rank))
        is_worst_compute = np.isin(graph.nodes.rank, [worst.rank]) & (graph.nodes.kind == NodeKind.COMPUTE)
        several = len(slow) > 1
        ranks = spans(candidate.rank for candidate in slow)
        # The same figure as in the table of stragglers, if that one has the same peers.
        slowdown = stragglers.compute(tables).rank_slowdown(worst.rank)
        is_paused = not several and _pauses_outweigh(tables, graph, worst)
        yield Draft(
            f"Rank{'s' if several else ''} {ranks} compute{'' if several else 's'} "
            f"{worst.ratio if np.isnan(slowdown) else slowdown:.2f}x as long as {'their' if several else 'its'} peers",
            {"ranks": ranks} if several else {"rank": worst.rank},
            {"compute_ns": worst.compute_ns, "peers_ns": worst.peers_ns, "peers": len(worst.peers)}
            | dict(slowest_step(graph, is_worst_compute)),
            _compute_alone(worst)
            if is_paused
            else Edit("rank_as_peers", "+".join(str(candidate.rank) for candidate in slow)),
            f"Check clocks, temperature and other processes of rank{'s' if several else ''} {ranks}; drain the machine",
            least_gain=0.01,
            rows=proof.COMPUTE_BY_RANK,
        )


def _pauses_outweigh(tables: TableSet, graph: Graph, slow: Slowness) -> bool:
    """Return whether the rank's host pauses for longer, over all steps, than its compute takes beyond its peers'."""
    paused_ns = pauses(graph, tables).of_ranks(graph, [slow.rank]).excess_ns.sum()
    steps = len(compute_by_step(graph, slow.rank))
    return bool(paused_ns > (slow.compute_ns - slow.peers_ns) * steps)


def _compute_alone(slow: Slowness) -> Edit:
    """Let the rank compute as its peers do, and its host pause as it did."""
    return Edit("compute_faster", f"{slow.ratio:.4g}", (("rank", str(slow.rank)),))


def _steady(graph: Graph, slow: Slowness) -> bool:
    """Return whether the rank is slower than its peers in nearly all steps."""
    own = compute_by_step(graph, slow.rank)
    of_peers = [compute_by_step(graph, rank) for rank in slow.peers]
    slower = []
    for step, time in own.items():
        peer_values = [peer_steps[step] for peer_steps in of_peers if step in peer_steps]
        if peer_values:
            slower.append(time >= (1 + (SLOW_COMPUTE - 1) / 2) * float(np.median(peer_values)))
    return bool(slower) and float(np.mean(slower)) >= STEADY


SLOW_LAUNCHES = 1.25
ALIKE = 0.5
"""Slow hosts are repaired together if the excess of each is at least this share of the worst host's excess."""


class SlowHost:
    """The host of a rank launches work slower than its peers.

    What it finds
        Device traces in which one rank's host takes at least 1.25 times as long from launch to launch as the median of
        the others, if launching as fast would shorten the step by at least 2%. Hosts of one kind differ by about 10%.
        Several slow hosts, such as those of one node, are one finding: repairing only one of them saves nothing.

    Why it costs time
        The device of that rank waits for launches and arrives late in its collectives, so all other ranks wait. Its
        kernels look healthy.

    What to do
        Check the host: clock governor, other processes on its cores, NUMA placement (`numactl`, `nvidia-smi topo -m`),
        memory bandwidth, a debugger or profiler left running.
        - DeepSpeed: `--bind_cores_to_rank` pins processes.
        - torchtitan, Megatron-LM, nanotron, our trainer: no setting; reduce launches (`usp-prof explain host-bound`).

    How the gain is predicted
        The run is replayed with the own time of these hosts (work, pauses, launches) at the median of their peers, for
        each part of each step (`host_as_peers`).

    When it is wrong
        If the rank launches different work by design, such as the loss on the last pipeline stage, or logging.
    """

    CODE = RuleCode.SLOW_HOST
    TITLE = "The host of a rank launches work slower than its peers"
    NEEDS = (Input.ALL_RANKS, Input.LAUNCHES)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Compare the hosts' times between launches; hosts that are about equally slow are one finding."""
        graph = graph_of(tables)
        slow = {rank: ratio for rank, ratio in host_slowness(graph).items() if ratio >= SLOW_LAUNCHES}
        if not slow:
            return
        excess_of_worst = max(slow.values()) - 1
        alike = [rank for rank, ratio in slow.items() if ratio - 1 >= ALIKE * excess_of_worst]
        yield _slow_hosts(graph, {rank: slow[rank] for rank in alike})
        for rank in slow.keys() - set(alike):
            yield _slow_hosts(graph, {rank: slow[rank]})


def _slow_hosts(graph: Graph, ratios: Mapping[int, float]) -> Draft:
    """Draft the finding on hosts that are slow together, by rank how much longer each takes."""
    several = len(ratios) > 1
    worst = max(ratios, key=lambda rank: (ratios[rank], -rank))
    ranks, ratio = spans(ratios), ratios[worst]
    is_of_host = (graph.nodes.kind == NodeKind.HOST) & np.isin(graph.nodes.rank, list(ratios))
    launch_ns = np.maximum(graph.gap, 0) + graph.nodes.duration
    return Draft(
        f"The host{'s' if several else ''} of rank{'s' if several else ''} {ranks} take{'' if several else 's'} "
        f"{ratio:.2f}x as long to launch as {'their' if several else 'its'} peers",
        {"ranks": ranks} if several else {"rank": worst},
        {"ratio": ratio, "launches": int(is_of_host.sum()), **longest(graph, is_of_host, launch_ns)},
        Edit("host_as_peers", "+".join(map(str, ratios))),
        f"Check cores, clocks and memory placement of the host{'s' if several else ''} of "
        f"rank{'s' if several else ''} {ranks}",
        settings={"DeepSpeed": "--bind_cores_to_rank"},
        rows=proof.heaviest(graph, is_of_host, launch_ns),
    )


SAYS_WHY = (
    RuleCode.SLOW_RANK,
    RuleCode.SLOW_HOST,
    RuleCode.HOST_PAUSE,
    RuleCode.LATE_INPUT,
    RuleCode.SLOW_LINK,
    RuleCode.UNEVEN_EXPERTS,
    RuleCode.UNEVEN_SEQUENCE,
    RuleCode.UNEQUAL_LENGTHS,
    RuleCode.SHARED_CORES,
)
"""Findings that name what makes the rank late."""
COLLECTIVES, MESSAGES = "collectives", "sends and receives"
PAUSES = "its host pauses"
WAITS = "its host waits for the device more often than its peers"
CAUSES = {
    Why.SLOW_COMPUTE: "its compute takes longer",
    Why.MORE_WORK: "it has more work",
    Why.HOST: "its host launches late",
    Why.LATE_INPUT: "it waits for input",
    Why.SLOW_LINK: "its transfers take longer",
    Why.COPIES: "it copies more",
    Why.UNKNOWN: "the trace does not show why",
}
ADVICE = {
    Why.SLOW_COMPUTE: "Check its clocks, power, temperature and other processes",
    Why.MORE_WORK: "Check how layers, experts or tokens are distributed",
    Why.HOST: "Check its host's CPU load, pinning and clocks, and the Python code before the late launches",
    Why.LATE_INPUT: "Use more loader workers, prefetching, or faster storage on its host",
    Why.SLOW_LINK: "Check the link's errors and width, and the placement of ranks",
    Why.COPIES: "Pin memory and copy ahead",
    Why.UNKNOWN: "Record with shapes and stacks on this rank",
}


class LateRank:
    """A rank keeps the others waiting.

    What it finds
        A rank that is late for its collectives because of its own work. Since the group's previous call, it took longer
        than every other member by at least 2% of its step, not counting its waits for others. Broadcasts and scatters
        are not counted, because the others depend on one rank's data. In rings and pipelines, the rank's own time
        between sends and receives is compared with that of its peers.

    Why it costs time
        All participants of a collective wait for the last one. The wait appears as long communication on the *other*
        ranks.

    What to do
        The title says what takes longer on that rank: compute, host, input or link. If another finding explains the
        same rank (`slow-rank`, `host-pause`, `late-input`, `uneven-experts`, `shared-cores`), this one is folded into
        it. If the trace does not show the cause, record that rank with shapes and stacks.
        - Megatron-LM: `--log-straggler` monitors this.
        - torchtitan, nanotron, DeepSpeed: no setting.
        - our trainer: `--fault slow-rank` or `--fault pause` reproduces it.

    How the gain is predicted
        The run is replayed with everything the rank does taking as long as the median of its peers: compute, host work,
        pauses and launches (`rank_as_peers`). Its lateness is evidence, not the gain. A rank with more work than its
        peers (longer sequences, fuller experts, a longer part of a sequence) shares it evenly instead (`even_work`).

    When it is wrong
        If the rank has more work by design. A rank without peers, alone in its pipeline stage, is not
        reported; see `stage-imbalance`. The replayed change leaves slow links as they are; see `slow-link`.
    """

    CODE = RuleCode.LATE_RANK
    TITLE = "A rank keeps the others waiting"
    NEEDS = LATENESS_NEEDS

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Draft one finding for each culprit of the straggler analysis that has peers to be compared with."""
        late = stragglers.compute(tables).culprits
        ranks = {culprit.rank for culprit in late}
        in_messages = [other for other in late_in_messages(tables) if other.rank not in ranks]
        if not late and not in_messages:
            return
        graph = graph_of(tables)
        with_peers = slowness(tables, graph)
        for culprit in late:
            if culprit.rank in with_peers:
                yield _draft(tables, graph, culprit, COLLECTIVES)
        for culprit in in_messages[:MOST_RANKS]:
            if culprit.rank in with_peers:
                yield _draft(tables, graph, culprit, MESSAGES)


def _draft(tables: TableSet, graph: Graph, culprit: Culprit, kind: str) -> Draft:
    often = "" if culprit.persistent else " in some steps"
    edit = repair_edit(tables, culprit.rank)
    has_more = edit.name == "even_work" or (culprit.why is Why.SLOW_COMPUTE and has_more_work(tables, culprit.rank))
    why = Why.MORE_WORK if has_more else culprit.why
    cause, advice = CAUSES[why], ADVICE[why]
    if why is Why.HOST and _is_paused(tables, graph, culprit):
        cause = PAUSES
    elif why is Why.HOST and _waits_more(tables, graph, culprit):
        cause, advice = WAITS, "Remove device synchronizations and reads of values that its peers do not have"
    calls = f"{kind} of unknown axis" if culprit.axis == Axis.UNKNOWN else f"{culprit.axis} {kind}"
    nodes = graph.nodes
    own = (nodes.rank == culprit.rank) & np.isin(nodes.step, culprit.steps)
    return Draft(
        f"Rank {culprit.rank} is late for {calls}{often}: {cause}",
        # Lateness appears on an axis, but belongs to one only if that axis' link is slow.
        {"rank": culprit.rank} | ({"axis": culprit.axis} if why is Why.SLOW_LINK and kind == COLLECTIVES else {}),
        {
            "late_on": culprit.axis,
            "cost_ns": round(culprit.cost_ns),
            "slowdown": culprit.slowdown,
            "steps": ", ".join(map(str, culprit.steps)),
            **{f"{part.replace(' ', '_')}_over_peers_ns": over for part, over in culprit.evidence.items()},
            **slowest_step(graph, own),
        },
        edit,
        advice,
        covers=SAYS_WHY,
        rows=proof.largest("calls", f"late_rank = {culprit.rank}", "wait_ns"),
    )


def _is_paused(tables: TableSet, graph: Graph, culprit: Culprit) -> bool:
    """Return whether pauses of its host cover what the rank costs."""
    of_culprit = pauses(graph, tables).of_ranks(graph, [culprit.rank])
    paused_ns = int(of_culprit.excess_ns[np.isin(graph.nodes.step[of_culprit.node], culprit.steps)].sum())
    return paused_ns >= COVERS * culprit.cost_ns * len(culprit.steps)


def _waits_more(tables: TableSet, graph: Graph, culprit: Culprit) -> bool:
    """Return whether waits for its device that its peers do not have cover what the rank costs."""
    is_extra = extra_waits(graph, tables, host_steps(graph, tables), (culprit.rank,))
    is_extra &= np.isin(graph.nodes.step, culprit.steps)
    return int(wait_times(graph)[is_extra].sum()) >= COVERS * culprit.cost_ns * len(culprit.steps)
