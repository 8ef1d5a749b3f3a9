"""Marked steps: the steps of a rank from its profiler steps, marks and annotations, with their device windows."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import first_of_run, per_code, sorted_by
from usp_prof.contract import format_mark
from usp_prof.tables.completeness.device_work import NOTABLE, Promises
from usp_prof.tables.events.frame import MARKS, EventFrame
from usp_prof.tables.events.host_calls import LAUNCHING, kind_of
from usp_prof.tables.events.links import Links
from usp_prof.tables.step_cuts import patterns
from usp_prof.tables.steps import WINDOW, Steps


def find(frame: EventFrame, links: Links) -> Steps:
    """Find the steps: profiler steps, marks, numbered or repeated annotations, a pattern of work, or one window."""
    on_device = _device_marks(frame, links)
    if on_device is not None:
        return on_device
    for source, seek in _SOUGHT:
        number, start, end = seek(frame, links)
        if len(number):
            return _with_windows(frame, links, number, start, end, source)
    return _one_window(frame, links)


def recorded(steps: Steps, frame: EventFrame, links: Links, promised: Promises) -> Steps:
    """Drop steps cut off by the end of the device recording, and widen the first and last step by lost work.

    A step is cut if a notable share of its launches lost their work there. The first step begins no later than the
    launches that lost their work before it, the last one ends no earlier than its last launch: that time is then not
    recorded.
    """
    at = frame.start[links.calls]
    if not promised.is_lost.any() or not len(steps.number):
        return steps
    lost_at, end_lost_at, launched_at = (
        np.sort(at[chosen]) for chosen in (promised.is_lost, promised.is_behind, promised.kind > 0)
    )
    cut, launched = (
        np.searchsorted(some, steps.host_end) - np.searchsorted(some, steps.host_start)
        for some in (end_lost_at, launched_at)
    )
    is_whole = cut <= NOTABLE * launched
    is_used = is_whole if is_whole.any() else np.ones(len(is_whole), bool)
    columns = ("number", "start", "end", "host_start", "host_end")
    number, start, end, host_start, host_end = (getattr(steps, name)[is_used] for name in columns)
    # Launches in the first step before the first launch whose work was recorded.
    has_work_at = np.sort(at[(promised.kind > 0) & ~promised.is_lost])
    first_with_work = has_work_at[np.searchsorted(has_work_at, host_start[0]) :][:1]
    ahead = lost_at[(lost_at >= host_start[0]) & (lost_at < (first_with_work if len(first_with_work) else host_end[0]))]
    start, end = start.copy(), end.copy()
    start[0] = min(int(start[0]), int(ahead.min(initial=start[0])))
    behind = end_lost_at[(end_lost_at >= host_start[-1]) & (end_lost_at < host_end[-1])]
    end[-1] = max(int(end[-1]), int(behind.max(initial=end[-1])))
    return replace(steps, number=number, start=start, end=end, host_start=host_start, host_end=host_end)


Marks = tuple["Ints", "Ints", "Ints"]
_PROFILER_STEP = re.compile(r"ProfilerStep#(\d{1,15})\Z")
_NUMBERED = re.compile(r"\W*(?:train(?:ing)?[ _-]?)?(?:step|iter(?:ation)?|batch)\W*(\d{1,15})\W*\Z", re.IGNORECASE)
_OPTIMIZER_MARK = format_mark("train", "optimizer")
_REPEATED = re.compile(r"\W*(?:train(?:ing)?[ _-]?)?(?:step|iter(?:ation)?)\W*\Z", re.IGNORECASE)


def _annotations(frame: EventFrame) -> Marks:
    numbered = _numbered(frame, _NUMBERED)
    if len(numbered[0]):
        return numbered
    rows = frame.rows(*MARKS)
    rows = rows[frame.by_name(rows, lambda name: _REPEATED.match(name) is not None)]
    rows = sorted_by(frame.start, rows)
    disjoint = len(rows) > 1 and bool((frame.start[rows][1:] >= frame.end[rows][:-1]).all())
    if not disjoint:
        rows = rows[:0]
    return np.arange(len(rows)), frame.start[rows], frame.end[rows]


def _ends(frame: EventFrame, is_optimizer: Callable[[str], bool]) -> Marks:
    """Cut at the ends of optimizer steps, if there are at least two; the first step starts with the trace."""
    rows = frame.rows(*MARKS)
    rows = rows[frame.by_name(rows, is_optimizer)]
    codes, _ = frame.codes("name")
    used, count = np.unique(codes[rows], return_counts=True)
    if not len(used) or count.min() < 2:
        return rows[:0], rows[:0], rows[:0]
    # If there are several optimizers, those that step least often do so once per step; the last one ends the step.
    once = used[count == count.min()]
    ends = np.sort(frame.end[rows][np.isin(codes[rows], once)])
    last = ends[len(once) - 1 :: len(once)]
    host = frame.rows("cpu_op", *MARKS, "cuda_runtime", "cuda_driver")
    start = np.r_[frame.start[host].min(), last[:-1]]
    return np.arange(len(last)), start, last


_SOUGHT: tuple[tuple[str, Callable[[EventFrame, Links], Marks]], ...] = (
    ("profiler_step", lambda frame, _: _numbered(frame, _PROFILER_STEP)),
    ("mark", lambda frame, _: _ends(frame, lambda name: name == _OPTIMIZER_MARK)),
    ("annotation", lambda frame, _: _annotations(frame)),
    ("annotation", lambda frame, _: _ends(frame, lambda name: name.startswith("Optimizer.step#"))),
    ("annotation", patterns.by_annotations),
    ("pattern", patterns.by_work),
)


def _device_marks(frame: EventFrame, links: Links) -> Steps | None:
    """Use the projections of profiler steps onto the device, if the host's marks were not recorded.

    A projection spans what was launched inside the mark, on one stream; the first start of a number starts the step.
    """
    if not len(links.work) or len(_numbered(frame, _PROFILER_STEP)[0]):
        return None
    rows = frame.rows("gpu_user_annotation")
    numbers = frame.by_name(rows, partial(_number, _PROFILER_STEP), np.int64)
    rows, numbers = rows[numbers >= 0], numbers[numbers >= 0]
    if not len(rows):
        return None
    number, place = np.unique(numbers, return_inverse=True)
    start = per_code(place.astype(np.int64), frame.start[rows], np.minimum, len(number))
    order = np.argsort(start, kind="stable")
    number, start = number[order], start[order]
    own_end = per_code(place.astype(np.int64), frame.end[rows], np.maximum, len(number))[order]
    window = _windows_of_profiler(number, start, own_end)
    last_end = np.maximum(np.maximum.accumulate(own_end), start)
    end = _ends_of_steps(window, start, last_end)
    return Steps(number, start, end, start, end, "profiler_step")


def _ends_of_steps(window: Ints, begin: Ints, last_end: Ints) -> Ints:
    """End each step where the next one of its window starts, and the last of a window where its work ends."""
    goes_on = np.append(window[1:] == window[:-1], False)
    next_begin = np.append(begin[1:], 0)
    return np.where(goes_on, next_begin, last_end)


def _number(pattern: re.Pattern[str], name: str) -> int:
    match = pattern.match(name)
    return int(match[1]) if match else -1


def _numbered(frame: EventFrame, pattern: re.Pattern[str]) -> Marks:
    """Find the marks whose name has a step number; if two marks share a number, use the longer one."""
    rows = frame.rows(*MARKS)
    numbers = frame.by_name(rows, partial(_number, pattern), np.int64)
    # A mark with a missing or negative length is kept as an instant: the length of its step is unknown.
    is_step = (numbers >= 0) & (frame.duration[rows] > 0)
    rows, numbers = rows[is_step], numbers[is_step]
    is_outer = _of_outer_kinds(frame, rows)
    rows, numbers = rows[is_outer], numbers[is_outer]
    order = np.lexsort((-frame.duration[rows], numbers))
    rows, numbers = rows[order], numbers[order]
    is_longest = first_of_run(numbers)
    rows, numbers = rows[is_longest], numbers[is_longest]
    order = np.argsort(frame.start[rows], kind="stable")
    return numbers[order], frame.start[rows][order], frame.end[rows][order]


def _of_outer_kinds(frame: EventFrame, rows: Ints) -> Flags:
    """Mark the numbered marks whose kind is not one of parts: `batch 1` and `batch 2` are inside `iteration 5`.

    A kind is a name without its number. It counts parts if more than half of its marks are inside marks of another
    kind. A mark inside one of its own kind proves nothing, because one damaged duration is enough for that.
    """
    names = frame.texts("name", rows)
    kinds, kind = np.unique([re.sub(r"\d+", "", name) for name in names], return_inverse=True)
    if len(kinds) < 2:
        return np.ones(len(rows), dtype=bool)
    parent = frame.nested(rows).parent
    inside = (parent >= 0) & (kind[parent] != kind)
    of_parts = 2 * np.bincount(kind, inside) > np.bincount(kind)
    return np.asarray(of_parts.all() | ~of_parts[kind], dtype=bool)


def _with_windows(frame: EventFrame, links: Links, number: Ints, start: Ints, end: Ints, source: str) -> Steps:
    """Return the device window of each mark: from its first activity to the next mark's; on a CPU the mark itself."""
    linked = links.call >= 0
    work, call = links.work[linked], links.call[linked]
    mark = np.searchsorted(start, frame.start[call], side="right") - 1
    inside = (mark >= 0) & (frame.start[call] < end[np.maximum(mark, 0)])
    work, mark = work[inside], mark[inside]
    if not len(work):
        return Steps(number, start, end, start, end, source, by_host=bool(len(links.work)))
    first = np.full(len(number), np.iinfo(np.int64).max)
    first[mark[::-1]] = frame.start[work][::-1]  # sorted by start: the first one is written last
    idle = first == np.iinfo(np.int64).max
    # A mark between others seems idle, and there is work with unknown launch: it belongs to the mark.
    has_lost_all = links.ambiguous.any() and idle[int(np.argmin(idle)) : int(mark.max())].any()
    if has_lost_all or _begins_in_doubt(frame, links, start, work, mark):
        return Steps(number, start, end, start, end, source, by_host=True)
    worked_until = np.full(len(number), np.iinfo(np.int64).min)
    np.maximum.at(worked_until, mark, frame.end[work])
    window = _windows_of_profiler(number, start, end)
    # A mark without launches (recording started or ended inside it) has no window; health counts those.
    number, start, end, first, worked_until, window = (
        column[~idle] for column in (number, start, end, first, worked_until, window)
    )
    # A step cannot start after the next one: work that overtakes ends the previous step.
    first = np.minimum.accumulate(first[::-1])[::-1]
    last_end = np.maximum.accumulate(worked_until)
    ends = _ends_of_steps(window, first, last_end)
    return Steps(number, first, ends, start, end, source, int(idle.sum()))


def _begins_in_doubt(frame: EventFrame, links: Links, start: Ints, work: Ints, mark: Ints) -> bool:
    """Return whether a mark's first work may have an unknown launch, so that its window is too short.

    Such a mark has a launch without work before the launch of its first work, and work without a launch is between the
    work of earlier marks and that first work. `work` is linked work in order of start, with its `mark`.
    """
    unknown = frame.start[links.work[links.call < 0]]
    if not len(unknown):
        return False
    calls = links.calls[~np.isin(links.calls, links.call)]
    is_launch = frame.by_name(calls, lambda name: kind_of(name) in LAUNCHING)
    empty_launch = frame.start[calls[is_launch]]
    marks, first = np.unique(mark, return_index=True)
    last_begun = np.full(len(marks), np.iinfo(np.int64).min)
    np.maximum.at(last_begun, np.searchsorted(marks, mark), frame.start[work])
    # By mark: start of the last work of earlier marks, start of its own first work, and the launch of that.
    begun_before = np.r_[np.iinfo(np.int64).min, np.maximum.accumulate(last_begun)[:-1]]
    first_work = work[first]
    first_begun = frame.start[first_work]
    call_of_work = np.full(len(frame), -1, np.int64)
    call_of_work[links.work] = links.call
    first_call = frame.start[call_of_work[first_work]]
    has_unknown = np.searchsorted(unknown, first_begun) > np.searchsorted(unknown, begun_before, "right")
    has_empty = np.searchsorted(empty_launch, first_call) > np.searchsorted(empty_launch, start[marks])
    return bool((has_unknown & has_empty).any())


def _windows_of_profiler(number: Ints, start: Ints, end: Ints) -> Ints:
    """Return the recorded section of each step: between two sections, steps ran that were not recorded.

    Numbers 3, 4, 13 with time between 4 and 13 return sections 0, 0, 1.
    """
    unrecorded = (number[1:] != number[:-1] + 1) & (start[1:] > end[:-1])
    return np.asarray(np.r_[0, np.cumsum(unrecorded)], np.int64)


def _one_window(frame: EventFrame, links: Links) -> Steps:
    """Use the whole trace as one step: all device work or, without any, all host events."""
    rows = links.work if len(links.work) else frame.rows("cpu_op", *MARKS)
    host = frame.rows("cpu_op", *MARKS, "cuda_runtime", "cuda_driver")
    host = host if len(host) else rows
    if not len(rows):
        nothing = np.zeros(0, np.int64)
        return Steps(nothing, nothing, nothing, nothing, nothing, WINDOW)
    bounds = [
        np.array([bound], np.int64)
        for chosen in (rows, host)
        for bound in (frame.start[chosen].min(), frame.end[chosen].max())
    ]
    return Steps(np.zeros(1, np.int64), bounds[0], bounds[1], bounds[2], bounds[3], WINDOW)
