"""Pipeline traffic: whether sends and receives belong to a pipeline, and the order of its ranks.

A stage sends several micro-batches forward before the first gradient comes back from the same peer, and its peer sees
the mirror image. Other senders differ:
  a ring (context parallel, sendrecv of nccl-tests)   sends to one peer and receives from another
  a halo exchange, a ping-pong                        a send is answered before the next one
  a bandwidth sweep                                   sizes differ
  an all-to-all exchange                              more than two peers
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Ints
from usp_prof.columns.table import Columns
from usp_prof.model.topology import Axis
from usp_prof.tables.pipeline.stretches import Messages
from usp_prof.tables.table_set import Source

_AHEAD = 2
"""Messages by which one direction must be ahead of the other; an answered message is ahead by one."""
_NEIGHBOURS = 2
_ONE_SIZE = 0.9


@dataclass(frozen=True, slots=True)
class Transfers:
    """What the transfers of some ranks show; those of a last stage, which answers every message, show nothing."""

    ahead: bool = False
    """Whether one direction ran ahead of the other on some rank."""
    refused: bool = False
    """Whether transfers on some rank cannot belong to a pipeline."""

    @property
    def pipeline(self) -> bool:
        """Whether the transfers belong to a pipeline."""
        return self.ahead and not self.refused

    def combined(self, other: Transfers) -> Transfers:
        """Combine with the evidence of other ranks."""
        return Transfers(self.ahead or other.ahead, self.refused or other.refused)


def transfers_of(rows: Columns) -> Transfers:
    """Classify one rank's sends and receives within one group."""
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
    for peer_rank in peers:
        sends, receives = (peer == peer_rank) & is_send, (peer == peer_rank) & ~is_send
        if not sends.any() or not receives.any():
            return Transfers(refused=True)
        ahead |= _ahead(end[sends], start[receives]) or _ahead(end[receives], start[sends])
    return Transfers(ahead=ahead)


def _ahead(ends: Ints, answers: Ints) -> bool:
    """Return whether `_AHEAD` messages had ended, beyond those already answered, when some answer started."""
    moments = np.sort(answers)
    over = np.searchsorted(np.sort(ends), moments, side="right")
    return bool((over - np.arange(len(moments))).max() >= _AHEAD)


# Chains: the ranks of each pipeline in stage order.


def chains(sources: Mapping[int, Source], passed: Mapping[int, Messages]) -> list[tuple[int, ...]]:
    """Group ranks into pipelines in stage order, by following each stage's first sends."""
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
    """Return all ranks that a rank exchanges messages with, directly or through others; empty if peers are unknown."""
    members, new = {rank}, {rank}
    while new:
        peers = {peer for member in new if member in passed for peer in np.unique(passed[member].peer).tolist()}
        if -1 in peers:
            return set()
        new = peers - members
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

    Stage 0 is the only rank whose first message is a send. It sends to stage 1, whose first send goes to stage 2, and
    so on. If peers are unknown, or several ranks send first, ranks are in numeric order.
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
