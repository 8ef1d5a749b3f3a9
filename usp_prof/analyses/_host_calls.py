"""Which host calls were made, which of them blocked, and for whom? Launches, synchronisations, and the op around."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.algebra.order import distinct, numbered, places_of
from usp_prof.algebra.tracks import nest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.model.selection import Selection
    from usp_prof.tables.columns import Columns
    from usp_prof.tables.table_set import TableSet

    Ints = NDArray[np.int64]

_STARTS_WORK = ("launch", "graph_launch", "memcpy", "memset")


@dataclass(slots=True)
class CallStat:
    """The calls of one name: how many, their host time, what they started, and how long their work waited."""

    rank: int
    name: str
    kind: str
    count: int
    time_ns: int
    kernels: int
    delay_p50_ns: float
    delay_p99_ns: float


@dataclass(slots=True)
class SyncStat:
    """Blocking calls of one name inside one op (or mark, or Python function)."""

    rank: int
    name: str
    cause: str
    count: int
    time_ns: int
    longest_ns: int


def selected(tables: TableSet, name: str, rank: int, selection: Selection) -> Columns:
    """Give the rows of a table that lie in the selected steps, chosen once."""
    return tables.memo(("selected", name, rank, selection), lambda: _chosen(tables.columns(name, rank), selection))


def _chosen(table: Columns, selection: Selection) -> Columns:
    numbers, place = numbered(table["step"])
    taken = [number >= 0 and selection.takes_step(number) for number in numbers.tolist()]
    return table if all(taken) else table.take(np.array(taken, dtype=bool)[place])


def call_stats(rank: int, launches: Columns) -> list[CallStat]:
    """Tally calls by name: every spelling counts, of the runtime and the driver, of CUDA and HIP, and graphs."""
    codes, names = launches.codes("name")
    kind = launches["kind"]
    stats = []
    for code in distinct(codes).tolist():
        rows = codes == code
        delays = launches["delay_ns"][rows]
        waited = delays[delays >= 0]
        p50, p99 = np.percentile(waited, [50, 99]).tolist() if len(waited) else (float("nan"), float("nan"))
        time, work = int(launches["dur_ns"][rows].sum()), int(launches["kernels"][rows].sum())
        stats.append(CallStat(rank, names[code], str(kind[rows][0]), int(rows.sum()), time, work, p50, p99))
    return sorted(stats, key=lambda stat: (-stat.time_ns, stat.name))


def delays(launches: Columns) -> Ints:
    """Give for every call that started device work how long the work waited."""
    return np.asarray(launches["delay_ns"][launches.matches("kind", *_STARTS_WORK) & (launches["delay_ns"] >= 0)])


def empty_queue(tables: TableSet, rank: int, launches: Columns) -> tuple[int, int]:
    """Count the calls that found the device idle with nothing queued, and all calls that started work."""
    starting = launches.take(launches.matches("kind", *_STARTS_WORK) & (launches["kernels"] > 0))
    kernels = tables.columns("kernels", rank)
    if not len(starting) or not len(kernels):
        return 0, 0
    # Work counts from its launch (where that is known) to its end: a call finds the queue empty when none is open.
    open_from = np.sort(_begun(tables, rank))
    ends = np.sort(kernels["start_ns"] + kernels["dur_ns"])
    at = starting["start_ns"]
    pending = np.searchsorted(open_from, at, side="left") - np.searchsorted(ends, at, side="right")
    return int((pending <= 0).sum()), len(starting)


def queue_depth(tables: TableSet, rank: int, limit: int) -> list[tuple[int, int, int]]:
    """Give for each stream the deepest queue of launched and unfinished work, and how long it held `limit` or more."""
    kernels = tables.columns("kernels", rank)
    begun = _begun(tables, rank)
    found = []
    for stream in distinct(kernels["stream"]).tolist():
        rows = (kernels["stream"] == stream) & (begun < kernels["start_ns"])
        if not rows.any():
            continue
        ends = (kernels["start_ns"] + kernels["dur_ns"])[rows]
        times = np.concatenate([begun[rows], ends])
        change = np.concatenate([np.ones(len(ends), np.int64), -np.ones(len(ends), np.int64)])
        order = np.lexsort((change, times))
        depth = np.cumsum(change[order])
        length = np.diff(times[order], append=times[order][-1])
        found.append((stream, int(depth.max()), int(length[depth >= limit].sum())))
    return found


def _begun(tables: TableSet, rank: int) -> Ints:
    """Give when each kernel was launched, looked up once; its own start where the launch is not in the trace."""
    return tables.memo(("begun", rank), lambda: _launched(tables, rank))


def _launched(tables: TableSet, rank: int) -> Ints:
    kernels, launches = (tables.columns(name, rank) for name in ("kernels", "launches"))
    if not len(launches):
        return np.asarray(kernels["start_ns"])
    row = places_of(launches["event"], kernels["launch_event"])
    return np.where(row >= 0, np.minimum(launches["start_ns"][row], kernels["start_ns"]), kernels["start_ns"])


def sync_stats(tables: TableSet, rank: int, launches: Columns) -> list[SyncStat]:
    """Tally blocking calls by name and by what the host was doing: the op around, else the mark, else the function."""
    blocking = launches.take(launches["blocking"] & (launches["dur_ns"] > 0))
    if not len(blocking):
        return []
    named = _around(tables.columns("ops", rank), blocking)
    for ranges in (_marks, _functions):  # a large table is read only for what is not known yet
        left = named == ""
        if left.any():
            named[left] = _around(ranges(tables, rank), blocking.take(left))
    keys: dict[tuple[str, str], SyncStat] = {}
    for name, who, length in zip(blocking["name"], named, blocking["dur_ns"].tolist(), strict=True):
        stat = keys.setdefault((name, who), SyncStat(rank, name, who, 0, 0, 0))
        stat.count += 1
        stat.time_ns += length
        stat.longest_ns = max(stat.longest_ns, length)
    return sorted(keys.values(), key=lambda stat: (-stat.time_ns, stat.name, stat.cause))


def _marks(tables: TableSet, rank: int) -> Columns:
    marks = tables.columns("annotations", rank)
    codes, names = marks.codes("name")
    steps = np.array([name.startswith("ProfilerStep#") for name in names] + [False])[codes]
    return marks.take(~marks["on_device"] & ~steps)


def _functions(tables: TableSet, rank: int) -> Columns:
    events = tables.columns("events", rank)
    return events.take(events.matches("category", "python_function"))


def _around(ranges: Columns, calls: Columns) -> NDArray[np.object_]:
    """Give the name of the innermost range around each call on its thread; empty where there is none."""
    if len(ranges):
        ranges = ranges.take(_holds(ranges, np.sort(calls["start_ns"])))  # mostly few of many
    if not len(ranges):
        return np.full(len(calls), "", dtype=object)
    codes, threads = ranges.codes("thread")
    place = {thread: number for number, thread in enumerate(threads)}
    track = np.array([place.get(thread, -1) for thread in calls["thread"]], np.int64)
    inside = nest(codes, ranges["start_ns"], np.maximum(ranges["dur_ns"], 0)).innermost(track, calls["start_ns"])
    return np.append(ranges["name"], "")[inside]


def _holds(ranges: Columns, moments: Ints) -> NDArray[np.bool_]:
    """Say which ranges, on whatever thread, hold at least one of some ordered moments."""
    begin = ranges["start_ns"]
    end = begin + np.maximum(ranges["dur_ns"], 0)
    return np.asarray(np.searchsorted(moments, end, side="right") > np.searchsorted(moments, begin))
