"""Why did the device do nothing? The host's share of idle time: late input, blocking calls, launches that came late.

On a GPU a gap is the host's when the work that ends it was launched after the gap began: the queue was empty. Such a
gap is split by what the host did meanwhile: it loaded data (`input`), sat in a blocking call (`sync`), or was still
on its way to the launch (`host`). Work launched earlier waited for something else (`other`). On a CPU trace the host
is the device: gaps inside data loading are `input`, inside a wait on another rank `sync`, inside any op or mark
`host`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.algebra.intervals import EMPTY, Intervals, union
from usp_prof.algebra.order import places_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from usp_prof.tables.columns import Columns
    from usp_prof.tables.table_set import TableSet


class Cause(StrEnum):
    """Why a device is idle."""

    BUBBLE = "bubble"
    HOST = "host"
    INPUT = "input"
    SYNC = "sync"
    OTHER = "other"


_LOADS_DATA = re.compile(r"dataloader|data_loader|^train::input\b", re.IGNORECASE)
_WAITS = re.compile(r"^(c10d::|_c10d_functional::wait|_c10d_functional_autograd::wait)")
_FRAMES_STEP = re.compile(r"^ProfilerStep#")


def host_causes(tables: TableSet, rank: int, gaps: Intervals) -> dict[Cause, Intervals]:
    """Give what the host is to blame for among the gaps of one rank; what is left has another cause."""
    on_cpu = not len(tables.columns("kernels", rank))
    ops, annotations = tables.columns("ops", rank), tables.columns("annotations", rank)
    loading = _named(ops, _LOADS_DATA.search) | _named(annotations, _LOADS_DATA.search)
    if on_cpu:
        waiting = _named(ops, _WAITS.search)
        hosted = _named(ops, lambda _: True) | _named(annotations, lambda name: not _FRAMES_STEP.search(name))
        empty = gaps
    else:
        launches = tables.columns("launches", rank)
        waiting = _ranges(launches, launches["blocking"])
        empty = hosted = _queue_empty(tables, rank, gaps)
    late_input = empty & loading
    blocked = (empty & waiting) - late_input
    return {Cause.INPUT: late_input, Cause.SYNC: blocked, Cause.HOST: ((empty & hosted) - late_input) - blocked}


def _queue_empty(tables: TableSet, rank: int, gaps: Intervals) -> Intervals:
    """Find the gaps that end with work launched after they began."""
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


def launch_starts(tables: TableSet, rank: int) -> NDArray[np.int64]:
    """Give for each activity when the host launched it, looked up once; -1 where that is not known."""
    return tables.memo(("launch starts", rank), lambda: _launch_starts(tables, rank))


def _launch_starts(tables: TableSet, rank: int) -> NDArray[np.int64]:
    event, launches = tables.columns("activities", rank)["launch_event"], tables.columns("launches", rank)
    if not len(launches):
        return np.full(len(event), -1, np.int64)
    row = places_of(launches["event"], event)
    return np.where(row >= 0, launches["start_ns"][row], -1)


def _named(columns: Columns, wanted: Callable[[str], object]) -> Intervals:
    codes, names = columns.codes("name")
    return _ranges(columns, np.array([bool(wanted(name)) for name in names] + [False])[codes])


def _ranges(columns: Columns, rows: NDArray[np.bool_]) -> Intervals:
    start = columns["start_ns"][rows]
    return union(start, start + columns["dur_ns"][rows])
