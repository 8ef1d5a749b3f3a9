"""Pipeline traffic: whether sends and receives are those of a pipeline, and the order of the ranks in it.

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

from usp_prof.columns.table import Columns
from usp_prof.model.topology import Axis

if TYPE_CHECKING:
    from collections.abc import Mapping

    from usp_prof.columns.arrays import Ints
    from usp_prof.tables.pipeline.stretches import Messages
    from usp_prof.tables.table_set import Source

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


def _ahead(ends: Ints, answers: Ints) -> bool:
    """Return whether some answer begins when `_AHEAD` more messages are over than were answered before it."""
    moments = np.sort(answers)
    over = np.searchsorted(np.sort(ends), moments, side="right")
    return bool((over - np.arange(len(moments))).max() >= _AHEAD)


# Chains: the ranks of each pipeline in order of their stages.


def chains(sources: Mapping[int, Source], passed: Mapping[int, Messages]) -> list[tuple[int, ...]]:
    """Sort ranks into pipelines in order of their stages: the first sends first, each next gets its first message."""
    pipelines, left = [], {rank for rank in sources if len(passed[rank].posted)}
    for rank in sorted(left):
        if rank not in left:
            continue
        members = _members(rank, passed) or _group(sources[rank], rank)
        members &= left
        left -= members
        chain = _in_order(members, passed)
        if len(chain) > 1:
            pipelines.append(chain)
    return pipelines


def _members(rank: int, passed: Mapping[int, Messages]) -> set[int]:
    """Return all ranks that a rank exchanges messages with, also through others; nothing where peers are unknown."""
    members, new = {rank}, {rank}
    while new:
        heard = {peer for one in new if one in passed for peer in np.unique(passed[one].peer).tolist()}
        if -1 in heard:
            return set()
        new = heard - members
        members |= new
    return members


def _group(source: Source, rank: int) -> set[int]:
    groups = Columns(source.view("groups"))
    for axis, ranks in zip(groups["axis"].tolist(), groups["ranks"].tolist(), strict=True):
        if axis == str(Axis.PP) and ranks:
            return {int(text) for text in ranks.split(",")}
    return {rank}


def _in_order(members: set[int], passed: Mapping[int, Messages]) -> tuple[int, ...]:
    """Sort the ranks of a pipeline by stage, following who first sends to whom.

    Stage 0 is the one rank whose first message is a send. It sends to stage 1, whose first send goes to stage 2, and so
    on. Where peers are unknown, or several ranks send first, the order of the ranks is taken.
    """
    sending_first = [rank for rank in sorted(members) if passed[rank].sends[0]]
    chain = sending_first[:1]
    while len(sending_first) == 1 and len(chain) < len(members):
        last = passed[chain[-1]]
        peers = last.peer[last.sends]
        following = int(peers[0]) if len(peers) else -1
        if following not in members or following in chain:
            break
        chain.append(following)
    return tuple(chain) if len(chain) == len(members) else tuple(sorted(members))
