"""Peers: the rank on the other side of a send or receive.

In this order: as recorded; as the pipeline's mark around it says; from the rank within a group that c10d was given.
`c10d::send` does not name the group. The peer is set only if one of the rank's groups fits (of those on the part's
axis, if there are any); otherwise it stays unknown. NCCL's kernels name neither direction nor peer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.arrow import index_of
from usp_prof.columns.lanes import nest
from usp_prof.contract import parse_mark
from usp_prof.tables.communication.arguments import numbers
from usp_prof.tables.events.arguments import Field
from usp_prof.tables.events.frame import MARKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from usp_prof.model.topology import Group
    from usp_prof.tables.communication.parts import Parts
    from usp_prof.tables.events.frame import EventFrame
    from usp_prof.tables.groups import Membership

    Ints = NDArray[np.int64]


_DIRECTIONS = ("", "send", "recv")


def direction(name: str) -> int:
    """Say whether an annotation marks a send or a receive of the pipeline (place in the list of directions)."""
    mark = parse_mark(name)
    if mark is None or mark.area != "pp":
        return 0
    return next((place for place, word in enumerate(_DIRECTIONS) if word and mark.what.startswith(word)), 0)


def marked_transfers(frame: EventFrame, track: Ints, at: Ints) -> tuple[NDArray[np.object_], Ints]:
    """Give for moments on threads the direction (empty outside such marks) and the peer's global rank, or -1."""
    rows = frame.rows(*MARKS)
    kind = frame.by_name(rows, direction, np.int64)
    rows, kind = rows[kind > 0], kind[kind > 0]
    if not len(rows):
        return np.full(len(at), "", dtype=object), np.full(len(at), -1, np.int64)
    peer = frame.by_name(rows, _peer, np.int64)
    inner = nest(frame.track[rows], frame.start[rows], frame.duration[rows]).innermost(track, at)
    words = np.array([*_DIRECTIONS], dtype=object)
    return np.where(inner >= 0, words[kind[inner]], ""), np.where(inner >= 0, peer[inner], -1)


def _peer(name: str) -> int:
    mark = parse_mark(name)
    value = mark.values.get("peer", -1) if mark else -1
    return value if isinstance(value, int) else -1


_DIRECTED = ("send", "recv")
_PEER_IN_GROUP = Field("peer", "Concrete Inputs", item=2)


def peers(frame: EventFrame, parts: Parts, membership: Membership, axes: pa.DictionaryArray) -> Ints:
    """Give the other side's global rank for each part; -1 for none or unknown."""
    source, destination = numbers(parts.arguments, "source"), numbers(parts.arguments, "destination")
    sends = parts.operation == "send"
    first, second = np.where(sends, destination, source), np.where(sends, source, destination)
    said = np.where((first >= 0) & (first != frame.rank), first, second)
    said = np.where(said == frame.rank, -1, said)
    _, marked = marked_transfers(frame, parts.posted_track, parts.posted_at)
    said = np.where((said < 0) & np.isin(parts.operation, _DIRECTED) & (marked != frame.rank), marked, said)
    asked = np.flatnonzero((said < 0) & np.isin(parts.operation, _DIRECTED) & (parts.post >= 0))
    if len(asked):
        said[asked] = _from_groups(frame, parts.post[asked], axes.take(index_of(asked)).to_pylist(), membership)
    return said


def _from_groups(frame: EventFrame, posts: Ints, axes: Sequence[str], membership: Membership) -> Ints:
    in_group = frame.arguments(posts, (_PEER_IN_GROUP,))["peer"]
    known = {}
    for axis, place in sorted(set(zip(axes, in_group.tolist(), strict=True))):
        known[axis, place] = _only(membership.groups, frame.rank, axis, place)
    return np.array([known[key] for key in zip(axes, in_group.tolist(), strict=True)], np.int64)


def _only(groups: Sequence[Group], rank: int, axis: str, place: int) -> int:
    """Give the one global rank that a place within a group can mean; -1 when there are several or none."""
    fitting = [g for g in groups if place >= 0 and rank in g.ranks and len(g.ranks) > max(place, 1)]
    own = [g for g in fitting if g.axis == axis]
    found = {g.ranks[place] for g in own or fitting} - {rank}
    return found.pop() if len(found) == 1 else -1
