"""Peers: the other rank of a send or receive.

Sources of a peer, in this order: the recorded peer; the pipeline's mark around it; the rank within a group that c10d
received. `c10d::send` does not name the group. The peer is set only if one of the rank's groups fits (of those on the
part's axis, if there are any); otherwise it stays unknown. NCCL's kernels name neither direction nor peer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from usp_prof.columns.arrays import Ints
from usp_prof.columns.arrow import index_of
from usp_prof.model.topology import Group
from usp_prof.tables.communication.arguments import numbers
from usp_prof.tables.communication.parts import Membership, Parts
from usp_prof.tables.communication.posts import marked_transfers
from usp_prof.tables.events.arguments import Field
from usp_prof.tables.events.frame import EventFrame

_DIRECTED = ("send", "recv")
_PEER_IN_GROUP = Field("peer", "Concrete Inputs", item=2)


def peers(frame: EventFrame, parts: Parts, membership: Membership, axes: pa.DictionaryArray) -> Ints:
    """Return the global rank of each part's peer; -1 for none or unknown."""
    source, destination = numbers(parts.arguments, "source"), numbers(parts.arguments, "destination")
    is_send = parts.operation == "send"
    is_directed = np.isin(parts.operation, _DIRECTED)
    # As recorded. Some versions swap peer and own rank: take the one that is not this rank.
    expected, swapped = np.where(is_send, destination, source), np.where(is_send, source, destination)
    peer = np.where((expected >= 0) & (expected != frame.rank), expected, swapped)
    peer = np.where(peer == frame.rank, -1, peer)
    # Otherwise from the mark, or from the index within a group.
    _, marked = marked_transfers(frame, parts.posted_track, parts.posted_at)
    peer = np.where((peer < 0) & is_directed & (marked != frame.rank), marked, peer)
    unknown = np.flatnonzero((peer < 0) & is_directed & (parts.post >= 0))
    if len(unknown):
        axis_of_part = axes.take(index_of(unknown)).to_pylist()
        place_in_group = frame.arguments(parts.post[unknown], (_PEER_IN_GROUP,))["peer"]
        keys = list(zip(axis_of_part, place_in_group.tolist(), strict=True))
        peer_of_key = {key: _global_rank(membership.groups, frame.rank, *key) for key in set(keys)}
        peer[unknown] = [peer_of_key[key] for key in keys]
    return peer


def _global_rank(groups: Sequence[Group], rank: int, axis: str, place: int) -> int:
    """Return the only global rank for an index within a group; -1 for several or none."""
    fitting = [group for group in groups if place >= 0 and rank in group.ranks and len(group.ranks) > max(place, 1)]
    of_axis = [group for group in fitting if group.axis == axis]
    peers = {group.ranks[place] for group in of_axis or fitting} - {rank}
    return peers.pop() if len(peers) == 1 else -1
