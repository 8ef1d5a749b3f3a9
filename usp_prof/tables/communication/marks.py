"""Marks of pipeline transfers: the direction and the peer that an annotation names."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from usp_prof.columns.arrays import Ints
from usp_prof.contract import parse_mark
from usp_prof.tables.events.frame import MARKS, EventFrame

_DIRECTIONS = ("", "send", "recv")


def direction(name: str) -> int:
    """Return whether an annotation marks a pipeline send or receive (index in the list of directions)."""
    mark = parse_mark(name)
    if mark is None or mark.area != "pp":
        return 0
    places = (place for place, word in enumerate(_DIRECTIONS) if word and mark.what.startswith(word))
    return next(places, 0)


def marked_transfers(frame: EventFrame, track: Ints, at: Ints) -> tuple[NDArray[np.object_], Ints]:
    """Return at moments on threads the direction (empty outside such marks) and the peer's global rank, or -1."""
    rows = frame.rows(*MARKS)
    kind = frame.by_name(rows, direction, np.int64)
    rows, kind = rows[kind > 0], kind[kind > 0]
    if not len(rows):
        return np.full(len(at), "", dtype=object), np.full(len(at), -1, np.int64)
    peer = frame.by_name(rows, _peer, np.int64)
    inner = frame.nested(rows).innermost(track, at)
    words = np.array([*_DIRECTIONS], dtype=object)
    return np.where(inner >= 0, words[kind[inner]], ""), np.where(inner >= 0, peer[inner], -1)


def _peer(name: str) -> int:
    mark = parse_mark(name)
    value = mark.values.get("peer", -1) if mark else -1
    return value if isinstance(value, int) else -1
