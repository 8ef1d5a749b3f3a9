"""Who is on the other side of a send or receive? As recorded, as marked, else from the group rank given to c10d.

`c10d::send` names its peer by rank within a group, and not the group. Where only one of the rank's groups fits (of
those of the part's axis, when any is), the peer is known; otherwise it stays unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.arrow import index_of
from usp_prof.tables.communication.arguments import numbers
from usp_prof.tables.communication.transfers import marked_transfers
from usp_prof.tables.events.arguments import Field

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from usp_prof.model.topology import Group
    from usp_prof.tables.communication.parts import Parts
    from usp_prof.tables.events.frame import EventFrame
    from usp_prof.tables.groups import Membership

    Ints = NDArray[np.int64]

_DIRECTED = ("send", "recv")
_PEER_IN_GROUP = Field("peer", "Concrete Inputs", item=2)


def peers(frame: EventFrame, parts: Parts, membership: Membership, axes: pa.DictionaryArray) -> Ints:
    """Give the other side's global rank for each part; -1 for none or unknown."""
    source, destination = numbers(parts.said, "source"), numbers(parts.said, "destination")
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
