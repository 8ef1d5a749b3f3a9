"""Time shares: which parts of a rank's time a repair removes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import first_of_run, last_of_run

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Flags, Floats, Ints


def excess_to_remove(excess: Floats, of_peers: list[Floats]) -> Floats:
    """Return how much of each excess over the peers to remove, so that what remains adds up to 0.

    Every rank has some longer pieces by chance. A piece is out of the ordinary as far as it exceeds the peers' piece of
    the same position, if the pieces of each rank are sorted by length. This goes first, then all excess in proportion.
    Where a rank is faster than its peers, nothing changes.

        excess 100, 30, -30; peers 30, 0, -30      100 together; removes 70 of the first, 30 of the second
    """
    above, total = np.maximum(excess, 0), float(excess.sum())
    if total <= 0:
        return np.zeros(len(excess))
    order = np.argsort(-above, kind="stable")
    ordinary = np.zeros((max(len(of_peers), 1), len(excess)))
    for row, of_peer in zip(ordinary, of_peers, strict=False):
        longest = -np.sort(-np.maximum(of_peer, 0))[: len(row)]
        row[: len(longest)] = longest
    unusual = np.zeros(len(excess))
    unusual[order] = np.maximum(above[order] - np.median(ordinary, axis=0), 0)
    unusual_sum, rest = float(unusual.sum()), above - unusual
    if unusual_sum >= total:
        return unusual * (total / unusual_sum)
    return unusual + rest * ((total - unusual_sum) / float(rest.sum()))


def shared_out(own_ns: Ints, piece: Ints, should: Floats) -> Ints:
    """Return the target time of each node, given the target times of the pieces.

    A piece that takes too long has its peaks cut off at a common level. A piece that takes too little is stretched.

        nodes 5, 100, 5 should take 20      level 10: returns 5, 10, 5
        nodes 5, 15 should take 40          returns 10, 30
    """
    total = np.bincount(piece, own_ns, len(should))[piece]
    wanted = should[piece]
    # A piece without any time cannot be stretched: its longest node (the last of equal ones) gets all of it.
    stretched = np.where(total > 0, own_ns * (wanted / np.maximum(total, 1)), wanted * _is_longest(own_ns, piece))
    cut_off = np.minimum(own_ns, _levels(own_ns, piece, should)[piece])
    return np.rint(np.where(wanted < total, cut_off, stretched)).astype(np.int64)


def _is_longest(own_ns: Ints, piece: Ints) -> Flags:
    """Mark the longest node of each piece, or the last of equally long ones."""
    order = np.lexsort((own_ns, piece))
    is_longest = np.zeros(len(piece), bool)
    longest = order[last_of_run(piece[order])]
    is_longest[longest] = True
    return is_longest


def _levels(own_ns: Ints, piece: Ints, should: Floats) -> Floats:
    """Return the level of each piece at which cut-off nodes add up to its target time; 0 if nothing remains.

    With the nodes of a piece sorted from the shortest, the shorter nodes plus all others at the level add up to the
    target. Each node that reaches the level yields a bound, and the highest bound is the level.

        nodes 5, 5, 100 should take 20      bounds 20/3 (too high for 5), 15/2 (too high for 5), (20 - 10) / 1 = 10
    """
    order = np.lexsort((own_ns, piece))
    own, piece = own_ns[order], piece[order]
    first = np.flatnonzero(first_of_run(piece))
    count = np.diff(np.append(first, len(piece)))
    # By node: the sum of the shorter nodes of its piece, and the number of nodes that are at least as long.
    shorter = np.cumsum(own) - own
    shorter -= np.repeat(shorter[first], count)
    remaining = np.repeat(first + count, count) - np.arange(len(own))
    wanted = should[piece]
    reaches = shorter + remaining * own >= wanted
    level = np.zeros(len(should))
    np.maximum.at(level, piece[reaches], ((wanted - shorter) / remaining)[reaches])
    return level
