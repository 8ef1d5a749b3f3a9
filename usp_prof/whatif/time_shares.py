"""Time shares: which parts of a rank's time a repair removes."""

from __future__ import annotations

import numpy as np

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.rows import first_of_run, last_of_run
from usp_prof.columns.statistics import medians_of_others


def longest_excess_of_peers(excess: list[Floats]) -> Floats:
    """Return for each rank how far the pieces of its median peer exceed what is usual, the longest first.

    The peers' pieces are compared by their order of length, wherever in the steps they are.

        excess [0, 30], [20, 0], [0, 40]      longest first [30, 0], [20, 0], [40, 0]: returns [30, 0], [35, 0], [25, 0]
    """
    longest = np.zeros((len(excess), max(map(len, excess))))
    for row, of_rank in zip(longest, excess, strict=True):
        row[: len(of_rank)] = -np.sort(-np.maximum(of_rank, 0))
    return medians_of_others(longest)


def excess_to_remove(excess: Floats, longest_of_peers: Floats) -> Floats:
    """Return how much of each excess over the peers to remove.

    Every rank has some longer pieces by chance. So its longest piece is compared with the peers' longest, its second
    longest with their second longest, and so on. The difference is unusual and is removed, even if the rank has less
    work than its peers elsewhere. If the rank still takes longer than its peers in total, all other excess is reduced
    in proportion until it does not.

        excess 100, 30, -30; peers 30, 0, 0      total 100: removes 70 of the first and all 30 of the second
        excess 100, 30, -60; peers 30, 0, 0      total 70, but removes the same
        excess 100, 30,   0; peers 30, 0, 0      total 130: removes the other 30 of the first, too
    """
    above = np.maximum(excess, 0)
    order = np.argsort(-above, kind="stable")
    unusual = np.zeros(len(excess))
    unusual[order] = np.maximum(above[order] - longest_of_peers[: len(order)], 0)
    remaining, usual = float(excess.sum() - unusual.sum()), above - unusual
    return unusual + usual * (remaining / float(usual.sum())) if remaining > 0 else unusual


def times_of_nodes(own_ns: Ints, piece: Ints, target_ns: Floats) -> Ints:
    """Return the target time of each node, given the target times of the pieces.

    A piece that takes too long has its peaks cut off at a common level. A piece that takes too little is stretched.

        nodes 5, 100, 5 with target 20      level 10: returns 5, 10, 5
        nodes 5, 15 with target 40          returns 10, 30
    """
    total = np.bincount(piece, own_ns, len(target_ns))[piece]
    wanted = target_ns[piece]
    # A piece without any time cannot be stretched: its longest node (the last of equal ones) gets all of it.
    stretched = np.where(total > 0, own_ns * (wanted / np.maximum(total, 1)), wanted * _is_longest(own_ns, piece))
    cut_off = np.minimum(own_ns, _levels(own_ns, piece, target_ns)[piece])
    return np.rint(np.where(wanted < total, cut_off, stretched)).astype(np.int64)


def _is_longest(own_ns: Ints, piece: Ints) -> Flags:
    """Mark the longest node of each piece, or the last of equally long ones."""
    order = np.lexsort((own_ns, piece))
    is_longest = np.zeros(len(piece), bool)
    longest = order[last_of_run(piece[order])]
    is_longest[longest] = True
    return is_longest


def _levels(own_ns: Ints, piece: Ints, target_ns: Floats) -> Floats:
    """Return the level of each piece at which cut-off nodes add up to its target time; 0 if nothing remains.

    With the nodes of a piece sorted from the shortest, the shorter nodes plus all others at the level add up to the
    target. Each node that reaches the level yields a bound, and the highest bound is the level.

        nodes 5, 5, 100 with target 20      bounds 20/3 (too high for 5), 15/2 (too high for 5), (20 - 10) / 1 = 10
    """
    order = np.lexsort((own_ns, piece))
    own, piece = own_ns[order], piece[order]
    first = np.flatnonzero(first_of_run(piece))
    count = np.diff(np.append(first, len(piece)))
    # By node: the sum of the shorter nodes of its piece, and the number of nodes that are at least as long.
    shorter = np.cumsum(own) - own
    shorter -= np.repeat(shorter[first], count)
    remaining = np.repeat(first + count, count) - np.arange(len(own))
    wanted = target_ns[piece]
    reaches = shorter + remaining * own >= wanted
    level = np.zeros(len(target_ns))
    np.maximum.at(level, piece[reaches], ((wanted - shorter) / remaining)[reaches])
    return level
