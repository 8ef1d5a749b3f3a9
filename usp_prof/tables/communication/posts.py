"""Posts: the c10d op that posted each of gloo's ranges, and look-ups of ranges and pipeline marks by position."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import last_by, lookup, occurrence, rows_of
from usp_prof.contract import parse_mark
from usp_prof.model.schema import Kind
from usp_prof.tables.communication.arguments import coded_texts, elements
from usp_prof.tables.events.arguments import Field
from usp_prof.tables.events.classification import operation
from usp_prof.tables.events.frame import HOST_OPS, MARKS, EventFrame

P2P = ("send", "recv", "send_recv")
CLOSED_LATE_NS = 5_000_000
"""On busy hosts gloo's threads close their ranges up to this late: 95% of 116 such ranges closed within 4.6 ms."""
_DIRECTIONS = ("", "send", "recv")


def ranges_of(frame: EventFrame, categories: tuple[str, ...], wanted: Callable[[str], bool]) -> Ints:
    """Return the rows of events with a wanted name, by start."""
    rows = frame.rows(*categories)
    return frame.in_order_of_time(rows[frame.by_name(rows, wanted)])


def around(frame: EventFrame, ranges: Ints, track: Ints, at: Ints) -> Ints:
    """Return the innermost of the ranges around each moment of a thread; -1 for none."""
    inner = frame.nested(ranges).innermost(track, at)
    return np.asarray(np.where(inner >= 0, ranges[inner], -1), np.int64) if len(ranges) else inner


def marked_transfers(frame: EventFrame, track: Ints, at: Ints) -> tuple[NDArray[np.object_], Ints]:
    """Return at moments on threads the direction (empty outside such marks) and the peer's global rank, or -1."""
    rows = frame.rows(*MARKS)
    kind = frame.by_name(rows, _direction, np.int64)
    rows, kind = rows[kind > 0], kind[kind > 0]
    if not len(rows):
        return np.full(len(at), "", dtype=object), np.full(len(at), -1, np.int64)
    peer = frame.by_name(rows, lambda name: mark.number("peer") if (mark := parse_mark(name)) else -1, np.int64)
    inner = frame.nested(rows).innermost(track, at)
    words = np.array([*_DIRECTIONS], dtype=object)
    return np.where(inner >= 0, words[kind[inner]], ""), np.where(inner >= 0, peer[inner], -1)


def _direction(name: str) -> int:
    """Return whether an annotation marks a pipeline send or receive (index in the list of directions)."""
    mark = parse_mark(name)
    if mark is None or mark.area != "pp":
        return 0
    return next((place for place, word in enumerate(_DIRECTIONS) if word and mark.what.startswith(word)), 0)


def operation_of(frame: EventFrame, rows: Ints) -> NDArray[np.object_]:
    """Return the operation in an event's name; "other" for a row of -1."""
    result = np.full(len(rows), "other", dtype=object)
    has_row = rows >= 0
    result[has_row] = frame.by_name(rows[has_row], lambda name: operation(name.partition(":")[2] or name), object)
    return result


def posts_of_gloo(frame: EventFrame, row: Ints, op: NDArray[np.object_]) -> Ints:
    """Return the c10d op that posted each gloo range; -1 if it is before the window.

    1. Sends and receives start inside their op, on its thread.
    2. All others run on gloo's workers. For one operation and size, ops and ranges have the same order, so the k-th
       range belongs to the k-th op.
    """
    posts = ranges_of(frame, HOST_OPS, lambda name: name.startswith("c10d::"))
    post_of_row = around(frame, posts, frame.track[row], frame.start[row])
    free_posts = posts[~np.isin(posts, post_of_row)]
    if not len(free_posts):
        return post_of_row
    on_worker = np.flatnonzero((post_of_row < 0) & ~np.isin(op, P2P))
    op_of_post = operation_of(frame, free_posts)
    op_of_post = np.where(op_of_post == "reduce_scatter", "all_reduce", op_of_post)  # gloo runs it as one
    kind_of_range = _operations_and_sizes(frame, row[on_worker], op[on_worker])
    kind_of_post = _operations_and_sizes(frame, free_posts, op_of_post)
    post_of_row[on_worker] = lookup(free_posts, _in_order_of_kind(kind_of_range, kind_of_post), missing=-1)
    return post_of_row


def _in_order_of_kind(kind_of_range: NDArray[np.str_], kind_of_post: NDArray[np.str_]) -> Ints:
    """Return the index of each range's post: the k-th range of a kind belongs to the k-th post of that kind; -1: none.

    If a kind has more ranges than posts, the first ranges were posted before the window, so the last ones are matched.

        ranges  A A B A     posts  A B A      gives  -1 0 1 2
    """
    kinds, code = np.unique(np.concatenate([kind_of_range, kind_of_post]), return_inverse=True)
    code_of_range, code_of_post = code[: len(kind_of_range)], code[len(kind_of_range) :]
    # By kind: number of ranges posted before the window.
    posted_before = np.bincount(code_of_range, minlength=len(kinds)) - np.bincount(code_of_post, minlength=len(kinds))
    nth_range = occurrence(code_of_range) - np.maximum(posted_before, 0)[code_of_range]
    # One number for "the n-th of this kind", by which ranges and posts are matched; negative: none.
    stride = len(code) + 1
    wanted = np.where(nth_range >= 0, code_of_range * stride + nth_range, -1)
    return rows_of(code_of_post * stride + occurrence(code_of_post), wanted)


def _operations_and_sizes(frame: EventFrame, rows: Ints, op: NDArray[np.object_]) -> NDArray[np.str_]:
    """Return each event's operation and input size in elements; c10d lists the input after the output."""
    dims, texts = coded_texts(frame.arguments(rows, (Field("dims", "Input Dims", Kind.TEXT),))["dims"])
    first_list = lookup([elements(text) for text in texts], dims, missing=-1)
    second_list = lookup([elements(text, 1) for text in texts], dims, missing=-1)
    is_post = frame.by_name(rows, lambda name: name.startswith("c10d::"))
    is_reduce_scatter = frame.by_name(rows, lambda name: "reduce_scatter" in name)
    output_first = is_post & (np.isin(op, ("all_gather", "reduce_scatter", "all_to_all")) | is_reduce_scatter)
    size = np.where(output_first & (second_list >= 0), second_list, first_list)
    return np.char.add(np.char.add(op.astype(str), " "), size.astype(str))


# Late waits: posted transfers (gloo) that ended before the program waited for them.
#
# gloo's range of a send or receive lasts from its post until the wait for its handle. If a rank computes meanwhile,
# the range ends with the compute, which is no evidence about the link:
#
#         rank 0    F1 |post send...........................................|wait
#         rank 1    |post recv ..... F0 computes ..... |wait, at once: the data has been there for an unknown time
#
# So a part was *waited for late* if its range ends directly after the rank's own compute, or directly after another
# part in flight (in a series of waits only the first one waits, and the others return immediately).

ANSWER_NS = 300_000
"""Maximum time that Python and gloo need between the end of compute and the answer of a completed wait."""
ANSWER_SHARE = 0.03
"""On busy cores they need more: up to this share of the part's duration, which then adds to the error."""


def asked_late(start: Ints, end: Ints, compute_end: Ints, duration: Ints) -> tuple[Flags, Ints]:
    """Return which of a rank's posted parts were waited for late, and the first part waited for in each series.

    `compute_end` has the ends of the rank's compute, in any order; `duration` the duration of each part.
    """
    first = first_of_turn(start, end)
    late = first != np.arange(len(start))
    if not len(compute_end):
        return late, first
    # By part: the last compute that ends before the part, and its end; -1 for none.
    before = last_by(compute_end, np.arange(len(compute_end)), by=end)
    computed_until = compute_end[before]
    soon = np.maximum(ANSWER_NS, (ANSWER_SHARE * duration).astype(np.int64))
    late |= (before >= 0) & (computed_until > start) & (end - computed_until <= soon)
    return late, first


def first_of_turn(start: Ints, end: Ints) -> Ints:
    """Return for each part of one rank the first of its series: parts that end one after another while in flight."""
    order = np.argsort(end, kind="stable")
    # By position in that order: whether the part was in flight when the previous one ended, and returned immediately.
    follows = np.zeros(len(end), dtype=bool)
    follows[1:] = (np.diff(end[order]) <= ANSWER_NS) & (end[order[:-1]] > start[order[1:]])
    # By position too: the start of its series.
    place = np.arange(len(end))
    turn = np.maximum.accumulate(np.where(follows, 0, place))
    first = np.empty(len(end), np.int64)
    first[order] = order[turn]
    return first
