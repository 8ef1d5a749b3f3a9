"""Compute, communication and overlap compared with a plain sweep over the raw JSON of every shared set.

The sweep uses our step windows, which another test compares with the marks, and nothing else of ours. It parses the
file again, determines what runs between any two edges, and adds up. On a GPU, categories distinguish the work. On a
CPU, an op computes if it spends at least half of its time outside other ops, and gloo's ranges communicate.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from corpus_sets import TRACES, sets

import usp_prof
from usp_prof.analyses import breakdown, overlap

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.run import Run

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not TRACES.is_dir(), reason="the corpus of real traces is not available next to the project"),
]
COMMUNICATION = re.compile(r"^nccl|multimem_all_reduce")
DEVICE = {"kernel": "compute", "gpu_memcpy": "copy", "gpu_memset": "copy", "mtia_ccp_events": "compute"}
WAITING = re.compile(r"_c10d_functional(_autograd)?::wait")
ENCLOSING = re.compile(r"c10d|_c10d_functional|autograd::|torch::autograd|torch::jit|profiler::|symm_mem::|gloo:|nccl:")
PARTS = ("compute", "comm", "copy")


@dataclass(frozen=True)
class Raw:
    """Ranges of work in a file by kind, as (begin, end) in nanoseconds."""

    work: dict[str, list[tuple[int, int]]]
    on_gpu: bool


def nanoseconds(text: str) -> int:
    microseconds, _, part = text.partition(".")
    return int(microseconds) * 1000 + int((part + "000")[:3])


@cache
def raw(path: Path) -> Raw:
    with gzip.open(path) as file:
        data = json.loads(file.read().decode("utf-8", "replace"), strict=False, parse_float=str, parse_int=str)
    document = data if isinstance(data, dict) else {"traceEvents": data}
    base = int(document.get("baseTimeNanoseconds", 0))
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    ranges: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        kind = DEVICE.get(str(event.get("cat", "")))
        if kind:
            name = str(event["name"]).removeprefix("void (anonymous namespace)::")
            talks = event["cat"] == "kernel" and COMMUNICATION.search(name) is not None
            ranges["comm" if talks else kind].append(span(event, base))
    if ranges:
        return Raw(ranges, on_gpu=True)
    ranges["compute"] = [span(event, base) for event in computing(events)]
    ranges["comm"] = [span(event, base) for event in events if event.get("cat") == "user_annotation"
                     and str(event["name"]).startswith("gloo:")]  # fmt: skip
    return Raw(ranges, on_gpu=False)


def span(event: dict[str, Any], base: int) -> tuple[int, int]:
    start = base + nanoseconds(event["ts"])
    return start, start + nanoseconds(event["dur"])


def computing(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Find the ops that compute, thread by thread, with a stack."""
    threads: dict[Any, list[tuple[int, int, bool, dict[str, Any]]]] = defaultdict(list)
    for event in events:
        name, category = str(event.get("name", "")), event.get("cat")
        paced = category == "user_annotation" and name.startswith("pace::")
        is_work = "::" in name and (WAITING.match(name) is not None or not ENCLOSING.match(name))
        if paced or (category == "cpu_op" and is_work):
            start, end = span(event, 0)
            threads[event["pid"], event["tid"]].append((start, -end, paced, event))
    return [
        event
        for thread_events in threads.values()
        for event in on_one_thread(sorted(thread_events, key=lambda e: e[:2]))
    ]


def on_one_thread(thread_events: list[tuple[int, int, bool, dict[str, Any]]]) -> list[dict[str, Any]]:
    inside: list[int] = [0] * len(thread_events)
    parent: list[int] = [-1] * len(thread_events)
    waits = [WAITING.match(str(event["name"])) is not None for *_, event in thread_events]
    open_: list[int] = []
    for place, (start, minus_end, _, _) in enumerate(thread_events):
        while (
            open_ and -thread_events[open_[-1]][1] <= start and not (-minus_end == start == thread_events[open_[-1]][0])
        ):
            open_.pop()
        if open_:
            parent[place] = open_[-1]
            inside[open_[-1]] += -minus_end - start
        for around in open_ if waits[place] else ():  # an op that waits is not compute
            waits[around] = True
        open_.append(place)
    is_taken: list[bool] = []
    for place, (start, minus_end, paced, _) in enumerate(thread_events):
        above = parent[place] >= 0 and is_taken[parent[place]]
        is_whole = not waits[place] and 2 * inside[place] <= -minus_end - start
        is_taken.append(above or paced or is_whole)
    return [thread_events[place][3] for place in range(len(thread_events))
            if is_taken[place] and not (parent[place] >= 0 and is_taken[parent[place]])]  # fmt: skip


def swept(work: dict[str, list[tuple[int, int]]], low: int, high: int) -> dict[str, int]:
    """Add up what runs between all pairs of adjacent edges inside a window."""
    clipped = {kind: [(max(a, low), min(b, high)) for a, b in work.get(kind, ()) if min(b, high) > max(a, low)]
               for kind in PARTS}  # fmt: skip
    edges = np.unique([low, high, *(edge for spans in clipped.values() for pair in spans for edge in pair)])
    length = np.diff(edges)
    runs = {}
    for kind, spans in clipped.items():
        change = np.zeros(len(edges), np.int64)
        np.add.at(change, np.searchsorted(edges, [a for a, _ in spans]), 1)
        np.add.at(change, np.searchsorted(edges, [b for _, b in spans]), -1)
        runs[kind] = np.cumsum(change)[:-1] > 0
    return {
        "compute": int(length[runs["compute"]].sum()),
        "comm": int(length[runs["comm"]].sum()),
        "hidden": int(length[runs["comm"] & runs["compute"]].sum()),
        "exposed": int(length[runs["comm"] & ~runs["compute"]].sum()),
        "copy": int(length[runs["copy"] & ~runs["comm"] & ~runs["compute"]].sum()),
        "idle": int(length[~(runs["copy"] | runs["comm"] | runs["compute"])].sum()),
    }


def read_ranks(run: Run, *, on_gpu: bool) -> list[Any]:
    """Return all ranks of GPU runs, and the first and last ranks of large CPU runs."""
    return list(run.files) if on_gpu or len(run.files) <= 2 else [run.files[0], run.files[-1]]


@pytest.mark.parametrize(("path", "name"), sets())
def test_every_set_agrees_with_the_plain_sweep_to_the_nanosecond(path: str, name: str, cache: Path) -> None:
    run = usp_prof.open_run(TRACES / path, run=name, cache_dir=cache)
    parts = breakdown.compute(run.tables).parts
    on_gpu = raw(run.files[0].path).on_gpu
    piped = "pp" in parts.axes
    checked = 0
    for file in read_ranks(run, on_gpu=on_gpu):
        work = raw(file.path).work
        for row in np.flatnonzero(parts.rank == file.rank).tolist():
            plain = swept(work, int(parts.start[row]), int(parts.end[row]))
            ours = {
                "compute": parts.compute[row], "comm": parts.any_comm[row], "exposed": parts.exposed[row].sum(),
                "copy": parts.memcpy[row], "idle": parts.idle[row].sum(),
                "hidden": parts.any_comm[row] - parts.exposed[row].sum(),
            }  # fmt: skip
            if piped and not on_gpu:
                # A receive that waits for its peer, and a send that was already received, are not communication.
                assert ours["compute"] == plain["compute"]
                assert ours["exposed"] <= plain["exposed"]
                assert ours["exposed"] + ours["idle"] == plain["exposed"] + plain["idle"]
            else:
                assert ours == plain, (file.rank, int(parts.step[row]))
            checked += 1
    assert checked or "unavailable" in path or "non_gpu" in path
    raw.cache_clear()


@pytest.mark.parametrize("path", ["megatron-tp8-a100", "nanogpt-compare/after"])
def test_the_overlap_fraction_equals_the_plain_sweep(path: str, cache: Path) -> None:
    """Return hidden over all communication, as in the report: by rank, and over all ranks and steps."""
    run = usp_prof.open_run(TRACES / path, cache_dir=cache)
    parts = breakdown.compute(run.tables).parts
    hidden: dict[int | None, int] = defaultdict(int)
    comm: dict[int | None, int] = defaultdict(int)
    for file in run.files:
        for row in np.flatnonzero(parts.rank == file.rank).tolist():
            plain = swept(raw(file.path).work, int(parts.start[row]), int(parts.end[row]))
            for rank in (file.rank, None):
                hidden[rank] += plain["hidden"]
                comm[rank] += plain["comm"]
    raw.cache_clear()
    values = {v.dims.get("rank"): v.value for v in overlap.compute(run.tables).values()
              if v.metric is overlap.OVERLAP_FRACTION and set(v.dims) <= {"rank"}}  # fmt: skip
    assert values == pytest.approx({rank: hidden[rank] / comm[rank] for rank in (*run.ranks, None)})
