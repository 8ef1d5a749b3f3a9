"""Do compute, communication and overlap agree with a plain sweep over the raw JSON, on every shared set?

The sweep below knows nothing of ours but the step windows (another test holds those against the marks): it parses
the file again, counts what runs between any two edges, and adds up. On a GPU the categories say what runs. On a CPU
an op stands for itself when it spends at least half of its time outside other ops, and gloo's ranges communicate.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache as kept
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
    pytest.mark.skipif(not TRACES.is_dir(), reason="the corpus of real traces is not beside the project"),
]
COMMUNICATION = re.compile(r"^nccl|multimem_all_reduce")
DEVICE = {"kernel": "compute", "gpu_memcpy": "copy", "gpu_memset": "copy", "mtia_ccp_events": "compute"}
ENCLOSING = re.compile(r"c10d|_c10d_functional|autograd::|torch::autograd|torch::jit|profiler::|symm_mem::|gloo:|nccl:")
PARTS = ("compute", "comm", "copy")


@dataclass(frozen=True)
class Raw:
    """What the file says runs when, by what it is, as (begin, end) in nanoseconds."""

    work: dict[str, list[tuple[int, int]]]
    on_gpu: bool


def nanoseconds(text: str) -> int:
    whole, _, part = text.partition(".")
    return int(whole) * 1000 + int((part + "000")[:3])


@kept
def raw(path: Path) -> Raw:
    with gzip.open(path) as file:
        data = json.loads(file.read().decode("utf-8", "replace"), strict=False, parse_float=str, parse_int=str)
    whole = data if isinstance(data, dict) else {"traceEvents": data}
    base = int(whole.get("baseTimeNanoseconds", 0))
    events = [event for event in whole["traceEvents"] if event.get("ph") == "X"]
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        kind = DEVICE.get(str(event.get("cat", "")))
        if kind:
            name = str(event["name"]).removeprefix("void (anonymous namespace)::")
            talks = event["cat"] == "kernel" and COMMUNICATION.search(name) is not None
            found["comm" if talks else kind].append(span(event, base))
    if found:
        return Raw(found, on_gpu=True)
    found["compute"] = [span(event, base) for event in computing(events)]
    found["comm"] = [span(event, base) for event in events if event.get("cat") == "user_annotation"
                     and str(event["name"]).startswith("gloo:")]  # fmt: skip
    return Raw(found, on_gpu=False)


def span(event: dict[str, Any], base: int) -> tuple[int, int]:
    start = base + nanoseconds(event["ts"])
    return start, start + nanoseconds(event["dur"])


def computing(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Find the ops that compute, thread by thread, with a stack."""
    threads: dict[Any, list[tuple[int, int, bool, dict[str, Any]]]] = defaultdict(list)
    for event in events:
        name, category = str(event.get("name", "")), event.get("cat")
        paced = category == "user_annotation" and name.startswith("pace::")
        if paced or (category == "cpu_op" and "::" in name and not ENCLOSING.match(name)):
            start, end = span(event, 0)
            threads[event["pid"], event["tid"]].append((start, -end, paced, event))
    return [event for listed in threads.values() for event in on_one_thread(sorted(listed, key=lambda e: e[:2]))]


def on_one_thread(listed: list[tuple[int, int, bool, dict[str, Any]]]) -> list[dict[str, Any]]:
    inside: list[int] = [0] * len(listed)
    parent: list[int] = [-1] * len(listed)
    open_: list[int] = []
    for place, (start, minus_end, _, _) in enumerate(listed):
        while open_ and -listed[open_[-1]][1] <= start and not (-minus_end == start == listed[open_[-1]][0]):
            open_.pop()
        if open_:
            parent[place] = open_[-1]
            inside[open_[-1]] += -minus_end - start
        open_.append(place)
    taken: list[bool] = []
    for place, (start, minus_end, paced, _) in enumerate(listed):
        above = parent[place] >= 0 and taken[parent[place]]
        taken.append(above or paced or 2 * inside[place] <= -minus_end - start)
    return [listed[place][3] for place in range(len(listed))
            if taken[place] and not (parent[place] >= 0 and taken[parent[place]])]  # fmt: skip


def swept(work: dict[str, list[tuple[int, int]]], low: int, high: int) -> dict[str, int]:
    """Count what runs between any two edges inside a window, and add up."""
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
    """Take all ranks of GPU runs; of the large CPU ones the first and the last."""
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
                # A receive that waits for its peer, and a send that its receiver already has, are no communication.
                assert ours["compute"] == plain["compute"]
                assert ours["exposed"] <= plain["exposed"]
                assert ours["exposed"] + ours["idle"] == plain["exposed"] + plain["idle"]
            else:
                assert ours == plain, (file.rank, int(parts.step[row]))
            checked += 1
    assert checked or "unavailable" in path or "non_gpu" in path
    raw.cache_clear()


@pytest.mark.parametrize("path", ["megatron-tp8-a100", "nanogpt-compare/after"])
def test_the_overlap_fraction_is_the_plain_sweeps(path: str, cache: Path) -> None:
    """Hidden over all, as the report shows it: by rank, and over all ranks and steps."""
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
