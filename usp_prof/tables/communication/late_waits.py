"""Late waits: posted transfers (gloo) that were over before anybody waited for them.

gloo's range of a send or receive lasts from its post until its handle is waited for. Where a rank computed meanwhile,
the range ends when the compute does, which says nothing of the link:

    rank 0    F1 |post send...........................................|wait
    rank 1    |post recv ..... F0 computes ..... |wait, at once: the data has been there for an unknown time

So a part is *asked late* when its range ends right after the rank's own compute, or right after another part that was
under way (waits stand in a row: the first of them was waited for, the others were answered at once).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

ANSWER_NS = 300_000
"""Between the end of compute and the answer of a wait that need not wait, Python and gloo take up to this."""
ANSWER_SHARE = 0.03
"""On busy cores they take longer: up to this share of what the part lasts, which a prediction may then be wrong by."""


def asked_late(start: Ints, end: Ints, compute_end: Ints, lasting: Ints) -> tuple[Flags, Ints]:
    """Say which of one rank's posted parts were asked late, and which part was waited for first in each one's turn.

    `compute_end` holds the ends of the rank's compute, in any order; `lasting` how long each part takes.
    """
    first = first_of_turn(start, end)
    late = first != np.arange(len(start))
    if not len(compute_end):
        return late, first
    ends = np.sort(compute_end)
    place = np.searchsorted(ends, end, side="right") - 1
    # The last compute to end before the part does; parts that begin before all compute have place -1.
    before = ends[np.maximum(place, 0)]
    soon = np.maximum(ANSWER_NS, (ANSWER_SHARE * lasting).astype(np.int64))
    late |= (place >= 0) & (before > start) & (end - before <= soon)
    return late, first


def first_of_turn(start: Ints, end: Ints) -> Ints:
    """Give for each part of one rank the first of those that end right one after another while it was under way."""
    order = np.argsort(end, kind="stable")
    follows = np.zeros(len(end), dtype=bool)
    follows[1:] = (np.diff(end[order]) <= ANSWER_NS) & (end[order[:-1]] > start[order[1:]])
    first = np.empty(len(end), np.int64)
    first[order] = order[np.maximum.accumulate(np.where(follows, 0, np.arange(len(end))))]
    return first
