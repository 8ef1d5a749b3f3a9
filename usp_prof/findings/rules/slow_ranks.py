"""Rules on one rank that holds the others up: slower than its peers in what it computes or launches, or late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses import stragglers
from usp_prof.analyses.measures.lateness import COVERS, Why
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft, Input
from usp_prof.findings.proof import longest, slowest_step
from usp_prof.findings.rules.unequal_lengths import evened, has_longer_sequences
from usp_prof.findings.rules.uneven_work import everywhere
from usp_prof.model.edit import Edit
from usp_prof.model.health import spans
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import NodeKind
from usp_prof.replay.host_gaps import pauses, think_times
from usp_prof.replay.peers import compute_by_step, slowness
from usp_prof.whatif.host_times import host_slowness

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.analyses.stragglers import Culprit
    from usp_prof.replay.graph import Graph
    from usp_prof.replay.peers import Slowness
    from usp_prof.tables.table_set import TableSet


SLOW_COMPUTE = 1.05
STEADY = 0.8
"""A slow rank is slower in so many of its steps; one whose batches are longer now and then is not slow."""


class SlowRank:
    """One rank computes slower than its peers.

    What it finds
        A rank whose compute for the same work takes, in the median over steps, at least 5 % longer than the median of
        its peers (same pipeline stage, all other coordinates free), and does so in four of five steps. Repeats of one
        kernel on one machine differ by 1 to 2 %, and boards of one model by up to about 3 %: 5 % is neither. A rank
        that takes longer only in some of what it does between the calls of an expert or context group has more work
        instead: see `uneven-experts` and `uneven-sequence`. So has one of which some micro-batches take longer, forward
        and backward alike, and others do not: see `unequal-lengths`. Several slow ranks (a slow machine) are one
        finding, since mending one of them gains nothing.

    Why it costs time
        All other ranks of its groups wait in every collective until it arrives. The wait shows as long communication on
        the *others*: the slow rank is the one with the shortest.

    What to do
        Look at the rank's clocks, temperature and power (`nvidia-smi -q -d CLOCK,PERFORMANCE`), at other processes on
        its host, and take the machine out. torchtitan, Megatron-LM and DeepSpeed have no setting for it; Megatron-LM's
        `--log-straggler` and NVIDIA's resiliency extension watch for it. nanotron has none either, and our trainer
        makes one with `--fault slow-rank`.

    How the gain is predicted
        The run is replayed with all that the rank does, step by step, as long as its peers take in the median: compute,
        and its host's thinking, pauses and launches (`rank_as_peers`). Where its host pauses for longer than its
        compute takes too long, the compute alone is (`compute_faster`): `host-pause` has the rest.

    When it is wrong
        When the rank has more work by design in all its micro-batches (an uneven cut of layers within a stage).
    """

    CODE = "slow-rank"
    TITLE = "A rank computes slower than its peers"
    NEEDS = (Input.ALL_RANKS,)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Compare each rank's compute with its peers'; several slow ones are one finding: mending one gains nothing."""
        graph = graph_of(tables)
        slow = [
            candidate
            for candidate in slowness(tables, graph).values()
            if candidate.ratio >= SLOW_COMPUTE and _steady(graph, candidate)
        ]
        slow = [
            candidate
            for candidate in slow
            if everywhere(tables, graph, candidate.rank) >= 1 + (candidate.ratio - 1) / 2
        ]
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
        named = spans(candidate.rank for candidate in slow)
        is_paused = not several and _pauses_outweigh(tables, graph, worst)
        yield Draft(
            f"rank{'s' if several else ''} {named} compute{'' if several else 's'} {worst.ratio:.2f} times as long as "
            f"{'their' if several else 'its'} peers",
            {"ranks": named} if several else {"rank": worst.rank},
            {"compute_ns": worst.compute_ns, "peers_ns": worst.peers_ns, "peers": len(worst.peers)}
            | dict(slowest_step(graph, is_worst_compute)),
            _compute_alone(worst)
            if is_paused
            else Edit("rank_as_peers", "+".join(str(candidate.rank) for candidate in slow)),
            "check its clocks, temperature and other processes; drain the machine",
            least_gain=0.01,
            rows=proof.COMPUTE_BY_RANK,
        )


def _pauses_outweigh(tables: TableSet, graph: Graph, slow: Slowness) -> bool:
    """Say whether the rank's host pauses for longer, over all steps, than its compute takes beyond its peers'."""
    paused_nodes = pauses(graph, tables)
    of_rank = paused_nodes[graph.nodes.rank[paused_nodes] == slow.rank]
    paused_ns = think_times(graph)[of_rank].sum()
    steps = len(compute_by_step(graph, slow.rank))
    return bool(paused_ns > (slow.compute_ns - slow.peers_ns) * steps)


def _compute_alone(slow: Slowness) -> Edit:
    """Let the rank compute as its peers do, and its host pause as it did."""
    return Edit("compute_faster", f"{slow.ratio:.4g}", (("rank", str(slow.rank)),))


def _steady(graph: Graph, slow: Slowness) -> bool:
    """Say whether the rank is slower than its peers in nearly all steps."""
    own = compute_by_step(graph, slow.rank)
    of_peers = [compute_by_step(graph, rank) for rank in slow.peers]
    slower = []
    for step, time in own.items():
        usual = [peer_steps[step] for peer_steps in of_peers if step in peer_steps]
        if usual:
            slower.append(time >= (1 + (SLOW_COMPUTE - 1) / 2) * float(np.median(usual)))
    return bool(slower) and float(np.mean(slower)) >= STEADY


SLOW_LAUNCHES = 1.25


class SlowHost:
    """One rank's host launches slower than the others'.

    What it finds
        Device traces in which the host of one rank takes at least 1.25 times as long from launch to launch as those of
        the others do in the median, where launching as fast would shorten the step by 2 % or more. Hosts of one kind
        differ by a tenth.

    Why it costs time
        The device of that rank waits for launches, arrives late in its collectives, and all others wait for it; its
        kernels look healthy.

    What to do
        Look at the host: clock governor, other processes on its cores, NUMA placement (`numactl`, `nvidia-smi topo
        -m`), memory bandwidth, a debugger or profiler left on. torchtitan, Megatron-LM, nanotron, DeepSpeed and our
        trainer have no setting for it beyond fewer launches: see `usp-prof explain host-bound`; DeepSpeed's launcher
        pins with `--bind_cores_to_rank`.

    How the gain is predicted
        The run is replayed with this host's own time (thinking, pauses, launches) at the median of its peers', piece by
        piece of each step (`host_as_peers`).

    When it is wrong
        When the rank launches other work by design (the last pipeline stage with the loss, a rank that logs).
    """

    CODE = "slow-host"
    TITLE = "One rank's host launches slower than the others'"
    NEEDS = (Input.ALL_RANKS, Input.LAUNCHES)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Compare the hosts' times between launches."""
        graph = graph_of(tables)
        for rank, ratio in host_slowness(graph).items():
            if ratio >= SLOW_LAUNCHES:
                is_of_host = (graph.nodes.kind == NodeKind.HOST) & (graph.nodes.rank == rank)
                yield Draft(
                    f"the host of rank {rank} takes {ratio:.2f} times as long to launch as the others",
                    {"rank": rank},
                    {"ratio": ratio, "launches": int(is_of_host.sum())}
                    | dict(longest(graph, is_of_host, np.maximum(graph.gap, 0) + graph.nodes.duration)),
                    Edit("host_as_peers", str(rank)),
                    "check the host's cores, clocks and memory placement",
                    settings={"DeepSpeed": "--bind_cores_to_rank"},
                    rows=proof.heaviest(graph, is_of_host, np.maximum(graph.gap, 0) + graph.nodes.duration),
                )


SAYS_WHY = (
    "slow-rank", "slow-host", "host-pause", "late-input", "slow-link", "uneven-experts", "uneven-sequence",
    "unequal-lengths", "shared-cores",
)  # fmt: skip
"""Findings that name what makes the rank late."""
PAUSES = "its host pauses"
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
    Why.SLOW_COMPUTE: "check its clocks, power, temperature and other processes",
    Why.MORE_WORK: "check how layers, experts or tokens are shared out",
    Why.HOST: "check that host's CPU load, pinning and clocks, and what its Python does before the late launches",
    Why.LATE_INPUT: "use more loader workers, prefetching, or faster storage on that host",
    Why.SLOW_LINK: "check that link's errors, its width and the placement",
    Why.COPIES: "pin memory and copy ahead",
    Why.UNKNOWN: "record with shapes and stacks on that rank",
}


class LateRank:
    """One rank keeps the others waiting.

    What it finds
        A rank that makes its collectives late itself: since the group's previous call it took longer than every other
        member, waits for others not counted, by at least 2 % of its step. No rank is blamed for a broadcast or scatter,
        in which the others depend on one rank's data.

    Why it costs time
        All members of a collective wait for the last. Their wait shows as long communication on the *others*.

    What to do
        The title says what takes longer on that rank: its compute, its host, its input or its link. Where another
        finding names the same rank (`slow-rank`, `host-pause`, `late-input`, `uneven-experts`), that one says why, and
        this one is folded under it. So it is under `shared-cores`: which rank the system takes off its core is chance.
        Where the trace does not show why, record that rank with shapes and stacks. torchtitan, Megatron-LM, nanotron
        and DeepSpeed have no setting for it; Megatron-LM's `--log-straggler` watches for it, and our trainer makes one
        with `--fault slow-rank` or `--fault pause`.

    How the gain is predicted
        The run is replayed with all that the rank does, step by step, as long as its peers take in the median: compute,
        and its host's thinking, pauses and launches (`rank_as_peers`). How late it is, is evidence and not the gain. A
        rank with longer sequences shares its work evenly with its replicas instead (`even_work`).

    When it is wrong
        When the rank has more work by design. A rank without peers (alone in its pipeline stage) is not judged: its
        work is another, see `stage-imbalance`. A slow link is no part of the replayed change, see `slow-link`.
    """

    CODE = "late-rank"
    TITLE = "A rank keeps the others waiting"
    NEEDS = (Input.ALL_RANKS, Input.ONE_CLOCK)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Draft one finding for each culprit of the straggler analysis that has peers to be compared with."""
        lateness = stragglers.compute(tables)
        if not lateness.culprits:
            return
        graph = graph_of(tables)
        with_peers = slowness(tables, graph)
        for culprit in lateness.culprits:
            if culprit.rank in with_peers:
                yield _draft(tables, graph, culprit, with_peers[culprit.rank])


def _draft(tables: TableSet, graph: Graph, culprit: Culprit, beside: Slowness) -> Draft:
    often = "" if culprit.persistent else " in some steps"
    why = culprit.why
    edit = Edit("rank_as_peers", str(culprit.rank))
    is_busy = why in {Why.SLOW_COMPUTE, Why.MORE_WORK}
    if is_busy and has_longer_sequences(tables, beside.rank, beside.peers, beside.ratio):
        why, edit = Why.MORE_WORK, evened(graph)  # its work does not go away, but others can take a part of it
    cause = PAUSES if _is_paused(tables, graph, culprit) else CAUSES[why]
    nodes = graph.nodes
    own = (nodes.rank == culprit.rank) & np.isin(nodes.step, culprit.steps)
    return Draft(
        f"rank {culprit.rank} is late for {culprit.axis} calls{often}: {cause}",
        # Its lateness shows on an axis, and is of one only where that axis' link is slow.
        {"rank": culprit.rank} | ({"axis": culprit.axis} if why is Why.SLOW_LINK else {}),
        {
            "late_on": culprit.axis,
            "cost_ns": round(culprit.cost_ns),
            "slowdown": culprit.slowdown,
            "steps": ", ".join(map(str, culprit.steps)),
            **{f"{part.replace(' ', '_')}_over_peers_ns": over for part, over in culprit.evidence.items()},
            **slowest_step(graph, own),
        },
        edit,
        ADVICE[why],
        covers=SAYS_WHY,
        rows=proof.largest("calls", f"late_rank = {culprit.rank}", "wait_ns"),
    )


def _is_paused(tables: TableSet, graph: Graph, culprit: Culprit) -> bool:
    """Say whether pauses of its host cover what the rank costs."""
    paused_nodes = pauses(graph, tables)
    of_culprit = paused_nodes[
        (graph.nodes.rank[paused_nodes] == culprit.rank) & np.isin(graph.nodes.step[paused_nodes], culprit.steps)
    ]
    paused_ns = int(think_times(graph)[of_culprit].sum())
    return culprit.why is Why.HOST and paused_ns >= COVERS * culprit.cost_ns * len(culprit.steps)
