"""Step boundaries on one rank, transferred from another rank through the calls they share.

A boundary is after the last shared call of one step and before the first shared call of the next. Its position in this
interval is the same place in the program each time: between the same activities as on the other rank, else after the
parameter update, else at the next step's first call. The rank's tables are then assigned the new steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.arrow import index_of
from usp_prof.columns.rows import rows_of
from usp_prof.columns.table import Columns, Replaced, View
from usp_prof.tables import steps as step_table
from usp_prof.tables.step_cuts.device_work import DeviceWork
from usp_prof.tables.step_cuts.recorded_ends import lacks_wait
from usp_prof.tables.table_set import ChangedSource, Source

CALLS = "calls"
_MISSING = 0.01
"""Maximum missing work in a complete step at the edge of the recording, as a share of the step's time."""
_FEW = 0.05
"""Maximum share of its activities that may be missing, however short they are."""
_SIDES = ((2, 2), (1, 1), (0, 2), (2, 0))
"""Activities before and after a boundary that must match those on the other rank, strictest first."""
_CROSSING = 0.05
"""Maximum share of calls that may be on the wrong side of a boundary (communication ahead of time)."""
_EVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Contiguous steps of one rank: their numbers, and `at_ns`, their start times followed by the last one's end."""

    number: Ints
    at_ns: Ints
    source: str


def cut_like(cut: Cut, their_work: DeviceWork, their_start: Ints, work: DeviceWork, start: Ints) -> Cut | None:
    """Cut a rank's work like another rank's; `their_start` and `start` are the starts of the same calls on both."""
    boundaries = np.arange(len(cut.at_ns))
    # Index of the last boundary before each shared call on the other rank; -1 before the first boundary.
    behind = np.searchsorted(cut.at_ns, their_start, side="right") - 1
    # Boundary k is after `low[k]`, the last call before it, and no later than `high[k]`, the first call after it.
    low = np.array([start[behind < k].max(initial=-1) for k in boundaries], np.int64)
    high = np.array([start[behind >= k].min(initial=_EVER) for k in boundaries], np.int64)
    crossing = sum(int(((behind < k) & (start > high[k])).sum()) for k in boundaries)
    if crossing > _CROSSING * len(start):
        return None
    # The recording may start later or end earlier here. Use the boundaries from the last one without a call before it
    # to the first one without a call after it.
    begin = int(np.flatnonzero(low < 0)[-1]) if (low < 0).any() else 0
    end = int(np.flatnonzero(high == _EVER)[0]) if (high == _EVER).any() else len(boundaries) - 1
    if end <= begin:
        return None
    usable = slice(begin, end + 1)
    low, high = np.minimum(low, high - 1)[usable], high[usable]
    at = _boundaries(cut, their_work, work, low, high)
    if (np.diff(at) <= 0).any():
        return None
    complete_steps = np.flatnonzero(_complete_periods(work, at, first_open=low[0] < 0, last_open=high[-1] == _EVER))
    if not len(complete_steps):
        return None
    first, last = int(complete_steps[0]), int(complete_steps[-1])
    # n steps have n + 1 boundaries.
    return Cut(cut.number[begin:end][complete_steps], at[first : last + 2], CALLS)


def _boundaries(cut: Cut, their_work: DeviceWork, work: DeviceWork, low: Ints, high: Ints) -> Ints:
    """Return the time of each boundary: the start of the activity that opens a step, in the interval (`low`, `high`].

    If that activity is unknown, the boundary is the step's first call. In this example with the calls `a` and `c`, `c`
    is the first call of the step on the other rank, with the kernel `k` before it:

            device work   a  u  k  c        low is the start of a, high the start of c
                                ^           the boundary: k also follows the other rank's boundary
    """
    # Rows of `work` that may open the step after each boundary: from `first` up to `behind`, exclusive.
    first = np.searchsorted(work.start_ns, low, side="right")
    behind = np.searchsorted(work.start_ns, high, side="right")
    candidates = [range(*rows) for rows in zip(first.tolist(), behind.tolist(), strict=True)]
    opening = _opening_activities(cut, their_work, work, candidates)
    at = np.where(opening >= 0, work.start_ns[opening], high)
    # At the edges of the recording, include all recorded work if nothing was recorded beyond.
    if opening[0] == 0 or (opening[0] < 0 and low[0] < 0):
        at[0] = work.first_ns
    if opening[-1] < 0 and high[-1] == _EVER:
        at[-1] = work.last_ns
    return at


def _opening_activities(cut: Cut, their_work: DeviceWork, work: DeviceWork, candidates: list[range]) -> Ints:
    """Return the row of the activity that opens the step after each boundary; -1 if unknown.

    All boundaries use the same rule, the first that finds an activity at each inner boundary:

    - The activities around it match those around the other rank's boundaries, by the strictest of `_SIDES` that finds
      exactly one.
    - It is the last activity that follows a parameter update.
    """
    # Row of the other rank's work that opens the step after each of its inner boundaries.
    their_openings = np.searchsorted(their_work.start_ns, cut.at_ns[1:-1])
    for before, behind in _SIDES:
        matching_rows = _fitting(_matches_openings(their_work, their_openings, work, before, behind), candidates)
        only = np.array([rows[0] if len(rows) == 1 else -1 for rows in matching_rows], np.int64)
        if (only[1:-1] >= 0).all() and (only >= 0).any():
            return only
    after_update = _fitting(work.after_update(), candidates)
    last = np.array([rows[-1] if len(rows) else -1 for rows in after_update], np.int64)
    return last if (last[1:-1] >= 0).all() else np.full(len(candidates), -1, np.int64)


def _fitting(fits: Flags, candidates: list[range]) -> list[Ints]:
    """Return the marked rows among the candidates of each boundary."""
    return [np.array(rows, np.int64)[fits[rows.start : rows.stop]] for rows in candidates]


def _matches_openings(
    their_work: DeviceWork, their_openings: Ints, work: DeviceWork, before: int, behind: int
) -> Flags:
    """Mark activities whose neighbors are those most common at the other rank's boundaries."""
    openings = their_openings[their_openings < len(their_work)]
    around_theirs = _surroundings(their_work, before, behind)[openings]
    if not len(around_theirs):
        return np.zeros(len(work), bool)
    kinds, count = np.unique(around_theirs, return_counts=True)
    return np.asarray(_surroundings(work, before, behind) == kinds[np.argmax(count)])


def _surroundings(work: DeviceWork, before: int, behind: int) -> Ints:
    """Return a hash of the names around each activity: `before` earlier ones, and `behind` from it on; -1 is none."""
    padded = np.r_[np.full(before, -1), work.name, np.full(behind, -1)]
    number = np.zeros(len(work), np.int64)
    for offset in range(before + behind):
        number = number * np.int64(1_000_003) + padded[offset : offset + len(work)]
    return number


def _complete_periods(work: DeviceWork, at: Ints, *, first_open: bool, last_open: bool) -> Flags:
    """Mark complete steps: at an edge without calls outside, the recording may have cut one short."""
    step = np.searchsorted(at, work.start_ns, side="right") - 1
    inside = (step >= 0) & (step < len(at) - 1)
    kinds = np.unique(work.symbol, return_inverse=True)[1].astype(np.int64)
    count, width = len(at) - 1, int(kinds.max()) + 1
    counts = np.bincount(step[inside] * width + kinds[inside], minlength=count * width).reshape(count, width)
    median_counts = np.median(counts, axis=0)
    # Average duration of each kind of activity, so that missing activities count by the time they would have taken.
    weight = np.bincount(kinds, work.end_ns - work.start_ns, width) / np.bincount(kinds, minlength=width)
    missing = np.maximum(median_counts - counts, 0)
    has_enough_work = missing @ weight <= _MISSING * np.diff(at)
    has_enough_work &= missing.sum(axis=1) <= _FEW * median_counts.sum()
    is_complete = np.ones(count, bool)
    is_complete[0] &= not first_open or has_enough_work[0]
    is_complete[-1] &= not last_open or has_enough_work[-1]
    return is_complete


_ON_DEVICE = ("activities", "kernels", "collectives")
_ON_HOST = ("launches", "memory", "ops", "actions")


def recut(source: Source, rank: int, steps: step_table.Steps) -> Source:
    """Return one rank's tables with new steps; the cached source tables do not change."""
    is_cut = lacks_wait(steps, Columns(source.view("activities")))
    changes: dict[str, Callable[[View], View]] = {
        name: partial(_with_steps, name=name, steps=steps) for name in (*_ON_DEVICE, *_ON_HOST, "annotations")
    }
    return ChangedSource(
        source, {**changes, step_table.SCHEMA.name: partial(_steps_of_rank, rank=rank, steps=steps, is_cut=is_cut)}
    )


def _with_steps(view: View, name: str, steps: step_table.Steps) -> View:
    """Return a table with new steps: of each row by the time and place it ran."""

    def numbers() -> pa.Array:
        columns = Columns(view)
        start = columns["start_ns"]
        if name in _ON_DEVICE:
            return index_of(steps.of_device(start))
        if name in _ON_HOST:
            return index_of(steps.of_host(start))
        return index_of(np.where(columns["on_device"], steps.of_device(start), steps.of_host(start)))

    return Replaced(view, {"step": numbers})


def _steps_of_rank(_: View, rank: int, steps: step_table.Steps, is_cut: Flags) -> View:
    view: View = step_table.build(rank, steps, is_cut)
    return view


def with_host(source: Source, number: Ints, start: Ints, end: Ints, source_name: str) -> step_table.Steps:
    """Build steps from device windows; host windows start at the first recorded launch of the step's work."""
    return step_table.Steps(number, start, end, *_host_windows(source, start, end), source_name)


def some_of(steps: Columns, selected: Flags) -> step_table.Steps:
    """Build steps from selected rows of a rank's step table."""
    names = ("step", "start_ns", "end_ns", "host_start_ns", "host_end_ns")
    number, start, end, host_start, host_end = (steps[name][selected] for name in names)
    return step_table.Steps(number, start, end, host_start, host_end, str(steps["source"][0]))


def _host_windows(source: Source, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    kernels, launches = (Columns(source.view(name)) for name in ("kernels", "launches"))
    place = rows_of(launches["event"], kernels["launch_event"])
    linked = place >= 0
    if not len(start) or not linked.any():
        return start, end
    begun, launched = kernels["start_ns"][linked], launches["start_ns"][place[linked]]
    step = np.searchsorted(start, begun, side="right") - 1
    # First launch of each step's work; a step whose work was launched before the recording keeps its own start.
    first = start.copy()
    np.minimum.at(first, step[step >= 0], launched[step >= 0])
    first = np.maximum.accumulate(first)
    return first, np.r_[first[1:], end[-1:]]
