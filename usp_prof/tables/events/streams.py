"""On which stream, and on which lane of it, did device work run?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.lanes import split_lanes
from usp_prof.columns.order import numbered

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.tables.events.frame import EventFrame

    Ints = NDArray[np.int64]


def streams(frame: EventFrame, rows: Ints) -> Ints:
    """Give the stream of device work: the argument or, without one, the thread that Kineto files it under."""
    stream = frame.ints("stream", rows)
    if (stream >= 0).all():
        return stream
    codes, threads = frame.codes("thread")
    numbers = np.array([int(text) if text.isdigit() and len(text) < 18 else -1 for text in [*threads, ""]])
    return np.where(stream >= 0, stream, numbers[codes[rows]])


def tracks(frame: EventFrame, rows: Ints) -> Ints:
    """Give the number of the (device, stream) pair of device work."""
    return _tracks(frame, rows)[1]


def lanes_of_work(frame: EventFrame, rows: Ints) -> tuple[Ints, Ints, list[str]]:
    """Give each piece of device work its lane within its stream: 0, and more where work of one stream overlaps.

    Gives also the lane among those of all streams, and their names.
    """
    pairs, track = _tracks(frame, rows)
    lane = split_lanes(track, frame.start[rows], frame.end[rows])
    return lane, *_named(pairs, track, lane)


def _named(pairs: list[tuple[int, int]], track: Ints, lane: Ints) -> tuple[Ints, list[str]]:
    """Name the lanes of all device work: its stream, with a number behind for what overlaps on it."""
    several = len({device for device, _ in pairs}) > 1
    deep = int(lane.max(initial=0)) + 1
    used, inverse = numbered(track * deep + lane)
    names = []
    for code in used.tolist():
        (device, stream), level = pairs[code // deep], code % deep
        names.append(f"{f'device {device} ' if several else ''}stream {stream}{f'/{level}' if level else ''}")
    return inverse, names


def _tracks(frame: EventFrame, rows: Ints) -> tuple[list[tuple[int, int]], Ints]:
    """Give the (device, stream) pairs and which of them each row has."""
    devices, device = numbered(frame.ints("device", rows))
    listed, stream = numbered(streams(frame, rows))
    used, track = numbered(device * max(len(listed), 1) + stream)
    pairs = [(int(devices[code // len(listed)]), int(listed[code % len(listed)])) for code in used.tolist()]
    return pairs, track
