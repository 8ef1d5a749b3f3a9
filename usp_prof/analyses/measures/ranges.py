"""Host calls and marks of the selected steps: launches, blocking calls with their enclosing op, marks of an area."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.lanes import nest
from usp_prof.columns.rows import distinct, lookup, rows_by_code, rows_of
from usp_prof.columns.table import Columns
from usp_prof.contract import parse_mark
from usp_prof.model.selection import Selection
from usp_prof.replay.rank_nodes import waits_for_own_copy
from usp_prof.tables.table_set import TableSet, memoized_of_rank

_STARTS_WORK = ("launch", "graph_launch", "memcpy", "memset")


@dataclass(slots=True)
class CallStat:
    """Calls of one name: count, host time, kernels started, and how long these waited."""

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
    """Return the rows of a table in the selected steps; memoized."""

    def select() -> Columns:
        rows = tables.columns(name, rank)
        is_selected = (rows["step"] >= 0) & tables.selects(selection, rows["step"])
        return rows if is_selected.all() else rows.take(is_selected)

    return tables.memo_of_rank(rank, ("selected", name, selection), select)


def call_stats(rank: int, launches: Columns) -> list[CallStat]:
    """Return statistics of calls by name. Runtime and driver calls, CUDA and HIP, and graph launches all count."""
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
    """Return how long the started work waited, for every call that started device work."""
    return np.asarray(launches["delay_ns"][launches.matches("kind", *_STARTS_WORK) & (launches["delay_ns"] >= 0)])


def empty_queue(tables: TableSet, rank: int, launches: Columns) -> tuple[int, int]:
    """Return the number of calls that found the device idle with nothing queued, and of all calls that started work."""
    starting = launches.take(launches.matches("kind", *_STARTS_WORK) & (launches["kernels"] > 0))
    kernels = tables.columns("kernels", rank)
    if not len(starting) or not len(kernels):
        return 0, 0
    # Work is open from its launch (if known) to its end. A call finds the queue empty if no work is open.
    open_from = np.sort(launched_at(tables, rank))
    ends = np.sort(kernels["start_ns"] + kernels["dur_ns"])
    at = starting["start_ns"]
    pending = np.searchsorted(open_from, at, side="left") - np.searchsorted(ends, at, side="right")
    return int((pending <= 0).sum()), len(starting)


def queue_depth(tables: TableSet, rank: int, limit: int) -> list[tuple[int, int, int]]:
    """Return per stream the deepest queue of unfinished launches, and the time with `limit` or more of them."""
    kernels = tables.columns("kernels", rank)
    launched_ns = launched_at(tables, rank)
    queued = np.flatnonzero(launched_ns < kernels["start_ns"])
    depths = []
    for stream, places in rows_by_code(kernels["stream"][queued]).items():
        rows = queued[places]
        ends = kernels["start_ns"][rows] + kernels["dur_ns"][rows]
        # +1 at each launch, -1 at each end (ends come first at equal times); the running sum is the depth.
        times = np.concatenate([launched_ns[rows], ends])
        change = np.repeat([1, -1], len(rows))
        order = np.lexsort((change, times))
        depth = np.cumsum(change[order])
        length = np.diff(times[order], append=times[order][-1])
        depths.append((stream, int(depth.max()), int(length[depth >= limit].sum())))
    return depths


@memoized_of_rank
def launched_at(tables: TableSet, rank: int) -> Ints:
    """Return the launch time of each kernel, or its own start if the launch is not in the trace."""
    kernels, launches = (tables.columns(name, rank) for name in ("kernels", "launches"))
    row = rows_of(launches["event"], kernels["launch_event"])
    launched = lookup(launches["start_ns"], row, missing=np.iinfo(np.int64).max)
    return np.asarray(np.minimum(launched, kernels["start_ns"]))


def sync_stats(tables: TableSet, rank: int, launches: Columns) -> list[SyncStat]:
    """Return blocking calls by name and by the enclosing op, or else the enclosing mark or Python function.

    Copies of pageable memory block, too, even if they are called asynchronous.
    """
    waiting_copies = tables.columns("launches", rank)["event"][waits_for_own_copy(tables, rank, 0)]
    blocks = launches["blocking"] | np.isin(launches["event"], waiting_copies)
    blocking = launches.take(blocks & (launches["dur_ns"] > 0))
    if not len(blocking):
        return []
    callers = _around(tables.columns("ops", rank), blocking)
    for ranges in (_marks, _functions):  # large tables are read only if causes are still missing
        is_unnamed = callers == ""
        if is_unnamed.any():
            callers[is_unnamed] = _around(ranges(tables, rank), blocking.take(is_unnamed))
    keys: dict[tuple[str, str], SyncStat] = {}
    for name, caller, length in zip(blocking["name"], callers, blocking["dur_ns"].tolist(), strict=True):
        stat = keys.setdefault((name, caller), SyncStat(rank, name, caller, 0, 0, 0))
        stat.count += 1
        stat.time_ns += length
        stat.longest_ns = max(stat.longest_ns, length)
    return sorted(keys.values(), key=lambda stat: (-stat.time_ns, stat.name, stat.cause))


def _marks(tables: TableSet, rank: int) -> Columns:
    marks = tables.columns("annotations", rank)
    is_step = marks.satisfies("name", lambda name: name.startswith("ProfilerStep#"))
    return marks.take(~marks["on_device"] & ~is_step)


def _functions(tables: TableSet, rank: int) -> Columns:
    events = tables.columns("events", rank)
    return events.take(events.matches("category", "python_function"))


def _around(ranges: Columns, calls: Columns) -> NDArray[np.object_]:
    """Return the name of the innermost range around each call on its thread, or an empty string."""
    if len(ranges):
        ranges = ranges.take(_holds(ranges, np.sort(calls["start_ns"])))  # usually a small part of the table
    if not len(ranges):
        return np.full(len(calls), "", dtype=object)
    codes, threads = ranges.codes("thread")
    place = {thread: number for number, thread in enumerate(threads)}
    track = np.array([place.get(thread, -1) for thread in calls["thread"]], np.int64)
    inside = nest(codes, ranges["start_ns"], np.maximum(ranges["dur_ns"], 0)).innermost(track, calls["start_ns"])
    return lookup(ranges["name"], inside, missing="")


def _holds(ranges: Columns, moments: Ints) -> Flags:
    """Return which ranges, on any thread, contain at least one of the sorted moments."""
    begin = ranges["start_ns"]
    end = begin + np.maximum(ranges["dur_ns"], 0)
    return np.asarray(np.searchsorted(moments, end, side="right") > np.searchsorted(moments, begin))


# Marks: the ranges of one area (`cp`, `moe`, ...), on the device if the trace has them there.


@dataclass(frozen=True, slots=True, eq=False)
class Marked:
    """Marks of one area on one rank, in order of start, as parallel arrays."""

    kind: NDArray[np.object_]
    name: NDArray[np.object_]
    start_ns: Ints
    dur_ns: Ints
    step: Ints

    def number(self, key: str) -> Ints:
        """Return the integer value of this key in each mark, or -1 if a mark has none."""
        marks = map(parse_mark, self.name)
        return np.array([mark.number(key) if mark is not None else -1 for mark in marks], np.int64)

    def word(self, key: str) -> list[str]:
        """Return the value of this key in each mark as text, or an empty string if a mark has none."""
        marks = map(parse_mark, self.name)
        return [str(mark.values.get(key, "")) if mark is not None else "" for mark in marks]

    def of_kinds(self, *kinds: str) -> Marked:
        """Return the marks of the given kinds."""
        return self.take(np.isin(self.kind.astype(str), kinds))

    def take(self, rows: Flags) -> Marked:
        """Return the selected rows."""
        return Marked(self.kind[rows], self.name[rows], self.start_ns[rows], self.dur_ns[rows], self.step[rows])


def marked(tables: TableSet, rank: int, selection: Selection, area: str) -> Marked:
    """Return the marks of an area: the device's marks if a GPU did the work, since the host only issues it."""
    return _marks_of(tables, rank, selection, area, on_device=tables.ran_on_gpu(rank))


def host_marks(tables: TableSet, rank: int, selection: Selection, area: str) -> Marked:
    """Return the host's marks of an area. Use them for their values, not for their durations."""
    return _marks_of(tables, rank, selection, area, on_device=False)


def _marks_of(tables: TableSet, rank: int, selection: Selection, area: str, *, on_device: bool) -> Marked:
    rows = selected(tables, "annotations", rank, selection)
    rows = rows.take(rows.matches("area", area) & (rows["on_device"] == on_device))
    rows = rows.take(np.argsort(rows["start_ns"], kind="stable"))
    return Marked(rows["what"], rows["name"], rows["start_ns"], rows["dur_ns"], rows["step"])


def step_count(tables: TableSet, rank: int, selection: Selection) -> int:
    """Return the number of selected steps of a rank, at least 1 so that it can be a divisor."""
    return max(1, int(tables.selects(selection, tables.columns("steps", rank)["step"]).sum()))


def axis_groups(tables: TableSet, axis: str, ranks: list[int]) -> list[tuple[int, ...]]:
    """Return the groups of this axis that have at least two of `ranks`, reduced to these ranks."""
    texts: set[str] = set()
    for _, of_rank in tables.one_by_one("groups", ranks):
        texts |= set(of_rank["ranks"][of_rank.matches("axis", axis)].tolist())
    are_read = set(ranks)
    groups_read = {
        tuple(int(member) for member in text.split(",") if member and int(member) in are_read) for text in texts
    }
    return sorted(members for members in groups_read if len(members) > 1)
