"""Launches in HTA's format: queues, delays, bandwidth of copies, kernels of ATen ops and of user annotations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from usp_prof.analyses.measures.op_work import enclosing_ops
from usp_prof.extras.hta.breakdowns import summed
from usp_prof.extras.hta.window import Window

_COPIES = ("memcpy", "memset")
"""Kinds of launches that HTA counts as memory events."""


def launch_stats(window: Window, rank: int, *, memory: bool) -> pd.DataFrame:
    """Return each piece of device work with the call that launched it; the delay counts from the call's end."""
    frame = window.kernels(rank)
    frame = frame[frame["launch_ts"].notna()]
    if not memory:
        frame = frame[~frame["launch_kind"].isin(_COPIES)]
    delay = (frame["ts"] - frame["launch_ts"] - frame["launch_dur"]).clip(lower=0)
    columns = {"correlation": frame["correlation"], "cpu_duration": frame["launch_dur"], "gpu_duration": frame["dur"]}
    return pd.DataFrame({**columns, "launch_delay": delay}).reset_index(drop=True)


def queue_length(window: Window, rank: int) -> pd.DataFrame | None:
    """Return the number of launched but not yet started pieces of work on each stream over time.

    +1 at each launch, -1 at each start of work; the running sum of a stream is the length of its queue. Launches at 0
    and 2 us of work that starts at 1 and 5 us result in the lengths 1, 0, 1, 0.
    """
    frame = window.kernels(rank)
    frame = frame[frame["launch_ts"].notna()]
    if not len(frame):
        return None
    place = ["pid", "tid", "stream"]
    launched = frame[place].assign(ts=frame["launch_ts"], change=1, index=frame["launch_event"])
    starts = frame[place].assign(ts=frame["ts"], change=-1, index=frame["event"])
    # At equal times launches come first, so that no queue length is negative.
    changes = pd.concat([launched, starts]).sort_values(["stream", "ts", "change"], ascending=[True, True, False])
    changes["queue_length"] = changes.groupby("stream")["change"].cumsum()
    return changes.set_index("index")[["ts", *place, "queue_length"]]


def queue_summary(series: Mapping[int, pd.DataFrame]) -> pd.DataFrame | None:
    """Describe the queue lengths of each rank and stream."""
    described = [
        frame.assign(rank=rank)[["rank", "stream", "queue_length"]].groupby(["rank", "stream"]).describe()
        for rank, frame in series.items()
    ]
    return pd.concat(described) if described else None


def blocked(window: Window, series: Mapping[int, pd.DataFrame], most: int) -> pd.DataFrame:
    """Sum the time with a full queue, one row per stream that was ever full; relative to the length of the steps."""
    rows = []
    for rank, frame in series.items():
        window_us = window.host_length(rank) / 1000
        for stream, of_stream in frame.groupby("stream"):
            lasted = of_stream["ts"].shift(-1) - of_stream["ts"]  # duration of each queue length; NaN for the last
            full = of_stream["queue_length"] >= most
            if full.any():
                time = lasted[full].sum()
                rows.append((rank, stream, time, time / window_us))
    names = ["rank", "stream", "duration_at_max_queue_length", "relative_duration_at_max_queue_length"]
    return pd.DataFrame(rows, columns=names)


def bandwidth(window: Window, rank: int) -> pd.DataFrame | None:
    """Return the bandwidth of copies and memsets over time, by kind, in GB/s.

    A copy adds its bytes divided by its exact duration at its start, and subtracts them at its end. The running sum of
    a kind is its bandwidth.
    """
    frame = window.kernels(rank)
    frame = frame[(frame["kernel_type"] == "MEMORY") & (frame["bytes"] >= 0) & (frame["dur"] > 0)]
    if not len(frame):
        return None
    rate = frame["bytes"] / frame["dur"] / 1000  # bytes per microsecond are MB/s
    kind = frame["name"].str.extract(r"^(Memset|Memcpy \w+)", expand=False).fillna("Memcpy Unknown")
    begins = pd.DataFrame({"ts": frame["ts"], "pid": frame["pid"], "name": kind, "change": rate})
    ends = begins.assign(ts=frame["end"], change=-rate)
    # At equal times ends come first: two copies that follow each other directly never count at once.
    changes = pd.concat([ends, begins]).sort_values(["name", "ts"], kind="stable")
    changes["memory_bw_gbps"] = changes.groupby("name")["change"].cumsum()
    # The remainder of a sum that should be zero is rounding error.
    changes.loc[changes["memory_bw_gbps"].abs() < 1e-9, "memory_bw_gbps"] = 0.0
    return changes[["ts", "pid", "name", "memory_bw_gbps"]].reset_index(drop=True)


def bandwidth_summary(series: Mapping[int, pd.DataFrame]) -> pd.DataFrame | None:
    """Describe the bandwidth while anything is copied, each value weighted by its duration."""
    described = []
    for rank, frame in series.items():
        lasted = frame.groupby("name")["ts"].shift(-1) - frame["ts"]
        copies = frame.assign(rank=rank, weight=lasted)
        copies = copies[(copies["memory_bw_gbps"] > 0) & (copies["weight"] > 0)]
        for (_, name), of_kind in copies.groupby(["rank", "name"]):
            described.append({"rank": rank, "name": name} | _weighted(of_kind["memory_bw_gbps"], of_kind["weight"]))
    if not described:
        return None
    summary = pd.DataFrame(described).set_index(["rank", "name"])
    summary.columns = pd.MultiIndex.from_product([["memory_bw_gbps"], summary.columns])
    return summary


def _weighted(value: pd.Series[float], weight: pd.Series[float]) -> dict[str, float]:
    """Return the figures of `describe`, weighted by time; a quantile is the least value that covers that share."""
    order = np.argsort(value.to_numpy(), kind="stable")
    values = value.to_numpy()[order]
    weights = weight.to_numpy()[order]
    mean = float(np.average(values, weights=weights))
    variance = float(np.average((values - mean) ** 2, weights=weights))
    # Share of the time with each value or a smaller one, ascending to 1.
    share_below = np.cumsum(weights) / weights.sum()
    figures = {"count": float(len(values)), "mean": mean, "std": float(np.sqrt(variance)), "min": float(values[0])}
    for quantile in (0.25, 0.5, 0.75):
        place = np.searchsorted(share_below, quantile - 1e-12)
        figures[f"{100 * quantile:.0f}%"] = float(values[place])
    return {**figures, "max": float(values[-1])}


# Kernels by the annotation or the ATen op that they belong to.


def annotated_kernels(window: Window, rank: int) -> pd.DataFrame | None:
    """Return every kernel with the innermost device annotation of its stream that it overlaps, or None without any."""
    marks = _annotations(window, rank, on_device=True)
    if not len(marks):
        return None
    frame = window.kernels(rank)
    mark_of_kernel = np.full(len(frame), "", object)
    for _, of_stream in marks.sort_values("dur", ascending=False, kind="stable").groupby("thread", sort=False):
        # Kernels of the stream. They are sorted by start but not by end, hence the running maximum.
        rows = np.flatnonzero(frame["tid"].astype(str).to_numpy() == of_stream["thread"].iloc[0])
        starts = frame["ts"].to_numpy()[rows]
        ends = frame["end"].to_numpy()[rows]
        latest = np.maximum.accumulate(ends) if len(ends) else ends
        # Long annotations first, so that the innermost one, which is the shortest, is written last.
        for name, begin, end in of_stream[["name", "ts", "end"]].itertuples(index=False):
            low = np.searchsorted(latest, begin, side="right")  # no earlier kernel overlaps the annotation
            high = np.searchsorted(starts, end)
            inside = rows[low:high]
            mark_of_kernel[inside[ends[low:high] > begin]] = name
    columns = ["event", "name", "pid", "tid", "ts", "dur", "end", "stream", "correlation", "bytes", "kernel_type"]
    return (
        frame[columns]
        .rename(columns={"event": "index"})
        .assign(s_name=frame["name"], user_annotation=mark_of_kernel, s_user_annotation=mark_of_kernel)
    )


def annotations_by_time(
    window: Window, duration_ratio: float, num_kernels: int, patterns: Sequence[str], *, on_device: bool
) -> pd.DataFrame | None:
    """Sum annotations by name on each rank, on the device or on the host; return None without any."""
    frames = []
    for rank in window.ranks:
        marks = _annotations(window, rank, on_device=on_device)
        matching_names = [
            name for name in marks["name"].unique() if any(re.search(pattern, name) for pattern in patterns)
        ]
        frames.append(summed(marks, duration_ratio, num_kernels, matching_names).assign(rank=rank))
    sums = pd.concat(frames, ignore_index=True)
    return sums.sort_values(["rank", "name"], ignore_index=True) if len(sums) else None


def kernels_of_ops(window: Window, rank: int, sort_by: Sequence[str]) -> pd.DataFrame:
    """Count the kernel sequences that each ATen op launches, with the delays of their first kernels.

    A kernel belongs to the innermost ATen op around its launch. avg_aten_op_launch_delay is the time from the op's
    start to the launch, avg_runtime_delay from the launch to the kernel; both in microseconds.
    """
    frame = window.kernels(rank)
    frame = frame[frame["launch_ts"].notna() & (frame["op_event"] >= 0)].sort_values(["launch_ts", "ts"])
    ops = window.tables.columns("ops", rank)
    is_aten = ops.satisfies("name", lambda name: name.startswith("aten::"))
    row = enclosing_ops(ops, frame["op_event"].to_numpy(np.int64), is_aten)
    is_launched_by_aten = row >= 0
    frame = frame[is_launched_by_aten].assign(op=row[is_launched_by_aten])
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
    calls["aten_op_name"] = ops["name"][calls.index.to_numpy(np.int64)]
    summary = calls.groupby(["aten_op_name", "kernel_sequence"]).agg(
        occurrence_count=("delay", "count"),
        avg_aten_op_launch_delay=("op_delay", "mean"),
        avg_runtime_delay=("delay", "mean"),
    )
    return summary.reset_index().sort_values(list(sort_by), ascending=False, kind="stable").round(3)


def _annotations(window: Window, rank: int, *, on_device: bool) -> pd.DataFrame:
    marks = window.tables.columns("annotations", rank)
    marks = marks.take(np.flatnonzero(marks["on_device"] == on_device))
    marks = marks.take(np.flatnonzero(window.keeps(rank, marks["step"], marks["start_ns"])))
    start = window.micros(rank, marks["start_ns"])
    return pd.DataFrame(
        {
            "name": marks["name"],
            "thread": marks["thread"],
            "ts": start,
            "dur": marks["dur_ns"] / 1000,
            "end": start + marks["dur_ns"] / 1000,
        }
    )
