"""Chrome events: tables as JSON text, all events of a rank at once.

Viewers draw ranges of one thread as a stack, so ranges that overlap without nesting go to separate lanes. Times start
at the run's first event, because viewers read them as floats; `baseTimeNanoseconds` has the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.lanes import nest, split_lanes
from usp_prof.columns.rows import first_rows, group_codes
from usp_prof.model.printable import printable

_PASSES = 16
_FLOW = 1 << 32


@dataclass(frozen=True, slots=True)
class Placed:
    """The events of one rank with a process and thread number each, ready to be written."""

    events: pa.Table
    start_ns: Ints
    process: Ints
    thread: Ints
    metadata: tuple[str, ...]


def place(rank: int, title: str, events: pa.Table, threads: pa.Table, start_ns: Ints) -> Placed:
    """Assign each event its process and thread; lanes of one thread are adjacent."""
    processes, process_code = _codes(events, "process")
    _, thread_code = _codes(events, "thread")
    track = group_codes(process_code, thread_code)
    durations = np.maximum(events["dur_ns"].to_numpy(), 0)
    lane = nesting_lanes(track, start_ns, durations)
    place_code = group_codes(track, lane)
    first = first_rows(place_code)
    names = {(row["process"], row["thread"]): row for row in threads.to_pylist()}
    labels = {row["process"]: row["process_name"] or row["process_labels"] for row in threads.to_pylist()}
    base = 1000 * (rank + 1)
    metadata: list[str] = []
    for code, name in enumerate(processes):
        label = f"rank {rank}{title}: {labels.get(name) or name}"
        metadata += [
            _metadata("process_name", base + code, 0, name=label),
            _metadata("process_sort_index", base + code, 0, sort_index=base + code),
        ]
    texts = events.select(["process", "thread"]).take(pa.array(first)).to_pylist()
    for code, (row, text) in enumerate(zip(first.tolist(), texts, strict=True)):
        thread_row = names.get((text["process"], text["thread"]), {})
        label = thread_row.get("thread_name") or text["thread"]
        label += f" (overlap {lane[row]})" if lane[row] else ""
        pid = base + int(process_code[row])
        # Perfetto counts an empty name as an import error.
        metadata += [_metadata("thread_name", pid, code, name=label)] if label else []
        metadata.append(_metadata("thread_sort_index", pid, code, sort_index=code))
    return Placed(events, start_ns, base + process_code, place_code, tuple(metadata))


def event_texts(rank_events: Placed, zero_ns: int) -> pa.Array:
    """Return each event as JSON text, with its process and thread in the merged trace."""
    events = rank_events.events
    texts = {name: json_texts(events, name, _json_text) for name in ("phase", "category", "name")}
    place = {"process": _number(rank_events.process), "thread": _number(rank_events.thread)}
    return joined_fields(events, {**texts, **place}, rank_events.start_ns - zero_ns)


def joined_fields(events: pa.Table, json_of: Mapping[str, pa.Array], start_ns: Ints) -> pa.Array:
    """Return each event as JSON text; `json_of` has its phase, category, name, process and thread as JSON."""
    args = events["args"].combine_chunks() if events.num_rows else pa.array([], pa.string())
    parts: list[Any] = [
        '{"ph":', json_of["phase"], ',"cat":', json_of["category"], ',"name":', json_of["name"],
        ',"pid":', json_of["process"], ',"tid":', json_of["thread"],
        ',"ts":', _microseconds(start_ns), _duration(events["dur_ns"].to_numpy()),
        ',"args":', pc.if_else(pc.equal(args, ""), "{}", args), "}",
    ]  # fmt: skip
    return pc.binary_join_element_wise(*parts, "")


def json_texts(events: pa.Table, name: str, write: Callable[[str], str]) -> pa.Array:
    """Return a column of texts as JSON; each distinct text is encoded once."""
    values, codes = _codes(events, name)
    return pa.array([write(value) for value in values], pa.string()).take(pa.array(codes))


def flow_texts(rank: int, of_rank: Placed, links: Ints, zero_ns: int) -> list[str]:
    """Return the arrows from launches to their work; `links` has pairs of event rows (launch, work)."""
    if not len(links):
        return []
    ids = _number(np.arange(len(links)) + rank * _FLOW)
    out: list[str] = []
    for phase, rows in (('"s"', links[:, 0]), ('"f","bp":"e"', links[:, 1])):
        parts = [
            f'{{"ph":{phase},"cat":"launch","name":"launch","id":', ids, ',"pid":', _number(of_rank.process[rows]),
            ',"tid":', _number(of_rank.thread[rows]), ',"ts":', _microseconds(of_rank.start_ns[rows] - zero_ns), "}",
        ]  # fmt: skip
        out += pc.binary_join_element_wise(*parts, "").to_pylist()
    return out


def nesting_lanes(track: Ints, start: Ints, duration: Ints) -> Ints:
    """Return lanes on which ranges nest but never cross; lane 0 is the thread itself."""
    lanes = np.zeros(len(track), np.int64)
    left, lane = np.arange(len(track)), 0  # rows without a lane yet, and the lane being filled
    while len(left):
        stay, crossing = left, left[:0]
        for _ in range(_PASSES):
            crosses = _crossing(track[stay], start[stay], duration[stay])
            if not crosses.any():
                break
            crossing = np.concatenate([crossing, stay[crosses]])
            stay = stay[~crosses]
        else:  # too many crossings for one search each: use lanes without nesting
            lanes[stay] = lane + split_lanes(track[stay], start[stay], start[stay] + duration[stay])
            lane = int(lanes[stay].max(initial=lane))
        lanes[stay] = np.maximum(lanes[stay], lane)
        left, lane = np.sort(crossing), lane + 1
    return lanes


def _crossing(track: Ints, start: Ints, duration: Ints) -> Flags:
    """Mark ranges that start inside another and end after it: the first of each track, and possibly more."""
    parent = nest(track, start, duration).parent
    end = start + duration
    inside = parent >= 0
    out = np.zeros(len(track), bool)
    around = end[parent[inside]]
    out[inside] = (end[inside] > around) & (start[inside] < around)
    return out


def _codes(events: pa.Table, name: str) -> tuple[list[str], Ints]:
    column = events[name].combine_chunks()
    column = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
    if isinstance(column, pa.ChunkedArray):
        column = pa.array([], pa.string()).dictionary_encode()
    return column.dictionary.to_pylist(), column.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _json_text(value: object) -> str:
    """Encode letters without escapes: Perfetto shows some escapes literally. Control characters become visible."""
    return printable(json.dumps(value, ensure_ascii=False))


def _number(values: Ints) -> pa.Array:
    return pa.array(values).cast(pa.string())


def _microseconds(ns: Ints) -> pa.Array:
    microseconds, rest = np.divmod(ns, 1000)
    return pc.binary_join_element_wise(_number(microseconds), pc.utf8_lpad(_number(rest), 3, "0"), ".")


def _duration(ns: Ints) -> pa.Array:
    text = pc.binary_join_element_wise(',"dur":', _microseconds(np.maximum(ns, 0)), "")
    return pc.if_else(pa.array(ns >= 0), text, "")


def _metadata(kind: str, pid: int, tid: int, /, **args: Any) -> str:  # noqa: ANN401 - a name or a number
    return _json_text({"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": args})
