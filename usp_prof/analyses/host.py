"""Host: launches, blocking calls, data loading, garbage collection and CPU ops that keep the device waiting."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from usp_prof.analyses.measures import ranges
from usp_prof.analyses.measures.ranges import CallStat, SyncStat
from usp_prof.analyses.result import DataFrame, Listing, Result, fields_of, frame, in_order
from usp_prof.columns.intervals import time_of, union, union_of
from usp_prof.columns.rows import totals
from usp_prof.columns.table import Columns
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.metric import Better, Metric, Unit, Value, Values
from usp_prof.model.selection import EVERYTHING, Selection
from usp_prof.replay.host_gaps import LOADS_DATA
from usp_prof.tables import shares
from usp_prof.tables.table_set import TableSet

QUEUE_LIMIT = 1023
"""Unfinished launches at which a CUDA stream is full and the next launch blocks. Other devices have no such limit."""

LAUNCH_COUNT = Metric(
    "launch_count", Unit.COUNT, Better.LOWER, "Launches", "Calls per step that start device work.", ("rank",)
)
LAUNCH_DELAY = Metric(
    "launch_delay", Unit.NS, Better.NEITHER, "Launch delay",
    "Median time from a launch to the start of its work. A short delay means that the device waits for the "
    "host.", ("rank",),
)  # fmt: skip
EMPTY_QUEUE_FRACTION = Metric(
    "empty_queue_fraction", Unit.FRACTION, Better.LOWER, "Empty queue",
    "Share of launches that found no work queued or running, so the device was waiting for them.", ("rank",),
)  # fmt: skip
QUEUE_FULL_TIME = Metric(
    "queue_full_time", Unit.NS, Better.NEITHER, "Full queue",
    f"Time with {QUEUE_LIMIT} or more launches outstanding on a stream, in which the host blocks.", ("rank", "stream"),
)  # fmt: skip
HOST_SYNC_TIME = Metric(
    "host_sync_time", Unit.NS, Better.LOWER, "Blocking calls",
    "Host time per step in calls that wait for the device, by the op that made them.", ("rank", "cause"),
)  # fmt: skip
INPUT_TIME = Metric(
    "input_time", Unit.NS, Better.LOWER, "Data loading", "Host time per step in the data loader.", ("rank",)
)
GC_TIME = Metric(
    "gc_time", Unit.NS, Better.LOWER, "Garbage collection",
    "Host time per step in Python's garbage collector, if stacks or marks were recorded.", ("rank",),
)  # fmt: skip
METRICS = (LAUNCH_COUNT, LAUNCH_DELAY, EMPTY_QUEUE_FRACTION, QUEUE_FULL_TIME, HOST_SYNC_TIME, INPUT_TIME, GC_TIME)

_COLLECTS = re.compile(
    r"^<built-in (function|method) collect|\bgc\.py\(\d+\)|\bgc\.collect\b|^train::gc\b|: _?gc_collect$"
)
_CAUSES = 10
_NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True)
class RankHost:
    """One rank's host figures, per step. Unknown figures are NaN; an unknown queue depth is -1."""

    rank: int
    launches: float
    launch_delay_ns: float
    empty_queue_fraction: float
    deepest_queue: int
    sync_ns: float
    input_ns: float
    gc_ns: float


@dataclass(frozen=True, slots=True)
class OpTime:
    """CPU time of one op on one rank."""

    rank: int
    name: str
    count: int
    self_ns: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class HostResult(Result):
    """Host figures per rank, calls by name, blocking calls, ops, and queues per stream."""

    ranks: tuple[RankHost, ...]
    calls: tuple[CallStat, ...]
    syncs: tuple[SyncStat, ...]
    ops: tuple[OpTime, ...]
    queues: tuple[tuple[int, int, int, int], ...]
    """Rank, stream, deepest queue, and time with a full queue."""
    steps: int
    notes: tuple[HealthRow, ...] = ()

    def values(self) -> Values:
        """Return the metric values, sorted by dimension."""
        values: list[Value] = []
        for metric, figure in _FIGURES:
            rank_values = [(host.rank, figure(host)) for host in self.ranks if np.isfinite(figure(host))]
            if rank_values:
                values.append(Value(metric, float(np.mean([value for _, value in rank_values]))))
                values += [Value(metric, value, {"rank": rank}) for rank, value in rank_values]
        for rank, stream, _, full in self.queues:
            values.append(Value(QUEUE_FULL_TIME, full, {"rank": rank, "stream": stream}))
        values += [Value(HOST_SYNC_TIME, time, {"cause": cause}) for cause, time in self._causes()]
        return in_order(values)

    def _causes(self) -> list[tuple[str, float]]:
        """Return the causes with the most blocking time, with their mean time per rank and step."""
        sums: dict[str, int] = {}
        for sync in self.syncs:
            sums[sync.cause or "(no op known)"] = sums.get(sync.cause or "(no op known)", 0) + sync.time_ns
        worst = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:_CAUSES]
        return [(cause, time / max(1, self.steps) / max(1, len(self.ranks))) for cause, time in worst]

    def to_pandas(self) -> DataFrame:
        """Return one row per rank. Unknown figures are NaN, including the queue depth."""
        return frame(self.listing(), or_unknown=("deepest_queue",))

    def listing(self) -> Listing:
        """Return the same data as plain columns."""
        return fields_of(self.ranks, RankHost)


_FIGURES: tuple[tuple[Metric, Callable[[RankHost], float]], ...] = (
    (LAUNCH_COUNT, lambda host: host.launches),
    (LAUNCH_DELAY, lambda host: host.launch_delay_ns),
    (EMPTY_QUEUE_FRACTION, lambda host: host.empty_queue_fraction),
    (HOST_SYNC_TIME, lambda host: host.sync_ns),
    (INPUT_TIME, lambda host: host.input_ns),
    (GC_TIME, lambda host: host.gc_ns),
)


def compute(tables: TableSet, selection: Selection = EVERYTHING) -> HostResult:
    """Analyze the hosts of the selected ranks and steps."""
    return tables.memo(("host", selection), lambda: _looked_at(tables, selection))


def _looked_at(tables: TableSet, selection: Selection) -> HostResult:
    ranks, calls, syncs, ops, queues, steps = [], [], [], [], [], 0
    for seen in shares.of_each_rank(
        tables, partial(_of_rank, selection=selection), selection.ranks_among(tables.ranks)
    ):
        ranks.append(seen.rank)
        calls += seen.calls
        syncs += seen.syncs
        ops += seen.ops
        queues += [(seen.rank.rank, *depth) for depth in seen.depths]
        steps = max(steps, seen.steps)
    notes = [_STACKS] if any(np.isnan(host.gc_ns) for host in ranks) else []
    ordered = tuple(sorted(syncs, key=lambda sync: (-sync.time_ns, sync.rank, sync.name, sync.cause)))
    calls.sort(key=lambda call: (-call.time_ns, call.rank, call.name))
    ops.sort(key=lambda op: (-op.self_ns, op.rank, op.name))
    return HostResult(tuple(ranks), tuple(calls), ordered, tuple(ops), tuple(queues), steps, tuple(notes))


@dataclass(frozen=True, slots=True)
class _OfRank:
    """Host figures of one rank's trace in the selected steps."""

    rank: RankHost
    calls: list[CallStat]
    syncs: list[SyncStat]
    ops: list[OpTime]
    depths: list[tuple[int, int, int]]
    """Rows as returned by `queue_depth`."""
    steps: int
    """Number of selected steps."""


def _of_rank(tables: TableSet, rank: int, selection: Selection) -> _OfRank:
    steps = int(tables.selects(selection, tables.columns("steps", rank)["step"]).sum())
    per_step = max(1, steps)
    launches, marks, ops = (
        ranges.selected(tables, name, rank, selection) for name in ("launches", "annotations", "ops")
    )
    syncs, delays = ranges.sync_stats(tables, rank, launches), ranges.delays(launches)
    empty, starting = ranges.empty_queue(tables, rank, launches)
    limited = "cuda" in tables.columns("ranks", rank)["device_kind"]
    depths = ranges.queue_depth(tables, rank, QUEUE_LIMIT if limited else _NO_LIMIT)
    # If only device activity was recorded, launches and data loading are unknown, which is not zero.
    on_gpu = tables.ran_on_gpu(rank) and len(tables.columns("launches", rank)) > 0
    has_host = bool(len(tables.columns("ops", rank)) or (~tables.columns("annotations", rank)["on_device"]).any())
    functions = _functions(tables, rank, selection)
    collected = _covered(_COLLECTS, marks, functions)
    host = RankHost(
        rank=rank,
        launches=starting / per_step if on_gpu else float("nan"),
        launch_delay_ns=float(np.median(delays)) if len(delays) else float("nan"),
        empty_queue_fraction=empty / starting if starting else float("nan"),
        deepest_queue=max((depth for _, depth, _ in depths), default=-1),
        sync_ns=sum(sync.time_ns for sync in syncs) / per_step if on_gpu else float("nan"),
        input_ns=_covered(LOADS_DATA, marks.take(~marks["on_device"]), ops) / per_step if has_host else float("nan"),
        gc_ns=collected / per_step if len(functions) or collected else float("nan"),
    )
    return _OfRank(host, ranges.call_stats(rank, launches), syncs, _op_times(rank, ops), depths, steps)


_STACKS = HealthRow(
    "no_python_functions", Severity.INFO,
    detail="no Python functions were recorded, so only marked garbage collection is shown; record with with_stack=True",
)  # fmt: skip


def _functions(tables: TableSet, rank: int, selection: Selection) -> Columns:
    """Return the Python functions that began in the selected steps."""
    events = tables.columns("events", rank)
    functions = events.take(events.matches("category", "python_function"))
    if not len(functions):
        return functions  # if there are none, the other columns are not read
    steps = tables.columns("steps", rank)
    is_selected = tables.selects(selection, steps["step"])
    inside = union(steps["host_start_ns"][is_selected], steps["host_end_ns"][is_selected])
    return functions.take(inside.holds(functions["start_ns"]))


def _covered(wanted: re.Pattern[str], *tables: Columns) -> int:
    """Return the time covered by the union of all ranges whose names match."""
    return union_of([time_of(table, table.satisfies("name", wanted.search)) for table in tables]).length


def _op_times(rank: int, ops: Columns) -> list[OpTime]:
    codes, names = ops.codes("name")
    count = np.bincount(codes, minlength=len(names))
    own, total = (totals(codes, ops[name], len(names) + 1) for name in ("self_ns", "dur_ns"))
    times = [
        OpTime(rank, names[code], int(count[code]), int(own[code]), int(total[code]))
        for code in np.flatnonzero(count).tolist()
    ]
    return sorted(times, key=lambda op: (-op.self_ns, op.name))
