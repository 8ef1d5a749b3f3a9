"""Breakdowns in HTA's format: time by kind, overlap, kernels by name, idle time by stream, the critical path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from usp_prof.columns.intervals import EMPTY, Intervals, union, union_of
from usp_prof.extras.hta.window import Window, type_of
from usp_prof.model.errors import UsageError
from usp_prof.run import Run

_TYPES = ("COMPUTATION", "COMMUNICATION", "MEMORY")


def temporal(window: Window) -> pd.DataFrame:
    """Split each rank's selected steps into idle, compute and all other device work.

    kernel_time is the length of the steps, so idle time before the first and after the last kernel counts. If steps are
    unknown, it spans from the first start to the last end, as in HTA.
    """
    rows = []
    for rank in window.ranks:
        sets = _by_type(window, rank)
        busy, compute = union_of(list(sets.values())), sets.get("COMPUTATION", EMPTY)
        begin, end = window.bounds(rank) or _span(busy)
        total = end - begin
        used = busy.clip(begin, end).length
        computed = compute.clip(begin, end).length
        rows.append((rank, total - used, computed, used - computed, total))
    names = ["idle_time(us)", "compute_time(us)", "non_compute_time(us)", "kernel_time(us)"]
    frame = pd.DataFrame(rows, columns=["rank", *names])
    frame[names] = frame[names] / 1000
    for name in names[:3]:
        share = 100 * frame[name] / frame["kernel_time(us)"].where(frame["kernel_time(us)"] > 0)
        frame[name.replace("(us)", "_pctg")] = share.round(2)
    return frame


def overlap(window: Window) -> pd.DataFrame:
    """Return the share of each rank's communication that overlaps compute; NaN for a rank without communication."""
    rows = []
    for rank in window.ranks:
        sets = _by_type(window, rank)
        talk, compute = sets.get("COMMUNICATION", EMPTY), sets.get("COMPUTATION", EMPTY)
        rows.append((rank, 100 * (talk & compute).length / talk.length if len(talk) else np.nan))
    return pd.DataFrame(rows, columns=["rank", "comp_comm_overlap_pctg"]).round(2)


def kernels(
    window: Window, duration_ratio: float, num_kernels: int, *, memory: bool
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return time by kernel type (and by types running at once) over all ranks, and each rank's kernels by name."""
    types = _TYPES if memory else _TYPES[:2]
    sums: dict[str, int] = {}
    frames = []
    for rank in window.ranks:
        sets = {kind: busy for kind, busy in _by_type(window, rank).items() if kind in types}
        for label, time in _exclusive(sets).items():
            sums[label] = sums.get(label, 0) + time
        work = window.work(rank)
        frame = pd.DataFrame(
            {
                "name": work["name"],
                "dur": work["dur_ns"] / 1000,
                "kernel_type": work.by_text("kind", type_of, missing=""),
            }
        )
        for kind in types:
            of_kind = summed(frame[frame["kernel_type"] == kind], duration_ratio, num_kernels)
            frames.append(of_kind.assign(kernel_type=kind, rank=rank))
    by_type = pd.DataFrame({"kernel_type": list(sums), "sum": [time / 1000 for time in sums.values()]})
    by_type = by_type.sort_values("sum", ascending=False, ignore_index=True)
    by_type["percentage"] = (100 * by_type["sum"] / by_type["sum"].sum()).round(1)
    by_name = pd.concat(frames, ignore_index=True).sort_values(["kernel_type", "name", "rank"], ignore_index=True)
    return by_type, by_name


def summed(
    frame: pd.DataFrame, duration_ratio: float, num_kernels: int, always_separate: Sequence[str] = ()
) -> pd.DataFrame:
    """Sum durations by name. Names beyond the first `num_kernels` or the quantile are combined as `others`.

    HTA computes minimum, mean and so on from the sums by name; here they are computed from the single durations.
    """
    sums = frame.groupby("name")["dur"].sum().sort_values(ascending=False, kind="stable")
    if len(sums) > num_kernels:
        running = sums.cumsum()
        beyond = (running > running.quantile(duration_ratio)) | (np.arange(len(sums)) >= num_kernels)
        rest = sums.index[beyond & ~sums.index.isin(always_separate)]
        frame = frame.assign(name=frame["name"].where(~frame["name"].isin(rest), "others"))
    summary = frame.groupby("name")["dur"].agg(["sum", "max", "min", "std", "mean"]).reset_index()
    summary["std"] = summary["std"].fillna(0.0)
    summary = summary.sort_values("sum", ascending=False, ignore_index=True)
    units = {"sum": "sum (us)", "max": "max (us)", "min": "min (us)", "std": "stddev", "mean": "mean (us)"}
    return summary.rename(columns=units)


def idle(
    window: Window, rank: int, streams: Sequence[int] | None, delay_ns: int, *, statistics: bool
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Split the gaps of each stream into late host launches, closely following kernels, and other reasons.

    host_wait    the kernel was launched after all earlier work of the stream had ended
    kernel_wait  launched in time, and the gap is shorter than the delay between kernels (microseconds, as in HTA)
    other        any other reason, such as waiting for another stream; the first kernel of a stream has no gap
    """
    rows, tables = [], []
    frame = window.kernels(rank)
    for stream in streams or sorted(frame["stream"].unique().tolist()):
        work = frame[frame["stream"] == stream].sort_values("ts", kind="stable")
        before = work["end"].cummax().shift(1)  # kernels of a stream may overlap: the latest end counts
        gap = (work["ts"] - before).clip(lower=0)
        late = work["launch_ts"] > before
        category = np.where(late, "host_wait", np.where(gap < delay_ns, "kernel_wait", "other"))
        gaps = gap.groupby(pd.Series(category, index=work.index))
        total = gap.sum()
        for name, time in gaps.sum().items():
            rows.append((rank, stream, name, time, time / total if total else np.nan))
        if statistics:
            described = gaps.describe()
            described.insert(0, "stream", stream)
            described.insert(0, "rank", rank)
            tables.append(described.round(2))
    columns = ["rank", "stream", "idle_category", "idle_time", "idle_time_ratio"]
    intervals = pd.concat(tables).rename_axis("idle_category") if tables else None
    return pd.DataFrame(rows, columns=columns).round(2), intervals


def _by_type(window: Window, rank: int) -> dict[str, Intervals]:
    work = window.work(rank)
    start, end = work["start_ns"], work["start_ns"] + work["dur_ns"]
    type_of_work = work.by_text("kind", type_of, missing="")
    chosen = {kind: type_of_work == kind for kind in _TYPES}
    return {kind: union(start[rows], end[rows]) for kind, rows in chosen.items() if rows.any()}


def _span(busy: Intervals) -> tuple[int, int]:
    return (int(busy.start[0]), int(busy.end[-1])) if len(busy) else (0, 0)


def _exclusive(sets: dict[str, Intervals]) -> dict[str, int]:
    """Return the time of each type alone and of each combination that runs at once, with HTA's names."""
    if not sets:
        return {}
    # Between two adjacent edges, the set of running types is constant.
    edges = np.unique(np.concatenate([edge for busy in sets.values() for edge in (busy.start, busy.end)]))
    begins = edges[:-1]
    length = np.diff(edges)
    types_running = np.zeros(len(begins), np.int64)  # by interval, one bit per type
    for bit, busy in enumerate(sets.values()):
        types_running |= busy.holds(begins).astype(np.int64) << bit
    time_of_types = {}
    for types in np.unique(types_running[types_running > 0]).tolist():
        label = " overlapping ".join(kind for bit, kind in enumerate(sets) if types >> bit & 1)
        time_of_types[label] = int(length[types_running == types].sum())
    return time_of_types


# The critical path with HTA's names: what bounds the selected steps, as shares and as a table.


_BOUND_BY = {
    "compute": "gpu_compute_bound",
    "memcpy": "gpu_compute_bound",
    "comm": "gpu_communication_bound",
    "idle:host": "cpu_bound",
    "idle:input": "cpu_bound",
    "idle:sync": "cpu_bound",
    "idle:bubble": "gpu_communication_bound",
    "idle:other": "gpu_kernel_kernel_overhead",
}
"""HTA's names for the parts of our path."""


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """The path that bounds the steps, with two methods of HTA's `CPGraph`. It is a table, not a networkx graph."""

    parts: pd.DataFrame
    """Columns rank, part (compute, comm:axis, idle:cause), duration (us), bound_by."""

    if not TYPE_CHECKING:  # type checkers must reject unknown names

        def __getattr__(self, name: str) -> object:
            """Raise AttributeError; for a public name of HTA's graph, name the switch that returns this graph."""
            message = f"{type(self).__name__} has no {name}"
            hint = "critical_path_analysis(..., with_hta=True) returns HTA's own graph"
            raise AttributeError(message if name.startswith("_") else f"{message}: {hint}")

    @classmethod
    def from_run(
        cls, run: Run, window: Window, rank: int, annotation: str, instance_id: int | tuple[int, int] | None
    ) -> tuple[CriticalPath, bool]:
        """Return the path of the selected instances of the step mark; instances count from 0, both ends included."""
        if annotation not in ("", "ProfilerStep"):
            raise UsageError("only steps can be chosen", hint='annotation="ProfilerStep", or "" for the whole trace')
        steps = window.steps(rank)
        low, high = instance_id if isinstance(instance_id, tuple) else (instance_id or 0,) * 2
        chosen = steps if not annotation else steps[low : high + 1]
        if not chosen and (annotation or steps):
            raise UsageError(f"there is no step {instance_id or 0}", hint=f"there are {len(steps)}, counted from 0")
        path = run.critical_path(steps=(chosen[0], chosen[-1]) if chosen else None).df
        family = path["part"].where(~path["part"].str.startswith("comm"), "comm")
        frame = pd.DataFrame(
            {
                "rank": path["rank"],
                "part": path["part"],
                "duration": path["time_ns"] / 1000,
                "bound_by": family.map(_BOUND_BY),
            }
        )
        return cls(frame), bool(len(frame))

    def get_critical_path_breakdown(self) -> pd.DataFrame | None:
        """Return the time on the path by rank and part, or None if no path was found."""
        return self.parts.copy() if len(self.parts) else None

    def summary(self) -> pd.Series[float]:
        """Return the share of the path in percent by what bounds it, with HTA's names."""
        sums = self.parts.groupby("bound_by")["duration"].sum()
        return 100 * sums / sums.sum()
