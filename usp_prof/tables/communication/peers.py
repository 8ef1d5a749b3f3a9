"""Peers: the other rank of a send or receive, and unnamed exchanges that all ranks share.

Sources of a peer, in this order: the recorded peer; the pipeline's mark around it; the rank within a group that c10d
received. `c10d::send` does not name the group. The peer is set only if one of the rank's groups fits (of those on the
part's axis, if there are any); otherwise it stays unknown. NCCL's kernels name neither direction nor peer.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.arrow import index_of
from usp_prof.columns.rows import sorted_by
from usp_prof.columns.table import Columns, Replaced
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.topology import group_key
from usp_prof.tables.communication.arguments import numbers
from usp_prof.tables.communication.marks import marked_transfers
from usp_prof.tables.events.arguments import Field
from usp_prof.tables.events.frame import compact
from usp_prof.tables.table_set import ChangedSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from usp_prof.columns.arrays import Ints
    from usp_prof.columns.table import View
    from usp_prof.model.topology import Group
    from usp_prof.tables.communication.parts import Membership, Parts
    from usp_prof.tables.events.frame import EventFrame
    from usp_prof.tables.table_set import Source


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
        peer[unknown] = _from_groups(frame, parts.post[unknown], axis_of_part, membership)
    return peer


def _from_groups(frame: EventFrame, posts: Ints, axes: Sequence[str], membership: Membership) -> Ints:
    """Return the peer of each post from its rank within a group, the only argument of `c10d::send`; else -1."""
    place_in_group = frame.arguments(posts, (_PEER_IN_GROUP,))["peer"]
    keys = list(zip(axes, place_in_group.tolist(), strict=True))
    peer_of_key = {(axis, place): _only(membership.groups, frame.rank, axis, place) for axis, place in set(keys)}
    return np.array([peer_of_key[key] for key in keys], np.int64)


def _only(groups: Sequence[Group], rank: int, axis: str, place: int) -> int:
    """Return the only global rank for an index within a group; -1 for several or none."""
    fitting = [group for group in groups if place >= 0 and rank in group.ranks and len(group.ranks) > max(place, 1)]
    of_axis = [group for group in fitting if group.axis == axis]
    peers = {group.ranks[place] for group in of_axis or fitting} - {rank}
    return peers.pop() if len(peers) == 1 else -1


# Common exchanges: send and receive kernels without group and peer that all ranks share.
#
# NCCL runs an all-to-all by the kernel of sends. Device activity alone does not show its members: a pipeline's
# transfers, a ring's exchanges and two halves of the job look the same. The difference is which ranks a late rank
# delays. Counted from the last, call k of every rank is one call of all ranks if
#     - the ends of the members differ by microseconds after each rank's clock offset is removed, and
#     - whenever one rank arrives clearly later than all others, none of the others ends before it arrives.
# In a pipeline, a ring or two halves, a late rank delays only adjacent ranks. If no rank is ever clearly late, the
# kernels stay without a group.

_TOGETHER_NS = 100_000
"""Median distance of the ends of one call's members; 10 to 40 us were measured on four recorded ranks."""
_LATE_NS = 10 * _TOGETHER_NS
"""A rank that arrives this much later than all others is late beyond clock differences."""
_LEAST_LATE_CALLS = 3
_LEAST_RANKS = 3
"""Two ranks that exchange may be a pipeline of two stages or an all-to-all of two."""
_HELD = 0.9
"""Share of calls with a late rank in which it delays all others; a profiler occasionally loses a kernel."""


def grouped(sources: Mapping[int, Source], world: int) -> tuple[dict[int, Source], list[HealthRow]]:
    """Assign unnamed exchanges to the group of all ranks, if all ranks share them."""
    plain = dict(sources)
    if len(sources) < max(world, _LEAST_RANKS):
        return plain, []
    rows = {rank: nameless(Columns(source.view("collectives"))) for rank, source in sources.items()}
    counts = [len(own) for own in rows.values()]
    if min(counts) < _LEAST_LATE_CALLS or not _are_common(sources, rows, min(counts)):
        return plain, []
    key = group_key("", tuple(sorted(sources)))
    change = {"collectives": partial(_with_group, key=key, size=len(sources))}
    changed: dict[int, Source] = {rank: ChangedSource(source, change) for rank, source in sources.items()}
    detail = (
        f"{min(counts)} exchanges per rank name no group; they count as calls of all {len(sources)} ranks, because all "
        "others waited whenever one rank was late"
    )
    return changed, [HealthRow("exchanges_grouped", Severity.INFO, count=min(counts), detail=detail)]


def nameless(collectives: Columns) -> Ints:
    """Return the send and receive rows that name neither a group nor a peer, by start."""
    names_nothing = collectives.matches("group", "") & (collectives["peer"] < 0)
    rows = np.flatnonzero(collectives.matches("op", "send_recv") & names_nothing)
    return sorted_by(collectives["start_ns"], rows)


def _are_common(sources: Mapping[int, Source], rows: Mapping[int, Ints], count: int) -> bool:
    """Return whether the last `count` exchanges of all ranks are the same calls."""
    # Both arrays: one row per rank, one column per call.
    start = np.empty((len(sources), count), np.int64)
    end = np.empty_like(start)
    for place, (rank, source) in enumerate(sources.items()):
        columns, own = Columns(source.view("collectives")), rows[rank][-count:]
        start[place] = columns["start_ns"][own]
        end[place] = start[place] + columns["dur_ns"][own]
    offset = np.median(end - end[0], axis=1).astype(np.int64)[:, None]
    start, end = start - offset, end - offset
    if np.median(end.max(axis=0) - end.min(axis=0)) > _TOGETHER_NS:
        return False
    arrival = np.sort(start, axis=0)
    has_late_rank = arrival[-1] - arrival[-2] > _LATE_NS
    if has_late_rank.sum() < _LEAST_LATE_CALLS:
        return False
    holds_all = end.min(axis=0) >= arrival[-1] - _TOGETHER_NS
    return bool(np.mean(holds_all[has_late_rank]) >= _HELD)


def _with_group(collectives: View, key: str, size: int) -> View:
    """Put the unnamed exchanges of one rank into the group of all ranks."""
    columns = Columns(collectives)
    is_common = np.zeros(len(columns), bool)
    is_common[nameless(columns)] = True
    codes, keys = columns.codes("group")
    names = [*keys, key] if key not in keys else list(keys)
    return Replaced(
        collectives,
        {
            "group": lambda: compact(np.where(is_common, names.index(key), codes), names),
            "group_size": lambda: index_of(np.where(is_common, size, columns["group_size"])),
        },
    )
