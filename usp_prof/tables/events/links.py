"""Streams and launches of device work: lanes, overlapping durations, and the launching call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.lanes import split_lanes
from usp_prof.columns.rows import first_of_run, lookup, numbered, rows_of
from usp_prof.inputs.trace_record import DEVICE_WORK
from usp_prof.tables.events.classification import kinds
from usp_prof.tables.events.devices import device_kind
from usp_prof.tables.events.frame import HOST_CALLS, HOST_OPS, EventFrame


def streams(frame: EventFrame, rows: Ints) -> Ints:
    """Return the stream of device work: the argument or, without one, Kineto's thread."""
    stream = frame.ints("stream", rows)
    if (stream >= 0).all():
        return stream
    codes, threads = frame.codes("thread")
    numbers = np.array([int(text) if text.isdigit() and len(text) < 18 else -1 for text in [*threads, ""]])
    return np.where(stream >= 0, stream, numbers[codes[rows]])


def tracks(frame: EventFrame, rows: Ints) -> Ints:
    """Return the number of the (device, stream) pair of device work."""
    return _tracks(frame, rows)[1]


def lanes_of_work(frame: EventFrame, rows: Ints) -> tuple[Ints, Ints, list[str]]:
    """Assign each piece of device work its lane within its stream: 0, or more if work of one stream overlaps.

    Also returns the lane among those of all streams, and their names.
    """
    pairs, track = _tracks(frame, rows)
    lane = split_lanes(track, frame.start[rows], frame.end[rows])
    # A lane is named by its stream, with a number for overlapping work.
    several = len({device for device, _ in pairs}) > 1
    deep = int(lane.max(initial=0)) + 1
    used, inverse = numbered(track * deep + lane)
    names = []
    for code in used.tolist():
        (device, stream), level = pairs[code // deep], code % deep
        names.append(f"{f'device {device} ' if several else ''}stream {stream}{f'/{level}' if level else ''}")
    return lane, inverse, names


def _tracks(frame: EventFrame, rows: Ints) -> tuple[list[tuple[int, int]], Ints]:
    """Return the (device, stream) pairs, and the pair of each row."""
    devices, device = numbered(frame.ints("device", rows))
    stream_ids, stream = numbered(streams(frame, rows))
    used, track = numbered(device * max(len(stream_ids), 1) + stream)
    pairs = [(int(devices[code // len(stream_ids)]), int(stream_ids[code % len(stream_ids)])) for code in used.tolist()]
    return pairs, track


_OUTLASTED = 2
"""A duration is wrong if this many other pieces of work start and end within it."""


def cut(frame: EventFrame) -> int:
    """Shorten impossible durations in the frame; return their number."""
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


def shorten_rounded(frame: EventFrame) -> None:
    """Shorten work that overlaps the next of its stream by 1 ns: starts and durations were rounded separately.

    Only for traces with times finer than a nanosecond. Otherwise work that follows each other would seem to run at the
    same time, and nothing would show that it waited.
    """
    rows = frame.rows(*DEVICE_WORK)
    track = tracks(frame, rows)
    order = np.lexsort((frame.start[rows], track))
    rows, track = rows[order], track[order]
    overlap_ns = frame.end[rows][:-1] - frame.start[rows][1:]
    rounded = rows[:-1][(track[:-1] == track[1:]) & (overlap_ns == 1) & (frame.duration[rows][:-1] > 0)]
    frame.shorten(rounded, frame.duration[rounded] - 1)


def _outlasting(track: Ints, start: Ints, end: Ints) -> Flags:
    """Mark work within which the next pieces of its stream start and end; all sorted by stream and start."""
    outlasts = np.zeros(len(start), dtype=bool)
    if len(start) <= _OUTLASTED:
        return outlasts
    within = np.ones(len(start) - _OUTLASTED, dtype=bool)
    for step in range(1, _OUTLASTED + 1):
        later = slice(step, len(start) - _OUTLASTED + step)
        here = slice(0, len(start) - _OUTLASTED)
        within &= (track[later] == track[here]) & (end[later] <= end[here]) & (start[later] > start[here])
    outlasts[: len(within)] = within
    return outlasts


# Links: the host call that launched each piece of device work, and the CPU op around that call.
#
# A launch and its work share a correlation id; the op is the innermost one around the launch on its thread. If the
# launch is not in the trace, an external id links the work to its op.
#
# A runtime call and the driver call inside it share an id: the outer one is used. An id shared by separate calls (in
# sequence or on two threads) is damaged, so work with this id stays unlinked.


@dataclass(frozen=True, slots=True)
class Links:
    """Rows of the frame, one entry per piece of device work (sorted by start) and per host call."""

    work: Ints
    """Device work."""
    call: Ints
    """The host call that launched it; -1 if it is not in the trace, or ambiguous."""
    op: Ints
    """The innermost CPU op around that call; -1 when unknown."""
    calls: Ints
    """Every host call, by start."""
    before_window: Flags
    """Whether the work was launched before the recording started."""
    ambiguous: Flags
    """Whether separate host calls have the work's correlation id: none of them is used."""
    kind: Ints
    """Kind of work (index in `work_kinds.KINDS`)."""
    library: pa.DictionaryArray
    """Library of communication."""
    lane: Ints
    """Lane of the work within its stream."""
    named_lane: Ints
    """Lane among all streams: index in `lane_names`."""
    lane_names: list[str]
    duplicates: int
    """Number of host calls inside another one with the same correlation id (a driver call inside a runtime call)."""
    op_depth: NDArray[np.int32]
    """Number of CPU ops around each CPU op on its thread, by index in `rows(*HOST_OPS)`."""
    op_parent: NDArray[np.int32]
    """Index of the CPU op that directly encloses it; -1 at the top."""


def link(frame: EventFrame) -> Links:
    """Link device work to host calls and CPU ops."""
    work = frame.in_order_of_time(frame.rows(*DEVICE_WORK))
    calls = frame.in_order_of_time(frame.rows(*HOST_CALLS))
    op_rows = frame.rows(*HOST_OPS)
    ops = frame.nested(op_rows)
    # By host call: the innermost op around it; -1 for none.
    call_ops = lookup(op_rows, ops.innermost(frame.track[calls], frame.start[calls]), missing=-1)
    claims = _claims(frame, calls, frame.ints("correlation", calls))
    wanted = frame.ints("correlation", work)
    place_of_call = lookup(claims.places, rows_of(claims.ids, wanted), missing=-1)
    call = lookup(calls, place_of_call, missing=-1)
    op = lookup(call_ops, place_of_call, missing=-1)
    op = np.where(op < 0, _by_external_id(frame, work, op_rows), op)
    before_window = _before_window(frame, work, call, calls)
    kind, library = kinds(frame, work)
    lane, named_lane, lane_names = lanes_of_work(frame, work)
    return Links(
        work,
        call,
        op,
        calls,
        before_window,
        ambiguous=np.isin(wanted, claims.contested) & ~before_window,
        kind=kind,
        library=library,
        lane=lane,
        named_lane=named_lane,
        lane_names=lane_names,
        duplicates=claims.inner,
        op_depth=ops.depth,
        op_parent=ops.parent,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Claims:
    """The row of each id above zero."""

    ids: Ints
    """Ids with one row, ascending."""
    places: Ints
    """The outermost row with each id."""
    contested: Ints
    """Ids of several separate rows."""
    inner: int
    """Number of rows inside the outermost row of their id."""


def _claims(frame: EventFrame, rows: Ints, keys: Ints) -> _Claims:
    """Return the row of each id, among host calls or ops."""
    place = np.flatnonzero(keys > 0)
    start, end, track = frame.start[rows[place]], frame.end[rows[place]], frame.track[rows[place]]
    # By id, the earliest start first; for equal starts, the longest first.
    order = np.lexsort((place, -end, start, keys[place]))
    place, start, end, track = place[order], start[order], end[order], track[order]
    own = keys[place]
    is_first = first_of_run(own)
    first = np.flatnonzero(is_first)
    of_row = np.cumsum(is_first) - 1
    # With whole microseconds an inner call may seem to start when the outer one ends.
    outer = first[of_row]
    inside = (start <= end[outer]) & (track == track[outer])
    contested = np.zeros(len(first), dtype=bool)
    contested[of_row[~inside]] = True
    inner = int(np.count_nonzero(~contested[of_row])) - int(np.count_nonzero(~contested))
    ids = own[first]
    return _Claims(ids[~contested], place[first][~contested], ids[contested], inner)


def _by_external_id(frame: EventFrame, work: Ints, op_rows: Ints) -> Ints:
    """Link by external id, unless it only repeats the correlation id, as in traces before 2023."""
    external = frame.ints("external_id", work)
    own = np.where(external == frame.ints("correlation", work), -1, external)
    if not (own > 0).any():
        return np.full(len(work), -1, np.int64)
    claims = _claims(frame, op_rows, frame.ints("external_id", op_rows))
    place_of_op = lookup(claims.places, rows_of(claims.ids, own), missing=-1)
    op = lookup(op_rows, place_of_op, missing=-1)
    is_begun = frame.start[np.maximum(op, 0)] <= frame.start[work]
    return np.where((op >= 0) & is_begun, op, -1)


def _before_window(frame: EventFrame, work: Ints, call: Ints, calls: Ints) -> Flags:
    """Correlation ids increase: work with a smaller one than every recorded call was launched before the window."""
    call_ids = frame.ints("correlation", calls)
    call_ids = call_ids[call_ids > 0]
    if not len(call_ids):
        return np.zeros(len(work), dtype=bool)
    own = frame.ints("correlation", work)
    earlier = (own < call_ids.min()) | (frame.end[work] < frame.start[calls].min())
    return np.asarray((call < 0) & (own > 0) & earlier, dtype=bool)
