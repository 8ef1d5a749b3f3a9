"""Launches, queues and copies as HTA asks for them: launch statistics, queue length, bandwidth of copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from usp_prof.hta.window import Window

_COPIES = ("memcpy", "memset")


def launch_stats(window: Window, rank: int, *, memory: bool) -> pd.DataFrame:
    """Give each piece of device work with the call that launched it; the delay counts from the call's end."""
    frame = window.kernels(rank)
    frame = frame[frame["launch_ts"].notna()]
    if not memory:
        frame = frame[~frame["launch_kind"].isin(_COPIES)]
    delay = (frame["ts"] - frame["launch_ts"] - frame["launch_dur"]).clip(lower=0)
    found = {"correlation": frame["correlation"], "cpu_duration": frame["launch_dur"], "gpu_duration": frame["dur"]}
    return pd.DataFrame({**found, "launch_delay": delay}).reset_index(drop=True)


def queue_length(window: Window, rank: int) -> pd.DataFrame | None:
    """Count what was launched on each stream and has not begun: +1 at the launch, -1 at the start of the work."""
    frame = window.kernels(rank)
    frame = frame[frame["launch_ts"].notna()]
    if not len(frame):
        return None
    place = ["pid", "tid", "stream"]
    launched = frame[place].assign(ts=frame["launch_ts"], change=1, index=frame["launch_event"])
    begun = frame[place].assign(ts=frame["ts"], change=-1, index=frame["event"])
    # At one moment launches come first, so that no queue is shorter than nothing.
    found = pd.concat([launched, begun]).sort_values(["stream", "ts", "change"], ascending=[True, True, False])
    found["queue_length"] = found.groupby("stream")["change"].cumsum()
    return found.set_index("index")[["ts", *place, "queue_length"]]


def queue_summary(series: Mapping[int, pd.DataFrame]) -> pd.DataFrame | None:
    """Describe the queue lengths of each rank and stream."""
    described = [
        frame.assign(rank=rank)[["rank", "stream", "queue_length"]].groupby(["rank", "stream"]).describe()
        for rank, frame in series.items()
    ]
    return pd.concat(described) if described else None


def blocked(window: Window, series: Mapping[int, pd.DataFrame], most: int) -> pd.DataFrame:
    """Sum up the time with a full queue, a row for every stream that ever was full; relative to the steps' length."""
    rows = []
    for rank, frame in series.items():
        whole = window.host_length(rank) / 1000
        for stream, of_stream in frame.groupby("stream"):
            lasted = of_stream["ts"].shift(-1) - of_stream["ts"]
            full = of_stream["queue_length"] >= most
            if full.any():
                time = lasted[full].sum()
                rows.append((rank, stream, time, time / whole))
    names = ["rank", "stream", "duration_at_max_queue_length", "relative_duration_at_max_queue_length"]
    return pd.DataFrame(rows, columns=names)


def bandwidth(window: Window, rank: int) -> pd.DataFrame | None:
    """Give the bandwidth of copies and memsets over time, by kind: their bytes over their exact durations, in GB/s."""
    frame = window.kernels(rank)
    frame = frame[(frame["kernel_type"] == "MEMORY") & (frame["bytes"] >= 0) & (frame["dur"] > 0)]
    if not len(frame):
        return None
    rate = frame["bytes"] / frame["dur"] / 1000
    kind = frame["name"].str.extract(r"^(Memset|Memcpy \w+)", expand=False).fillna("Memcpy Unknown")
    begins = pd.DataFrame({"ts": frame["ts"], "pid": frame["pid"], "name": kind, "change": rate})
    ends = begins.assign(ts=frame["end"], change=-rate)
    found = pd.concat([ends, begins]).sort_values(["name", "ts"], kind="stable")
    found["memory_bw_gbps"] = found.groupby("name")["change"].cumsum()
    # What is left of a sum that should be nothing is rounding.
    found.loc[found["memory_bw_gbps"].abs() < 1e-9, "memory_bw_gbps"] = 0.0
    return found[["ts", "pid", "name", "memory_bw_gbps"]].reset_index(drop=True)


def bandwidth_summary(series: Mapping[int, pd.DataFrame]) -> pd.DataFrame | None:
    """Describe the bandwidth while anything is copied, each value weighted by how long it lasted."""
    described = []
    for rank, frame in series.items():
        lasted = frame.groupby("name")["ts"].shift(-1) - frame["ts"]
        copies = frame.assign(rank=rank, weight=lasted)
        copies = copies[(copies["memory_bw_gbps"] > 0) & (copies["weight"] > 0)]
        for (_, name), each in copies.groupby(["rank", "name"]):
            described.append({"rank": rank, "name": name} | _weighted(each["memory_bw_gbps"], each["weight"]))
    if not described:
        return None
    found = pd.DataFrame(described).set_index(["rank", "name"])
    found.columns = pd.MultiIndex.from_product([["memory_bw_gbps"], found.columns])
    return found


def _weighted(value: pd.Series[float], weight: pd.Series[float]) -> dict[str, float]:
    """Give the figures of `describe`, weighted; a quantile is the least value that so much of the time lies under."""
    order = np.argsort(value.to_numpy(), kind="stable")
    values, weights = value.to_numpy()[order], weight.to_numpy()[order]
    running = np.cumsum(weights) / weights.sum()
    mean = float(np.average(values, weights=weights))
    spread = float(np.sqrt(np.average((values - mean) ** 2, weights=weights)))
    quantiles = {f"{100 * q:.0f}%": float(values[np.searchsorted(running, q - 1e-12)]) for q in (0.25, 0.5, 0.75)}
    return {"count": float(len(values)), "mean": mean, "std": spread, "min": float(values[0]), **quantiles,
            "max": float(values[-1])}  # fmt: skip
