"""One rank keeps the others waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses import stragglers
from usp_prof.analyses.measures.lateness import COVERS, Why
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.findings.inputs import Input
from usp_prof.findings.proof import slowest_step
from usp_prof.model.edit import Edit
from usp_prof.replay.build import graph_of
from usp_prof.replay.host_gaps import pauses, think_times
from usp_prof.replay.peers import slowness

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.analyses.stragglers import Culprit
    from usp_prof.replay.graph import Graph
    from usp_prof.tables.table_set import TableSet

SAYS_WHY = (
    "slow-rank", "slow-host", "host-pause", "late-input", "slow-link", "uneven-experts", "uneven-sequence",
    "unequal-lengths",
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
    Why.SLOW_COMPUTE: "look at its clocks, power, temperature and neighbours",
    Why.MORE_WORK: "look at how layers, experts or tokens are shared out",
    Why.HOST: "look at that host's CPU load, pinning and clocks, and at what its Python does before the late launches",
    Why.LATE_INPUT: "more loader workers, prefetching, or faster storage on that host",
    Why.SLOW_LINK: "look at that link's errors, its width and the placement",
    Why.COPIES: "pin memory and copy ahead",
    Why.UNKNOWN: "record with shapes and stacks on that rank",
}


class LateRank:
    """One rank keeps the others waiting.

    What it finds
        A rank that arrives last in its collectives by its own doing: what it takes longer than every other member since
        the group's call before, waiting for others left out, is at least 2 % of its step. Nobody is blamed for a
        broadcast or scatter, for whose data the others depend on one rank.

    Why it costs time
        All members of a collective wait for the last. Their wait shows as long communication on the *others*.

    What to do
        The title says what takes longer on that rank: its compute, its host, its input or its link. Where another
        finding names the same rank (`slow-rank`, `host-pause`, `late-input`, `uneven-experts`), that one says why, and
        this one is folded under it. Where the trace does not show why, record that rank with shapes and stacks.
        torchtitan, Megatron-LM, nanotron and DeepSpeed have no setting for it; Megatron-LM's `--log-straggler` watches
        for it, and our trainer makes one with `--fault slow-rank` or `--fault pause`.

    How the gain is predicted
        The run is replayed with all that the rank does, step by step, as long as its peers take in the median: compute,
        and its host's thinking, pauses and launches (`rank_as_peers`). How late it is, is evidence and not the gain.

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
        found = stragglers.compute(tables)
        if not found.culprits:
            return
        graph = graph_of(tables)
        with_peers = slowness(tables, graph)
        for culprit in found.culprits:
            if culprit.rank in with_peers:
                yield _draft(tables, graph, culprit)


def _draft(tables: TableSet, graph: Graph, culprit: Culprit) -> Draft:
    often = "" if culprit.persistent else " in some steps"
    cause = PAUSES if _is_paused(tables, graph, culprit) else CAUSES[culprit.why]
    nodes = graph.nodes
    own = (nodes.rank == culprit.rank) & np.isin(nodes.step, culprit.steps)
    return Draft(
        f"rank {culprit.rank} is late for {culprit.axis} calls{often}: {cause}",
        # Its lateness shows on an axis, and is of one only where that axis' link is slow.
        {"rank": culprit.rank} | ({"axis": culprit.axis} if culprit.why is Why.SLOW_LINK else {}),
        {
            "late_on": culprit.axis,
            "cost_ns": round(culprit.cost_ns),
            "slowdown": culprit.slowdown,
            "steps": ", ".join(map(str, culprit.steps)),
            **{f"{part.replace(' ', '_')}_over_peers_ns": over for part, over in culprit.evidence.items()},
            **slowest_step(graph, own),
        },
        Edit("rank_as_peers", str(culprit.rank)),
        ADVICE[culprit.why],
        covers=SAYS_WHY,
        rows=proof.largest("calls", f"late_rank = {culprit.rank}", "wait_ns"),
    )


def _is_paused(tables: TableSet, graph: Graph, culprit: Culprit) -> bool:
    """Say whether pauses of its host cover what the rank costs."""
    found = pauses(graph, tables)
    mine = found[(graph.nodes.rank[found] == culprit.rank) & np.isin(graph.nodes.step[found], culprit.steps)]
    paused_ns = int(think_times(graph)[mine].sum())
    return culprit.why is Why.HOST and paused_ns >= COVERS * culprit.cost_ns * len(culprit.steps)
