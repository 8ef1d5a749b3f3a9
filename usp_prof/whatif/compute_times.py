"""Compute times: graphs in which ranks compute as fast as their peers.

The excess over the peers is removed where it is: from the pieces of the step that take longer (see `peer_steps`), and
within a piece from the kernels that take longer than the peers' kernels of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from usp_prof.columns.arrays import Floats, Ints
from usp_prof.columns.rows import first_rows, group_codes, numbered, rows_by_code
from usp_prof.columns.statistics import medians_of_others
from usp_prof.replay.graph import EdgeKind, Graph, NodeKind
from usp_prof.replay.peers import Slowness, peer_groups
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.peer_steps import PeerStep, RankStep, peer_steps, repaired


def with_repaired_compute(graph: Graph, tables: TableSet, ranks: Mapping[int, Slowness]) -> Graph:
    """Return the graph with the compute of slower ranks as fast as the median of their peers over all steps.

    Compute in steps that no peer has is shortened by the mean of the other steps. If there are none, it is shortened by
    the rank's slowness.
    """
    duration, compared = graph.duration.copy(), np.zeros(len(graph.nodes), dtype=bool)
    launched, step_of_launch = _launched(graph)
    for group in peer_groups(tables, graph):
        if set(ranks).isdisjoint(group):
            continue
        steps_of_rank = {rank: own for rank in group if (own := _compute_steps(graph, rank, launched, step_of_launch))}
        steps = list(peer_steps(steps_of_rank, group))
        for step, rank, should_ns in repaired(steps, ranks) if steps else ():
            place = step.ranks.index(rank)
            of_rank, shorter = step.of_rank[place], _without_excess(step, place, should_ns, graph.nodes.name)
            duration[of_rank.rows[~of_rank.communicates]] = shorter[~of_rank.communicates]
            compared[of_rank.rows] = True
    for rank, slowness in ranks.items():
        compute = graph.nodes.of_rank(rank)
        compute = compute[graph.nodes.kind[compute] == NodeKind.COMPUTE]
        with_peers, alone = compute[compared[compute]], compute[~compared[compute]]
        share = 1 / max(slowness.ratio, 1.0)
        if len(with_peers):
            share = duration[with_peers].sum() / max(graph.duration[with_peers].sum(), 1)
        duration[alone] = np.rint(graph.duration[alone] * share)
    return graph.with_changes(duration=duration)


def _launched(graph: Graph) -> tuple[Ints, Ints]:
    """Return when and in which step the host launched each node; -1 and its own step without a recorded launch.

    Peers launch in the same order, while the order of starts on several streams depends on chance, and so does the step
    of the device in which a node starts. On ranks on which later launches are missing too, no launch is used.
    """
    nodes = graph.nodes
    of_launch = graph.edges.take(graph.edges.kind == EdgeKind.LAUNCH)
    launched, step = np.full(len(nodes), -1, np.int64), nodes.step.copy()
    launched[of_launch.target] = nodes.start[of_launch.source]
    is_missing = (launched < 0) & np.isin(nodes.kind, (NodeKind.COMPUTE, NodeKind.COMMUNICATION))
    # Only the first nodes of a lane, which are in order of start, were launched before the recording.
    first_launched = np.full(int(nodes.rank.max(initial=0)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first_launched, nodes.rank[launched >= 0], nodes.start[launched >= 0])
    is_of_launches = np.isin(nodes.lane, nodes.lane[launched >= 0])
    is_later = ~nodes.first_of_lane & np.roll(launched >= 0, 1)
    is_later |= ~is_of_launches & (nodes.start > first_launched[nodes.rank])
    is_later &= is_missing
    is_used = (launched >= 0) & ~nodes.of_ranks_with(is_later)
    counts = is_used[of_launch.target] & (nodes.step[of_launch.source] >= 0)
    step[of_launch.target[counts]] = nodes.step[of_launch.source[counts]]
    return np.where(is_used, launched, -1), step


def _compute_steps(graph: Graph, rank: int, launched: Ints, step_of_launch: Ints) -> dict[int, RankStep]:
    """Return a rank's compute by step in order of launch, with communication as a border that takes no time.

    Work that was launched before the recording comes first, stream by stream.
    """
    nodes = graph.nodes
    rows = nodes.of_rank(rank)
    computes = nodes.kind[rows] == NodeKind.COMPUTE
    rows = rows[(computes | (nodes.kind[rows] == NodeKind.COMMUNICATION)) & (step_of_launch[rows] >= 0)]
    stream = nodes.lane[rows] if (launched[rows] >= 0).any() else np.zeros(len(rows), np.int64)
    rows = rows[np.lexsort((nodes.start[rows], stream, launched[rows]))]
    communicates = nodes.kind[rows] == NodeKind.COMMUNICATION
    label = np.where(communicates, len(graph.names) + 1 + nodes.axis[rows], nodes.name[rows])
    own_ns = np.where(communicates, 0, graph.duration[rows])
    if not len(rows):
        return {}
    steps, step = numbered(step_of_launch[rows])
    return {
        steps[place]: RankStep(rows[within], own_ns[within], label[within], communicates[within])
        for place, within in rows_by_code(step).items()
        if own_ns[within].any()
    }


def _without_excess(step: PeerStep, place: int, should_ns: Floats, name: Ints) -> Ints:
    """Return the durations of one rank's nodes, given how long its pieces should take.

    A piece is shortened in its kernels that take longer than the peers' of the same name, in proportion to that excess,
    then in all of them:

        kernels a 5, b 9; peers a 5, b 4; should take 10      returns a 5, b 5
    """
    sizes = [len(of_rank.rows) for of_rank in step.of_rank]
    piece = np.concatenate(step.pieces)
    rank = np.repeat(np.arange(len(sizes)), sizes)
    own_ns = np.concatenate([of_rank.own_ns for of_rank in step.of_rank])
    kernel = group_codes(piece, np.concatenate([name[of_rank.rows] for of_rank in step.of_rank]))
    piece_of_kernel = piece[first_rows(kernel)]
    kernels, pieces = len(piece_of_kernel), len(should_ns)
    took_ns = np.bincount(rank * kernels + kernel, own_ns, len(sizes) * kernels).reshape(len(sizes), kernels)
    own = took_ns[place]
    above = np.maximum(own - medians_of_others(took_ns)[place], 0)
    removed = step.took_ns[place] - should_ns
    share = np.minimum(removed / np.maximum(np.bincount(piece_of_kernel, above, pieces), 1e-9), 1.0)
    target = own - share[piece_of_kernel] * above
    remaining = np.bincount(piece_of_kernel, target, pieces)
    target *= (should_ns / np.maximum(remaining, 1e-9))[piece_of_kernel]
    factor = target / np.maximum(own, 1e-9)
    of_rank = rank == place
    return np.asarray(np.rint(own_ns[of_rank] * factor[kernel[of_rank]]), np.int64)
