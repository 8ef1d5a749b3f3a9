"""Streams and lanes of device work, and its durations where they overrun the next work of the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.lanes import split_lanes
from usp_prof.columns.rows import numbered
from usp_prof.tables.events.frame import DEVICE_WORK
from usp_prof.tables.ranks import device_kind

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
