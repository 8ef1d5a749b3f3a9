"""Partition of steps: each nanosecond of a rank's step has one owner (compute, communication by axis, idle by cause).

A moment belongs to the first of: compute, exposed communication (of the axis that ends last), copies, and idle by
cause. Idle time in which lost device work may have run is `unrecorded` instead. A pipeline receive counts as
communication only after its peer has sent; the time before is a bubble. gloo's range of a send lasts from its post
until its completion is queried; only the time in which both sides are present counts.

Each axis' communication has three disjoint parts:

- hidden: compute runs at the same time
- exposed: no compute runs, and the time is attributed to this axis; exposed time can be added up over axes
- contended: no compute runs, but the time is attributed to another axis that ends later

Causes of idle time on a GPU: the host caused a gap if the work that ends it was launched after the gap began, because
the queue was empty. Such a gap is split by what the host did: it loaded data (`input`), was in a blocking call
(`sync`), or had not reached the launch yet (`host`). If the work was launched earlier, the cause is `other`. On a CPU
trace the host is the device: gaps inside data loading are `input`, inside a wait for another rank `sync`, and inside
any op or mark `host`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from usp_prof.analyses.measures.lost_work import lost_time
from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.intervals import EMPTY, Intervals, by_latest_end, by_priority, time_of, union, union_of
from usp_prof.columns.rows import lookup, rows_of, totals
from usp_prof.columns.table import Columns
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.model.topology import PARALLEL_AXES, Axis
from usp_prof.replay.host_gaps import LOADS_DATA
from usp_prof.tables import calls
from usp_prof.tables.shares import Facts
from usp_prof.tables.table_set import TableSet, memoized, memoized_of_rank


class Cause(StrEnum):
    """Why a device is idle."""

    BUBBLE = "bubble"
    HOST = "host"
    INPUT = "input"
    SYNC = "sync"
    OTHER = "other"


_WAITS = re.compile(r"^(c10d::|_c10d_functional::wait|_c10d_functional_autograd::wait)")
_FRAMES_STEP = re.compile(r"^ProfilerStep#")


def host_causes(tables: TableSet, rank: int, gaps: Intervals) -> dict[Cause, Intervals]:
    """Return the parts of one rank's idle gaps that the host caused, by cause; the rest has another cause."""
    ops, annotations = tables.columns("ops", rank), tables.columns("annotations", rank)
    loading = _times_by_name(ops, LOADS_DATA.search) | _times_by_name(annotations, LOADS_DATA.search)
    if not tables.ran_on_gpu(rank):
        waiting = _times_by_name(ops, _WAITS.search)
        hosted = _times_by_name(ops, lambda _: True) | _times_by_name(
            annotations, lambda name: not _FRAMES_STEP.search(name)
        )
        empty = gaps
    else:
        launches = tables.columns("launches", rank)
        waiting = time_of(launches, launches["blocking"])
        empty = hosted = _queue_empty(tables, rank, gaps)
    late_input = empty & loading
    blocked = (empty & waiting) - late_input
    return {Cause.INPUT: late_input, Cause.SYNC: blocked, Cause.HOST: ((empty & hosted) - late_input) - blocked}


def _queue_empty(tables: TableSet, rank: int, gaps: Intervals) -> Intervals:
    """Return the gaps that end with work launched after they began."""
    activities, launches = tables.columns("activities", rank), tables.columns("launches", rank)
    if not len(gaps) or not len(activities) or not len(launches):
        return EMPTY
    launched = launch_starts(tables, rank)
    order = np.lexsort((launched, activities["start_ns"]))
    starts = activities["start_ns"][order]
    first = np.minimum(np.searchsorted(starts, gaps.end, side="left"), len(starts) - 1)
    ends_it = starts[first] == gaps.end
    late = ends_it & (launched[order][first] > gaps.start)
    return Intervals(gaps.start[late], gaps.end[late])


@memoized_of_rank
def launch_starts(tables: TableSet, rank: int) -> Ints:
    """Return the launch time of each activity, or -1 if unknown."""
    event, launches = tables.columns("activities", rank)["launch_event"], tables.columns("launches", rank)
    return lookup(launches["start_ns"], rows_of(launches["event"], event), missing=-1)


def _times_by_name(columns: Columns, wanted: Callable[[str], object]) -> Intervals:
    return time_of(columns, columns.satisfies("name", wanted))


CAUSES = tuple(Cause)
AXIS_ORDER = tuple(str(axis) for axis in (*PARALLEL_AXES, Axis.WORLD, Axis.UNKNOWN))
_HOST_CAUSES = (Cause.INPUT, Cause.SYNC, Cause.HOST)


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """One row per (rank, step), as arrays in nanoseconds; the parts of communication have one column per axis."""

    axes: tuple[str, ...]
    rank: Ints
    step: Ints
    start: Ints
    end: Ints
    compute: Ints
    comm: Ints
    """Union of the axis' communication: `hidden` + `exposed` + `contended`."""
    hidden: Ints
    exposed: Ints
    contended: Ints
    any_comm: Ints
    """Union over axes, one value per row."""
    any_hidden: Ints
    any_contended: Ints
    """Exposed time during which several axes were exposed at once."""
    memcpy: Ints
    unrecorded: Ints
    """Time without recorded work in which lost device work may have run; any other part may be longer by it."""
    idle: Ints
    """One column per cause in `CAUSES`."""
    stalled: Ints
    """Time in which the rank waited for other ranks, see `stalls`."""
    waited: Ints
    """Stalled time without bubbles."""
    kernels: Ints
    """Number of compute activities that began in the step."""

    @property
    def wall(self) -> Ints:
        """Length of the step."""
        return self.end - self.start

    def take(self, rows: Flags) -> Partition:
        """Return the selected rows."""
        return Partition(self.axes, *(getattr(self, name)[rows] for name in _ARRAYS))

    def with_axes(self, axes: tuple[str, ...]) -> Partition:
        """Return the same rows with additional axes, which take no time."""
        columns = [axes.index(axis) for axis in self.axes]
        wider = {}
        for name in _ARRAYS_BY_AXIS:
            wider[name] = np.zeros((len(self.rank), len(axes)), np.int64)
            wider[name][:, columns] = getattr(self, name)
        return replace(self, axes=axes, **wider)


_ARRAYS = tuple(name for name in Partition.__dataclass_fields__ if name != "axes")
_ARRAYS_BY_AXIS = ("comm", "hidden", "exposed", "contended")


@dataclass(frozen=True, slots=True, eq=False)
class Sets:
    """Intervals of one rank's work. They may overlap; the partition makes them disjoint."""

    compute: Intervals
    begin: Ints
    """Start of each activity; for a pipeline receive, the moment after the wait for its peer."""
    done: Ints
    """End of each activity; for a send, the moment when its receiver has the data."""
    axes: dict[str, Intervals]
    """Union of each axis' communication."""
    exposed: dict[str, Intervals]
    """Each axis' communication without compute, attributed to the axis that ends last; disjoint."""
    copies: Intervals
    unrecorded: Intervals
    """Time in which lost device work may have run."""
    bubble: Intervals
    host: dict[Cause, Intervals]

    def hidden(self, axis: str) -> Intervals:
        """Return the time in which an axis communicates while compute runs."""
        return self.axes[axis] & self.compute

    def contended(self, axis: str) -> Intervals:
        """Return the time in which an axis communicates without compute, but another axis ends later."""
        return (self.axes[axis] - self.compute) - self.exposed[axis]


def divide_run(tables: TableSet, selection: Selection = EVERYTHING) -> Partition:
    """Return the partition of the selected steps and ranks. Ranks without recorded device work have no rows."""
    parts = _measured(tables)[0]
    is_selected = tables.selects(selection, parts.step)
    if selection.ranks is not None:
        is_selected &= np.isin(parts.rank, selection.ranks)
    return parts.take(is_selected)


def compute_times(tables: TableSet, rank: int, within: Intervals) -> dict[str, int]:
    """Return by name how long the compute of one rank runs within these intervals."""
    activities = tables.columns("activities", rank)
    computes = activities.matches("kind", "compute")
    codes, names = activities.codes("name")
    start = activities["start_ns"][computes]
    inside = within.within(start, start + activities["dur_ns"][computes])
    name_ns = totals(codes[computes], inside, len(names))
    return {names[code]: int(name_ns[code]) for code in np.flatnonzero(name_ns).tolist()}


def stalls(tables: TableSet, rank: int) -> Intervals:
    """Return the time in which a rank waited for others, not hidden by compute, on the rank's own clock."""
    return tables.memo(_STALLS, lambda: _measured(tables)[1])[rank]


def stalls_of_share(tables: TableSet, ranks: Sequence[int]) -> Facts:
    """Return the stalls of some ranks in the form that is passed to a worker."""
    return {_STALLS: {rank: stalls(tables, rank) for rank in ranks}}


_STALLS = "stalls"


def _stalls_of_rank(tables: TableSet, rank: int) -> Intervals:
    sets, collectives = sets_of(tables, rank), tables.columns("collectives", rank)
    parts = calls.match_calls(tables).parts.of_rank(rank, "part", "wait_ns")
    # By row of `collectives`: the wait for the last participant; 0 for parts that belong to no call.
    waiting = np.zeros(len(collectives), np.int64)
    waiting[parts["part"]] = np.maximum(parts["wait_ns"], 0)
    start = collectives["start_ns"]
    return (union(start, start + waiting) | sets.bubble) - sets.compute


@memoized("partition")
def _measured(tables: TableSet) -> tuple[Partition, dict[int, Intervals]]:
    """Return the partition of all ranks, and by rank when it waited for others, from one pass over all ranks.

    Axes that a rank does not have take none of its time.
    """
    of_ranks, stalled = [], {}
    for rank, (parts, stalled_of_rank) in zip(tables.ranks, calls.of_each_rank(tables, _of_rank), strict=True):
        of_ranks.append(parts)
        stalled[rank] = stalled_of_rank
    axes = tuple(sorted({axis for parts in of_ranks for axis in parts.axes}, key=place_of_axis))
    of_ranks = [parts.with_axes(axes) for parts in of_ranks]
    arrays = (np.concatenate([getattr(parts, name) for parts in of_ranks]) for name in _ARRAYS)
    return Partition(axes, *arrays), stalled


@memoized_of_rank
def sets_of(tables: TableSet, rank: int) -> Sets:
    """Return the intervals of one rank's work."""
    activities = tables.columns("activities", rank)
    start = activities["start_ns"]
    end = start + activities["dur_ns"]
    computes, copies = activities.matches("kind", "compute"), activities.matches("kind", "memcpy", "memset")
    is_communication = activities.matches("kind", "communication")
    waiting, delivered = _carrying_nothing(tables, rank)
    begin, done = np.minimum(start + waiting, end), end - delivered
    # By communication: index of its axis in `names`. From here on `code` has no entry for other activities.
    code, names = _axis_codes(activities)
    code = code[is_communication]
    by_axis = {
        name: union(begin[is_communication][code == number], done[is_communication][code == number])
        for number, name in enumerate(names)
        if (code == number).any()
    }
    owners = by_latest_end(begin[is_communication], done[is_communication], code)
    compute, copying = union(start[computes], end[computes]), union(start[copies], end[copies])
    exposed = {name: owners.times_of(names.index(name)) - compute for name in by_axis}
    bubble = union(start, begin)
    busy = union_of([compute, copying, bubble, *by_axis.values()])
    windows = tables.columns("steps", rank)
    unrecorded = lost_time(tables, rank)
    gaps = union(windows["start_ns"], windows["end_ns"]) - (busy | unrecorded)
    return Sets(compute, begin, done, by_axis, exposed, copying, unrecorded, bubble, host_causes(tables, rank, gaps))


def _axis_codes(activities: Columns) -> tuple[Ints, list[str]]:
    """Return each activity's axis as an index into the sorted axes, and these; an empty axis is unknown."""
    codes, recorded = activities.codes("axis")
    axis_names = [name or str(Axis.UNKNOWN) for name in recorded]
    names = sorted(set(axis_names), key=place_of_axis)
    places = np.array([names.index(name) for name in axis_names] + [0], np.int64)
    return places[codes], names


def place_of_axis(axis: str) -> tuple[int, str]:
    """Return the sort key of an axis in display order; axes outside the mesh come last."""
    return (AXIS_ORDER.index(axis) if axis in AXIS_ORDER else len(AXIS_ORDER), axis)


def _carrying_nothing(tables: TableSet, rank: int) -> tuple[Ints, Ints]:
    """Return per activity the wait of a pipeline receive for its peer, and the time of a send after its delivery."""
    part = tables.columns("activities", rank)["collective"]
    idling = calls.idling(tables, rank, str(Axis.PP))
    row = np.where(part < len(idling.waiting_ns), part, -1)
    return lookup(idling.waiting_ns, row, missing=0), lookup(idling.delivered_ns, row, missing=0)


def _of_rank(tables: TableSet, rank: int) -> tuple[Partition, Intervals]:
    """Return one rank's partition (empty if its device was not recorded) and its stalls."""
    sets, windows = sets_of(tables, rank), tables.columns("steps", rank)
    start, end = windows["start_ns"], np.maximum(windows["end_ns"], windows["start_ns"])
    axes = tuple(sorted(sets.axes, key=place_of_axis))
    order = [sets.compute, *(sets.exposed[axis] for axis in axes), sets.copies, sets.unrecorded, sets.bubble]
    order += [sets.host[cause] for cause in _HOST_CAUSES]
    # One row per step, one column per member of `order`.
    owned = by_priority(order).cut(start, end, len(order))
    any_comm, contended = union_of(list(sets.axes.values())), [sets.contended(axis) for axis in axes]
    count = len(axes)
    idle = np.zeros((len(start), len(CAUSES)), np.int64)
    for cause, column in zip((Cause.BUBBLE, *_HOST_CAUSES), range(count + 3, count + 7), strict=True):
        idle[:, CAUSES.index(cause)] = owned[:, column]
    idle[:, CAUSES.index(Cause.OTHER)] = (end - start) - owned.sum(axis=1)
    stalled, activities = _stalls_of_rank(tables, rank), tables.columns("activities", rank)
    # Sorted starts of compute. The number before a step's end minus the number before its start began in it.
    compute_starts = np.sort(activities["start_ns"][activities.matches("kind", "compute")])
    parts = Partition(
        axes=axes,
        rank=np.full(len(start), rank, np.int64),
        step=windows["step"],
        start=start,
        end=end,
        compute=owned[:, 0],
        comm=_by_window([sets.axes[axis] for axis in axes], start, end),
        hidden=_by_window([sets.hidden(axis) for axis in axes], start, end),
        exposed=owned[:, 1 : count + 1],
        contended=_by_window(contended, start, end),
        any_comm=any_comm.within(start, end),
        any_hidden=(any_comm & sets.compute).within(start, end),
        any_contended=union_of(contended).within(start, end),
        memcpy=owned[:, count + 1],
        unrecorded=owned[:, count + 2],
        idle=idle,
        stalled=stalled.within(start, end),
        waited=(stalled - sets.bubble).within(start, end),
        kernels=np.searchsorted(compute_starts, end) - np.searchsorted(compute_starts, start),
    )
    return parts.take(np.full(len(start), tables.has_device_work(rank))), stalled


def _by_window(sets: Sequence[Intervals], start: Ints, end: Ints) -> Ints:
    """Return the time of each set (columns) within each window (rows)."""
    return np.stack([part.within(start, end) for part in sets], axis=1) if sets else np.zeros((len(start), 0), np.int64)
