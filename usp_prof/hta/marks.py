"""Ops and user annotations as HTA asks for them: kernels by annotation, annotations by time, kernels of ATen ops."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from usp_prof.columns.rows import lookup
from usp_prof.hta.breakdowns import summed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.hta.window import Window


def of_kernels(window: Window, rank: int) -> pd.DataFrame | None:
    """Give every kernel with the innermost device annotation of its stream that it overlaps; None without any."""
    marks = _annotations(window, rank, on_device=True)
    if not len(marks):
        return None
    frame = window.kernels(rank)
    found = np.full(len(frame), "", object)
    for _, of_stream in marks.sort_values("dur", ascending=False, kind="stable").groupby("thread", sort=False):
        rows = np.flatnonzero(frame["tid"].astype(str).to_numpy() == of_stream["thread"].iloc[0])
        starts, ends = frame["ts"].to_numpy()[rows], frame["end"].to_numpy()[rows]
        latest = np.maximum.accumulate(ends) if len(ends) else ends
        # Long annotations first, so that the innermost, which is shortest, is written last.
        for name, begin, end in of_stream[["name", "ts", "end"]].itertuples(index=False):
            low, high = np.searchsorted(latest, begin, side="right"), np.searchsorted(starts, end)
            inside = rows[low:high]
            found[inside[ends[low:high] > begin]] = name
    columns = ["event", "name", "pid", "tid", "ts", "dur", "end", "stream", "correlation", "bytes", "kernel_type"]
    return (
        frame[columns]
        .rename(columns={"event": "index"})
        .assign(s_name=frame["name"], user_annotation=found, s_user_annotation=found)
    )


def by_time(
    window: Window, duration_ratio: float, num_kernels: int, patterns: Sequence[str], *, on_device: bool
) -> pd.DataFrame | None:
    """Sum up annotations by name on each rank, on the device or on the host; None without any."""
    frames = []
    for rank in window.ranks:
        marks = _annotations(window, rank, on_device=on_device)
        kept = [name for name in marks["name"].unique() if any(re.search(pattern, name) for pattern in patterns)]
        frames.append(summed(marks, duration_ratio, num_kernels, kept).assign(rank=rank))
    found = pd.concat(frames, ignore_index=True)
    return found.sort_values(["rank", "name"], ignore_index=True) if len(found) else None


def of_ops(window: Window, rank: int, sort_by: Sequence[str]) -> pd.DataFrame:
    """Count the sequences of kernels that each ATen op launches, with the delays of the first of them.

    A kernel belongs to the innermost ATen op around its launch. avg_aten_op_launch_delay reaches from the op's start to
    the launch, avg_runtime_delay from the launch to the kernel; both in microseconds.
    """
    frame = window.kernels(rank)
    frame = frame[frame["launch_ts"].notna() & (frame["op_event"] >= 0)].sort_values(["launch_ts", "ts"])
    ops = window.tables.columns("ops", rank)
    codes, names = ops.codes("name")
    is_aten = np.asarray([name.startswith("aten::") for name in names], bool)[codes]
    # From each op to the innermost ATen op around it, by climbing to the parent as long as it is another kind of op.
    row_of_event = np.full(
        int(max(ops["event"].max(initial=-1), frame["op_event"].max() if len(frame) else -1)) + 2, -1
    )
    row_of_event[ops["event"]] = np.arange(len(ops))
    row = row_of_event[frame["op_event"].to_numpy(np.int64)]
    climbs = (row >= 0) & ~np.append(is_aten, True)[row]
    while climbs.any():
        row[climbs] = row_of_event[ops["parent"][row[climbs]]]  # -1 (no parent) indexes the last entry, which is -1
        climbs = (row >= 0) & ~np.append(is_aten, True)[row]
    frame = frame[row >= 0].assign(op=row[row >= 0])
    starts = window.micros(rank, ops["start_ns"])
    frame = frame.assign(op_delay=frame["launch_ts"] - starts[frame["op"]], delay=frame["ts"] - frame["launch_ts"])
    grouped = frame.groupby("op", sort=False)
    calls = pd.DataFrame(
        {
            "kernel_sequence": grouped["name"].agg(" -> ".join),
            "op_delay": grouped["op_delay"].first(),
            "delay": grouped["delay"].first(),
        }
    )
    calls["aten_op_name"] = np.asarray(names, object)[codes[calls.index.to_numpy(np.int64)]] if len(calls) else ""
    found = calls.groupby(["aten_op_name", "kernel_sequence"]).agg(
        occurrence_count=("delay", "count"),
        avg_aten_op_launch_delay=("op_delay", "mean"),
        avg_runtime_delay=("delay", "mean"),
    )
    return found.reset_index().sort_values(list(sort_by), ascending=False, kind="stable").round(3)


def _annotations(window: Window, rank: int, *, on_device: bool) -> pd.DataFrame:
    marks = window.tables.columns("annotations", rank)
    marks = marks.take(np.flatnonzero(marks["on_device"] == on_device))
    marks = marks.take(np.flatnonzero(window.keeps(rank, marks["step"], marks["start_ns"])))
    start = window.micros(rank, marks["start_ns"])
    names, texts = marks.codes("name")
    threads, labels = marks.codes("thread")
    return pd.DataFrame(
        {
            "name": lookup(texts, names, missing=""),
            "thread": lookup(labels, threads, missing=""),
            "ts": start,
            "dur": marks["dur_ns"] / 1000,
            "end": start + marks["dur_ns"] / 1000,
        }
    )
