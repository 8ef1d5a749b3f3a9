"""Repairs of late ranks: measured lateness, and the replayed gain if the rank performed like its peers.

Lateness is measured, but a sum of lateness is not a cost: where hosts limit the step, ranks catch up before the next
collective. What a rank costs is what its repair saves. Both are shown side by side. If the replay saves less than was
measured and cannot explain why the devices were idle, measured and replayed figures disagree, and no gain is stated.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from usp_prof.analyses import stragglers
from usp_prof.analyses.measures.lateness import COVERS, Peers
from usp_prof.analyses.stragglers import Culprit
from usp_prof.findings.draft import Input, damage
from usp_prof.findings.micro_batches import evened, has_longer_sequences
from usp_prof.findings.work_shares import UNEVEN, largest_share
from usp_prof.model.edit import Edit
from usp_prof.model.errors import UspProfError
from usp_prof.model.finding import IdealStep, Repair
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.printable import first_few, shortened
from usp_prof.model.topology import Axis
from usp_prof.replay.build import graph_of
from usp_prof.replay.peers import peer_groups, slowness
from usp_prof.replay.step_times import unedited
from usp_prof.replay.unexplained import NOTABLE, unexplained_shares, unexplained_times
from usp_prof.tables.table_set import TableSet, memoized
from usp_prof.whatif.attribution import ideal_step
from usp_prof.whatif.edited import as_recorded
from usp_prof.whatif.predict import gain_of, gains_alone

MOST_RANKS = 3
"""Ranks whose repair is replayed, latest first; as many of those that are late in sends and receives only."""
MOST_OF_A_NAME = 60
"""Characters of a kernel's name that are shown."""
LATENESS_NEEDS = (Input.ALL_RANKS, Input.ONE_CLOCK)
"""Input without which neither lateness nor repairs are judged."""
LEAST_LATENESS = 0.02
"""Less lateness, as a share of the step, is not judged."""


@memoized("repairs of late ranks")
def repairs_of(tables: TableSet) -> tuple[Repair, ...]:
    """Return the replayed repairs of the latest ranks."""
    if len(tables.ranks) < 2 or damage(tables, LATENESS_NEEDS):
        return ()
    step_ns, lateness = unedited(tables).mean_measured_ns, stragglers.compute(tables)
    if not step_ns > 0:  # no steps, or steps of damaged traces
        return ()
    late_ns = {
        rank: float(lateness.cost_ns[lateness.rank == rank].mean()) for rank in np.unique(lateness.rank).tolist()
    }
    late = [rank for rank, ns in late_ns.items() if ns > LEAST_LATENESS * step_ns]
    late.sort(key=lambda rank: (-late_ns[rank], rank))
    in_messages = [culprit.rank for culprit in late_in_messages(tables) if culprit.rank not in late]
    return tuple(
        repair
        for rank in (*late[:MOST_RANKS], *in_messages[:MOST_RANKS])
        if (repair := _repair(tables, rank, late_ns.get(rank, 0.0) / step_ns)) is not None
    )


@memoized("late in messages")
def late_in_messages(tables: TableSet) -> tuple[Culprit, ...]:
    """Return the ranks that may hold up others in sends and receives, compared with the peers of a repair."""
    return stragglers.late_in_messages(tables, Peers.of_groups(peer_groups(tables, graph_of(tables))))


def repair_edit(tables: TableSet, rank: int) -> Edit:
    """Return the edit that repairs a late rank.

    It performs like its peers, unless it has more work than they have: work does not go away, but others can share it.
    Uneven work is the cause if sharing it saves at least half of what the rank with its peers' work would save.
    """
    graph = graph_of(tables)
    like_peers = Edit("rank_as_peers", str(rank))
    for axis in (Axis.EP, Axis.CP):
        share, even_work = largest_share(tables, axis), Edit("even_work", str(axis))
        if share is not None and share.rank == rank and share.ratio >= UNEVEN:
            gain_of_even_work, gain_like_peers = gains_alone(tables, [even_work, like_peers])
            if gain_of_even_work >= COVERS * gain_like_peers:
                return even_work
    compared = slowness(tables, graph).get(rank)
    if compared is not None and has_longer_sequences(tables, rank, compared.peers, compared.ratio):
        return evened(graph)
    return like_peers


def ideal_of(tables: TableSet) -> IdealStep | None:
    """Return the step with equal ranks, at most as long as with one late rank repaired; `None` for a single rank.

    The ideal rank computes as long as the mean of its peers, which includes the late rank.
    """
    if len(tables.ranks) < 2:
        return None
    ideal = ideal_step(tables)
    gain = max((repair.gain_fraction for repair in repairs_of(tables) if not repair.disagrees), default=0.0)
    return replace(ideal, ideal_ns=min(ideal.ideal_ns, (1 - gain) * ideal.step_ns))


def _repair(tables: TableSet, rank: int, late_fraction: float) -> Repair | None:
    """Return the replayed repair of one rank, or `None` if it has no peers to perform like."""
    try:
        gain = gain_of(tables, as_recorded(tables).then(tables, repair_edit(tables, rank)))
    except UspProfError:
        return None
    saves_less = late_fraction > gain.gain_fraction + gain.error_fraction
    disagrees = saves_less and gain.unexplained_fraction >= NOTABLE
    return Repair(rank, late_fraction, math.nan if disagrees else max(gain.gain_fraction, 0.0), gain.error_fraction)


def unexplained_notes(tables: TableSet) -> list[HealthRow]:
    """Return health rows on device idle time that the replay cannot explain, and on repairs that it contradicts."""
    shares = unexplained_shares(tables)
    if not shares:
        return []
    graph, late = graph_of(tables), unexplained_times(tables)
    longest = int(np.argmax(late))
    nodes = graph.nodes
    gap = (
        f"{late[longest] / 1e6:.3g} ms before {shortened(graph.names[nodes.name[longest]], MOST_OF_A_NAME)} "
        f"on rank {nodes.rank[longest]}, step {nodes.step[longest]}"
    )
    share_texts = [f"{part:.1%} of the steps of rank {rank}" for rank, part in sorted(shares.items())]
    detail = (
        "devices start work later than the trace explains: "
        f"{first_few(share_texts, 8, ', ...')}; the longest gap is {gap}; "
        "another process on the device or an unrecorded wait may be the cause; the error of gains includes it"
    )
    notes = [HealthRow("unexplained_idle", Severity.INFO, count=len(shares), detail=detail)]
    for repair in repairs_of(tables):
        if repair.disagrees:
            detail = (
                f"rank {repair.rank} is late by {repair.late_fraction:.1%} of the step, but the replay does not "
                f"explain it, so the gain of its repair is unknown; the longest unexplained gap is {gap}"
            )
            notes.append(HealthRow("replay_disagrees", Severity.ERROR, rank=repair.rank, detail=detail))
    return notes
