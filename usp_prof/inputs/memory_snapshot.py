"""Memory snapshots of PyTorch's allocator: segments, and the history of allocations and frees.

`torch.cuda.memory._dump_snapshot` writes a pickle. It is read without running any code that it names: only plain
containers, numbers and strings are allowed.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from usp_prof import limits
from usp_prof.model.errors import InputError
from usp_prof.model.files import read_bytes
from usp_prof.model.memory_snapshot import MemorySnapshot, Site

_TAKES = {"alloc": 1, "free_completed": -1}
_HOLDS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_LIBRARY = ("/torch/", "/site-packages/", "/dist-packages/", "<frozen")
_SITES = 100


class _Plain(pickle.Unpickler):
    """An unpickler that rejects every class and function: a snapshot needs none."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - never returns
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def read_memory_snapshot(path: Path) -> tuple[MemorySnapshot, ...]:
    """Read a snapshot; return one entry per device that has memory or a history."""
    try:
        text = _checked(path)
        data = _Plain(io.BytesIO(text)).load()
        segments, traces = data["segments"], data.get("device_traces", [])
        _check_lengths(len(text), segments, traces)
        segments_of: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for segment in segments:
            segments_of[_number(segment, "device", limits.LOCAL_DEVICE)].append(segment)
        history_of = {device: trace for device, trace in enumerate(traces) if trace}
        devices = sorted({*segments_of, *history_of})
        return tuple(_of_device(number, segments_of.get(number, []), history_of.get(number, [])) for number in devices)
    except (
        OSError,
        pickle.UnpicklingError,
        EOFError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        LookupError,
        OverflowError,
        RecursionError,
        MemoryError,
    ) as error:
        raise InputError(
            f"{path} is not a memory snapshot: {error}", hint="torch.cuda.memory._dump_snapshot(FILE) writes one"
        ) from error


def _checked(path: Path) -> bytes:
    """Read the pickle's bytes; reject a pickle that would allocate more memory than it has bytes, before loading it.

    The unpickler allocates memory up to the highest memo index (`PUT`), however few items there are. Checking all
    operations takes 0.2 s per megabyte.
    """
    text = read_bytes(path, "memory snapshot", "torch.cuda.memory._dump_snapshot(FILE) writes one")
    places = limits.Range(0, len(text))
    for operation, argument, _ in pickletools.genops(text):
        if "PUT" in operation.name and not places.holds(argument):
            raise pickle.UnpicklingError(f"it notes something under number {str(argument)[:24]}")
    return text


def _check_lengths(size: int, segments: list[dict[str, Any]], traces: list[list[dict[str, Any]]]) -> None:
    """Reject lists with more items than the file has bytes: a pickle can reference one long list thousands of times.

    Every block and event of a recorded snapshot takes several bytes.
    """
    n_entries = sum(len(segment.get("blocks", [])) for segment in segments) + sum(map(len, traces))
    if n_entries > size or len(traces) > limits.LOCAL_DEVICE.high + 1:
        raise ValueError(f"its {size} bytes name {n_entries} blocks and events of {len(traces)} devices")


def _number(entry: dict[str, Any], key: str, within: limits.Range = limits.CHANGE) -> int:
    """Return an integer of an entry; raise ValueError if it is outside its range."""
    value = entry[key]
    if not within.holds(value):
        raise ValueError(f"{key}={str(value)[:24]} is not a whole number within {within}")
    return value


def _of_device(device: int, own: list[dict[str, Any]], history: list[dict[str, Any]]) -> MemorySnapshot:
    blocks = [block for segment in own for block in segment.get("blocks", [])]
    free = [_number(block, "size") for block in blocks if str(block["state"]) == "inactive"]
    # Events that allocate or free memory; other events (snapshots, out of memory) change no size.
    size_events = [event for event in history if event["action"] in _TAKES or event["action"] in _HOLDS]
    return MemorySnapshot(
        device=device,
        reserved=sum(_number(segment, "total_size") for segment in own),
        allocated=sum(_number(segment, "allocated_size") for segment in own),
        largest_free=max(free, default=0),
        segments=len(own),
        out_of_memory=sum(1 for event in history if event["action"] == "oom"),
        time_us=np.array([_number({"time_us": -1, **event}, "time_us") for event in size_events], np.int64),
        change=np.array([_TAKES.get(event["action"], 0) * _number(event, "size") for event in size_events], np.int64),
        held_change=np.array(
            [_HOLDS.get(event["action"], 0) * _number(event, "size") for event in size_events], np.int64
        ),
        sites=_sites(own),
    )


def _sites(segments: list[dict[str, Any]]) -> tuple[Site, ...]:
    """Sum the active blocks by the line that allocated them, largest first; empty if no stacks were recorded."""
    sizes_of_line: dict[str, list[int]] = defaultdict(list)
    # Line by the identity of its stack: blocks allocated by the same line share the stack object.
    lines: dict[int, str] = {}
    for segment in segments:
        for block in segment.get("blocks", []):
            if str(block["state"]) == "active_allocated" and block.get("frames"):
                stack = id(block["frames"])
                lines[stack] = lines.get(stack) or _line(block["frames"])
                sizes_of_line[lines[stack]].append(_number(block, "size"))
    sites = [Site(where, sum(sizes), len(sizes)) for where, sizes in sizes_of_line.items()]
    return tuple(sorted(sites, key=lambda site: (-site.bytes, site.where)))[:_SITES]


def _line(frames: list[dict[str, Any]]) -> str:
    """Return the innermost Python line outside of libraries, or the innermost Python line, or the innermost frame."""
    python = [frame for frame in frames if str(frame.get("filename", "")).endswith(".py")]
    own = [frame for frame in python if not any(part in str(frame["filename"]) for part in _LIBRARY)]
    frame = next(iter(own or python or frames))
    name, file = str(frame.get("name", "")), str(frame.get("filename", ""))
    return f"{file.rpartition('/')[2]}:{frame.get('line', 0)} {name}" if python else name or "(unknown)"
