"""Traces with known damage: copies of a run without some kernels, streams, marks or ranges of time."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Event = dict[str, Any]
Traces = dict[int, dict[str, Any]]
"""The parsed trace file of each rank."""

WORK = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
COMMUNICATES = re.compile(r"^nccl(Dev)?Kernel|^ncclKernel", re.IGNORECASE)


def read(folder: Path) -> Traces:
    """Read the traces under a folder; a file that does not name its rank counts as rank 0."""
    traces = {}
    for path in sorted(folder.rglob("*.json*")):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        trace = json.loads(text.decode("utf-8", "replace"), strict=False)
        if isinstance(trace, dict) and "traceEvents" in trace:
            traces[int((trace.get("distributedInfo") or {}).get("rank", 0))] = trace
    return traces


def write(traces: Traces, folder: Path) -> Path:
    """Write traces without a manifest, one file per rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, trace in traces.items():
        (folder / f"rank{rank}.json").write_text(json.dumps(trace), encoding="utf-8")
    return folder


def correlation(event: Event) -> int:
    """Return the correlation id of an event, 0 without one."""
    return int((event.get("args") or {}).get("correlation", 0))


def work_of(trace: dict[str, Any], *categories: str) -> list[Event]:
    """List device work in order of start; of all categories without any given."""
    wanted = categories or WORK
    return sorted((e for e in trace["traceEvents"] if e.get("cat") in wanted), key=lambda event: event["ts"])


def _linked(trace: dict[str, Any]) -> list[Event]:
    """List kernels whose launch is in the trace."""
    launched = {correlation(event) for event in trace["traceEvents"] if event.get("cat") in CALLS}
    return [event for event in work_of(trace, "kernel") if correlation(event) in launched]


def _without(trace: dict[str, Any], lost: list[Event]) -> dict[str, Any]:
    gone = {id(event) for event in lost}
    return trace | {"traceEvents": [event for event in trace["traceEvents"] if id(event) not in gone]}


def _first_kernels(trace: dict[str, Any]) -> dict[str, Any]:
    linked = _linked(trace)
    return _without(trace, linked[: round(0.15 * len(linked))])


def _every_tenth(trace: dict[str, Any]) -> dict[str, Any]:
    return _without(trace, _linked(trace)[::10])


def _half_of_communication(trace: dict[str, Any]) -> dict[str, Any]:
    return _without(trace, [event for event in _linked(trace) if COMMUNICATES.match(event["name"])][::2])


def _one_stream(trace: dict[str, Any]) -> dict[str, Any]:
    streams = Counter(event["args"]["stream"] for event in work_of(trace, "kernel"))
    busiest = streams.most_common(1)[0][0]
    rest = [event for event in work_of(trace) if event["args"]["stream"] == busiest]
    return _without(trace, rest if len(streams) > 1 else rest[1:])


def _device_cut(trace: dict[str, Any]) -> dict[str, Any]:
    work = work_of(trace)
    until = work[0]["ts"] + 0.7 * (work[-1]["ts"] - work[0]["ts"])
    return _without(trace, [event for event in work if event["ts"] > until])


def _copies(trace: dict[str, Any]) -> dict[str, Any]:
    return _without(trace, work_of(trace, "gpu_memcpy"))


def _launches(trace: dict[str, Any]) -> dict[str, Any]:
    done = {correlation(event) for event in work_of(trace)}
    calls = [event for event in trace["traceEvents"] if event.get("cat") in CALLS and correlation(event) in done]
    calls.sort(key=lambda event: event["ts"])
    return _without(trace, calls[len(calls) // 4 :: 10])


def _ops(trace: dict[str, Any]) -> dict[str, Any]:
    """Drop the ops of the middle fifth."""
    ops = sorted((event for event in trace["traceEvents"] if event.get("cat") == "cpu_op"), key=lambda e: e["ts"])
    return _without(trace, ops[2 * len(ops) // 5 : 3 * len(ops) // 5])


def _jump(trace: dict[str, Any]) -> dict[str, Any]:
    """Shift everything that starts after the middle of the trace by 50 ms."""
    times = sorted(event["ts"] for event in trace["traceEvents"] if event.get("ph") == "X")
    middle = times[len(times) // 2]
    shifted = [event | {"ts": event["ts"] + 50_000} if event.get("ts", 0) > middle else event
               for event in trace["traceEvents"]]  # fmt: skip
    return trace | {"traceEvents": shifted}


def marks_of(trace: dict[str, Any]) -> list[Event]:
    """List the step marks of the profiler."""
    return sorted(
        (e for e in trace["traceEvents"] if e.get("cat") == "user_annotation" and "ProfilerStep#" in str(e["name"])),
        key=lambda event: event["ts"],
    )


def _mark(trace: dict[str, Any]) -> dict[str, Any]:
    """Drop the mark of a step in the middle."""
    marks = marks_of(trace)
    return _without(trace, [marks[len(marks) // 2]])


def _last_step(trace: dict[str, Any]) -> dict[str, Any]:
    """Drop everything that starts in the last step or later."""
    begin = marks_of(trace)[-1]["ts"]
    return _without(trace, [event for event in trace["traceEvents"] if event.get("ts", 0) >= begin])


def _calls(trace: dict[str, Any]) -> dict[str, Any]:
    """Drop every fifth collective, with all its host events."""
    posts = [e for e in trace["traceEvents"] if e.get("cat") == "cpu_op" and e["name"] == "record_param_comms"]
    posts = sorted(posts, key=lambda event: event["ts"])[::5]
    spans = [(event["tid"], event["ts"], event["ts"] + event["dur"]) for event in posts]
    inside = [e for e in trace["traceEvents"]
              if e.get("ph") == "X" and any(tid == e["tid"] and a <= e["ts"] <= b for tid, a, b in spans)]  # fmt: skip
    numbers = {correlation(event) for event in inside} - {0}
    return _without(trace, inside + [event for event in work_of(trace) if correlation(event) in numbers])


def _on_all(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Traces], Traces]:
    return lambda traces: {rank: change(trace) for rank, trace in traces.items()}


def _on_last(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Traces], Traces]:
    return lambda traces: traces | {max(traces): change(traces[max(traces)])}


def _copied(traces: Traces) -> Traces:
    """Make the second rank a copy of the first."""
    first, second = sorted(traces)[:2]
    head = traces[second].get("distributedInfo")
    return traces | {second: traces[first] | {"distributedInfo": head}}


DAMAGES: dict[str, Callable[[Traces], Traces]] = {
    "first 15% of linked kernels": _on_all(_first_kernels),
    "every 10th kernel": _on_last(_every_tenth),
    "half of communication": _on_all(_half_of_communication),
    "one stream": _on_last(_one_stream),
    "device cut at 70%": _on_all(_device_cut),
    "all copies": _on_all(_copies),
    "every 10th launch": _on_last(_launches),
    "ops of the middle": _on_last(_ops),
    "clock jump of 50 ms": _on_last(_jump),
    "copied rank": _copied,
    "mark of a step": _on_last(_mark),
    "last step of one rank": _on_last(_last_step),
    "every 5th collective of one rank": _on_last(_calls),
}
"""Ways to damage a run, by what is gone."""


def can_have(damage: str, traces: Traces) -> bool:
    """Return whether a run contains what the damage removes."""
    trace = traces[max(traces)]
    marked = len(marks_of(trace)) >= 3
    has = {
        "half of communication": sum(COMMUNICATES.match(event["name"]) is not None for event in _linked(trace)) >= 10,
        "all copies": len(work_of(trace, "gpu_memcpy")) > 0.02 * len(work_of(trace)),
        "mark of a step": marked,
        "last step of one rank": marked and len(traces) > 1,
        "ops of the middle": any(event.get("cat") == "cpu_op" for event in trace["traceEvents"]),
        "clock jump of 50 ms": marked or len(traces) > 1,
        "copied rank": len(traces) > 1,
    }
    has["every 5th collective of one rank"] = has["half of communication"] and len(traces) > 1
    return has.get(damage, True)
