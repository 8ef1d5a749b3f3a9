"""Hidden waits: compute that waits for a communication, where a later launch was the last reason.

Compute that is launched behind a communication waits for it, or runs beside it (as with gradients):
  1. Where lane and launch were over before the communication ended, the times tell which of the two.
  2. Where they were later (the host was blocked, or late), it waits if those of the same axis and kernel do.
Such a wait did not bind; it does once the host is no longer late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.rows import group_codes
from usp_prof.replay.graph import NEVER, NodeKind

if TYPE_CHECKING:
    from usp_prof.replay.build import RankNodes
    from usp_prof.replay.graph import Ints

USUALLY = 0.9
"""So many of the communications of a kind must be waited for by the compute behind them, where the times tell."""


def hidden_waits(n: RankNodes, explained_at: Ints, launched_at: Ints) -> tuple[Ints, Ints]:
    """Give the communications whose waits are hidden, and the compute behind each, as node numbers of the rank."""
    linked = launched_at > NEVER
    compute = np.flatnonzero(linked & (n.kind == NodeKind.COMPUTE))
    talks = np.flatnonzero(linked & (n.kind == NodeKind.COMMUNICATION))
    compute = compute[np.argsort(launched_at[compute], kind="stable")]
    place = np.searchsorted(launched_at[compute], launched_at[talks], side="right")
    talks, place = talks[place < len(compute)], place[place < len(compute)]
    behind = compute[place]
    told = explained_at[behind] < n.end[talks]
    waited = told & (n.start[behind] >= n.end[talks])
    alike = group_codes(n.axis[0][talks], n.name[0][talks])
    share = np.bincount(alike, waited) / np.maximum(np.bincount(alike, told), 1)
    hidden = ~told & (n.end[talks] <= n.start[behind]) & (share[alike] >= USUALLY)
    return talks[hidden], behind[hidden]
