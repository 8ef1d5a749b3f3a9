"""Streams and launches of device work: its lanes, durations that overrun the next, and the call that launched it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.lanes import split_lanes
from usp_prof.columns.rows import numbered
from usp_prof.tables.events.classification import kinds
from usp_prof.tables.events.frame import DEVICE_WORK, HOST_CALLS, HOST_OPS
from usp_prof.tables.ranks import device_kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.tables.events.frame import EventFrame

    Ints = NDArray[np.int64]
    import pyarrow as pa

    from usp_prof.columns.lanes import Nesting


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


# Links: the host call that launched each piece of device work, and the CPU op around that call.
#
# A launch and its work share a correlation id; the op is the innermost one around the launch on its thread. Where a
# launch is not in the trace, an external id ties the work to its op.


@dataclass(frozen=True, slots=True)
class Links:
    """Rows of the frame, one entry for each piece of device work (sorted by start) and for each host call."""

    work: Ints
    """Device work."""
    call: Ints
    """The host call that launched it; -1 when it is not in the trace."""
    op: Ints
    """The innermost CPU op around that call; -1 when unknown."""
    calls: Ints
    """Every host call, in order of start."""
    call_ops: Ints
    """The innermost CPU op around each host call; -1 for none."""
    before_window: NDArray[np.bool_]
    """The work was launched before recording began."""
    kind: Ints
    """Which kind of work it is (place in `work_kinds.KINDS`)."""
    library: pa.DictionaryArray
    """Whose library's it is, where it is communication."""
    lane: Ints
    """Lane of the work within its stream."""
    named_lane: Ints
    """The same among all streams: place in `lane_names`."""
    lane_names: list[str]
    duplicates: int
    """Host calls that share their correlation id with another (a runtime call and the driver call inside)."""
    ops: Nesting
    """How the CPU ops nest on their threads, by place among `rows(*HOST_OPS)`."""


def link(frame: EventFrame) -> Links:
    """Link device work to host calls and CPU ops."""
    work = frame.rows(*DEVICE_WORK)
    work = work[
        np.lexsort((work, frame.duration[work] > 0, frame.start[work]))
    ]  # what is empty goes first, as on lanes
    calls = frame.rows(*HOST_CALLS)
    calls = calls[np.lexsort((calls, frame.start[calls]))]
    op_rows = frame.rows(*HOST_OPS)
    ops = frame.nested(op_rows)
    call_ops = _at(op_rows, ops.innermost(frame.track[calls], frame.start[calls]))
    own = frame.ints("correlation", calls)
    ids, places = _first_of_each(own)
    found = _look_up(ids, places, frame.ints("correlation", work))
    call, op = _at(calls, found), _at(call_ops, found)
    op = np.where(op < 0, _by_external_id(frame, work, op_rows), op)
    tied = int((own > 0).sum()) - int((ids > 0).sum())
    before = _before_window(frame, work, call, calls)
    kind, library = kinds(frame, work)
    return Links(work, call, op, calls, call_ops, before, kind, library, *lanes_of_work(frame, work), tied, ops.nesting)


def _first_of_each(keys: Ints) -> tuple[Ints, Ints]:
    """Give the distinct keys above zero and where each first stands."""
    known = np.flatnonzero(keys > 0)
    distinct, first = np.unique(keys[known], return_index=True)
    return distinct, known[first]


def _look_up(keys: Ints, values: Ints, wanted: Ints) -> Ints:
    """Give the value of each wanted key; -1 where there is none."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], -1)


def _at(rows: Ints, place: Ints) -> Ints:
    if not len(rows):
        return np.full(len(place), -1, np.int64)
    return np.where(place >= 0, rows[place], -1)


def _by_external_id(frame: EventFrame, work: Ints, op_rows: Ints) -> Ints:
    """Tie by external id, except where it is only the correlation id again, as traces before 2023 write it."""
    external = frame.ints("external_id", work)
    own = np.where(external == frame.ints("correlation", work), -1, external)
    if not (own > 0).any():
        return np.full(len(work), -1, np.int64)
    found = _at(op_rows, _look_up(*_first_of_each(frame.ints("external_id", op_rows)), own))
    begun = frame.start[np.maximum(found, 0)] <= frame.start[work]
    return np.where((found >= 0) & begun, found, -1)


def _before_window(frame: EventFrame, work: Ints, call: Ints, calls: Ints) -> NDArray[np.bool_]:
    """Correlation ids only grow: work with a smaller one than every recorded call was launched before."""
    seen = frame.ints("correlation", calls)
    seen = seen[seen > 0]
    if not len(seen):
        return np.zeros(len(work), dtype=bool)
    own = frame.ints("correlation", work)
    earlier = (own < seen.min()) | (frame.end[work] < frame.start[calls].min())
    return np.asarray((call < 0) & (own > 0) & earlier, dtype=bool)
