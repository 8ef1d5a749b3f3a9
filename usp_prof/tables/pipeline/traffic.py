"""Pipeline traffic: whether sends and receives are those of a pipeline, told by their order, sizes and peers.

A stage sends several micro-batches forward before the first gradient comes back from the same peer, and its peer sees
the mirror image. What else sends does not:
  a ring (context parallel, sendrecv of nccl-tests)   sends to one peer and receives from another
  an exchange of halos, a ping-pong                   a send is answered before the next one
  a sweep over bandwidths                             sizes differ
  everybody with everybody                            more than two peers
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.columns.table import Columns

_AHEAD = 2
"""By how many messages one direction runs ahead of the other: an answered message is ahead by one."""
_NEIGHBOURS = 2
_ONE_SIZE = 0.9


@dataclass(frozen=True, slots=True)
class Transfers:
    """What the sends and receives of some ranks tell; those of a last stage, which answers each, tell nothing."""

    ahead: bool = False
    """On some rank one direction ran ahead of the other."""
    refused: bool = False
    """On some rank they cannot be a pipeline's."""

    @property
    def pipeline(self) -> bool:
        """They are a pipeline's."""
        return self.ahead and not self.refused

    def beside(self, other: Transfers) -> Transfers:
        """Join with what other ranks tell."""
        return Transfers(self.ahead or other.ahead, self.refused or other.refused)


def transfers_of(rows: Columns) -> Transfers:
    """Judge one rank's sends and receives within one group."""
    peer, is_send = rows["peer"], rows.matches("op", "send")
    directed = is_send | rows.matches("op", "recv")
    if not directed.all() or (peer < 0).any():
        return Transfers(refused=True)
    peers = np.unique(peer).tolist()
    sent = rows["in_bytes"][is_send]
    sizes, counts = np.unique(sent, return_counts=True)
    if len(peers) > _NEIGHBOURS or (len(sizes) > 1 and counts.max() < _ONE_SIZE * counts.sum()):
        return Transfers(refused=True)
    start, end = rows["start_ns"], rows["start_ns"] + rows["dur_ns"]
    ahead = False
    for one in peers:
        sends, receives = (peer == one) & is_send, (peer == one) & ~is_send
        if not sends.any() or not receives.any():
            return Transfers(refused=True)
        ahead |= _ahead(end[sends], start[receives]) or _ahead(end[receives], start[sends])
    return Transfers(ahead=ahead)


def _ahead(ends: NDArray[np.int64], answers: NDArray[np.int64]) -> bool:
    """Say whether some answer begins when `_AHEAD` more messages are over than were answered before it."""
    moments = np.sort(answers)
    over = np.searchsorted(np.sort(ends), moments, side="right")
    return bool((over - np.arange(len(moments))).max() >= _AHEAD)
