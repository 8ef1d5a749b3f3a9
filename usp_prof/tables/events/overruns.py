"""Which durations of device work cannot be true, and how long did that work run at most?

A stream runs its work in order. ROCm's tracer writes the end of a kernel late when it flushes deferred time stamps
after a stall: the kernel then outlasts several pieces of work that began and ended after it on its own stream, and
seconds of compute appear that never were. Such work is cut where the next begins. Work that only reaches into the next
(queues may overlap a little, as NVIDIA's streams do by programmatic launch) is left as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.tables.events.frame import DEVICE_WORK
from usp_prof.tables.events.streams import tracks
from usp_prof.tables.ranks import device_kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.tables.events.frame import EventFrame

    Ints = NDArray[np.int64]

_OUTLASTED = 2
"""So many pieces of work that come and go within another's duration show that it is wrong."""


def cut(frame: EventFrame) -> int:
    """Shorten what cannot be true in the frame, and say how many pieces of work that were."""
    if device_kind(frame) != "rocm":
        return 0
    rows = frame.rows(*DEVICE_WORK)
    track = tracks(frame, rows)
    order = np.lexsort((rows, frame.end[rows], frame.start[rows], track))
    rows, track = rows[order], track[order]
    wrong = _outlasting(track, frame.start[rows], frame.end[rows])
    following = np.append(frame.start[rows][1:], 0)
    frame.shorten(rows[wrong], following[wrong] - frame.start[rows[wrong]])
    return int(wrong.sum())


def _outlasting(track: Ints, start: Ints, end: Ints) -> NDArray[np.bool_]:
    """Mark work within which the next ones of its stream begin and end; all sorted by stream and start."""
    found = np.zeros(len(start), dtype=bool)
    if len(start) <= _OUTLASTED:
        return found
    within = np.ones(len(start) - _OUTLASTED, dtype=bool)
    for step in range(1, _OUTLASTED + 1):
        later = slice(step, len(start) - _OUTLASTED + step)
        here = slice(0, len(start) - _OUTLASTED)
        within &= (track[later] == track[here]) & (end[later] <= end[here]) & (start[later] > start[here])
    found[: len(within)] = within
    return found
