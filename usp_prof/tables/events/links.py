"""Streams and launches of device work: its lanes, durations that overrun the next, and the call that launched it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.lanes import split_lanes
from usp_prof.columns.rows import first_of_run, lookup, numbered, rows_of
from usp_prof.tables.events.classification import kinds
from usp_prof.tables.events.frame import DEVICE_WORK, HOST_CALLS, HOST_OPS
from usp_prof.tables.ranks import device_kind

if TYPE_CHECKING:
    import pyarrow as pa

    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.columns.lanes import Nesting
    from usp_prof.tables.events.frame import EventFrame


def streams(frame: EventFrame, rows: Ints) -> Ints:
    """Return the stream of device work: the argument or, without one, the thread that Kineto files it under."""
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
    """Return the (device, stream) pairs and which of them each row has."""
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


def _outlasting(track: Ints, start: Ints, end: Ints) -> Flags:
    """Mark work within which the next ones of its stream begin and end; all sorted by stream and start."""
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
# A launch and its work share a correlation id; the op is the innermost one around the launch on its thread. Where a
# launch is not in the trace, an external id ties the work to its op.
#
# A runtime call and the driver call inside it share an id: the outer one counts. An id that separate calls share, one
# after the other or on two threads, is damaged and proves nothing: work that carries it stays unlinked.


@dataclass(frozen=True, slots=True)
class Links:
    """Rows of the frame, one entry for each piece of device work (sorted by start) and for each host call."""

    work: Ints
    """Device work."""
    call: Ints
    """The host call that launched it; -1 when it is not in the trace, or several claim it."""
    op: Ints
    """The innermost CPU op around that call; -1 when unknown."""
    calls: Ints
    """Every host call, in order of start."""
    before_window: Flags
    """The work was launched before recording began."""
    ambiguous: Flags
    """Separate host calls carry the work's correlation id: none of them is taken."""
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
    """Host calls inside another one of the same correlation id (a driver call inside a runtime call)."""
    ops: Nesting
    """How the CPU ops nest on their threads, by place among `rows(*HOST_OPS)`."""


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
        ops=ops.nesting,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Claims:
    """Which row each id means, for ids above zero."""

    ids: Ints
    """Ids with one meaning, ascending."""
    places: Ints
    """The row of each: the outermost of those that carry it."""
    contested: Ints
    """Ids that separate rows carry."""
    inner: int
    """How many rows lie inside the one that counts."""


def _claims(frame: EventFrame, rows: Ints, keys: Ints) -> _Claims:
    """Find for each id the row that it means, among host calls or ops."""
    known = np.flatnonzero(keys > 0)
    start, end, track = frame.start[rows[known]], frame.end[rows[known]], frame.track[rows[known]]
    # By id, the first to begin ahead; of those that begin together the longest.
    order = np.lexsort((known, -end, start, keys[known]))
    known, start, end, track = known[order], start[order], end[order], track[order]
    own = keys[known]
    is_first = first_of_run(own)
    first = np.flatnonzero(is_first)
    of_row = np.cumsum(is_first) - 1
    # Where times are whole microseconds an inner call may seem to begin as the outer one ends.
    outer = first[of_row]
    inside = (start <= end[outer]) & (track == track[outer])
    contested = np.zeros(len(first), dtype=bool)
    contested[of_row[~inside]] = True
    inner = int(np.count_nonzero(~contested[of_row])) - int(np.count_nonzero(~contested))
    ids = own[first]
    return _Claims(ids[~contested], known[first][~contested], ids[contested], inner)


def _by_external_id(frame: EventFrame, work: Ints, op_rows: Ints) -> Ints:
    """Tie by external id, except where it is only the correlation id again, as traces before 2023 write it."""
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
    """Correlation ids only grow: work with a smaller one than every recorded call was launched before."""
    seen = frame.ints("correlation", calls)
    seen = seen[seen > 0]
    if not len(seen):
        return np.zeros(len(work), dtype=bool)
    own = frame.ints("correlation", work)
    earlier = (own < seen.min()) | (frame.end[work] < frame.start[calls].min())
    return np.asarray((call < 0) & (own > 0) & earlier, dtype=bool)
