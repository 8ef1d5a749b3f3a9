"""Where does the time of real runs go? Held against a plain sweep over the raw JSON, and against what is known."""

from __future__ import annotations

import gzip
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import usp_prof
from usp_prof.algebra.schedules.orders import Schedule
from usp_prof.analyses import (
    breakdown,
    clock,
    collectives,
    critical_path,
    overlap,
    pipeline,
    step_time,
    stragglers,
)
from usp_prof.readers.discovery import discover

if TYPE_CHECKING:
    from usp_prof.run import Run

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not TRACES.is_dir(), reason="the corpus of real traces is not beside the project"),
]
ANALYSES = (breakdown, clock, collectives, critical_path, overlap, pipeline, step_time, stragglers)
GPU = (
    "megatron-tp8-a100", "megatron-tp2-v100", "param-dlrm-8r", "torchrec-4r-v100", "nanogpt-compare/after",
    "single/b200-eager", "single/h100-qwen", "single/mi300-resnet", "single/v100-rank1-of-2", "odd/nccl_parser_config",
    "odd/ns_resolution_trace",
)  # fmt: skip
COMMUNICATION = re.compile(r"nccl|multimem_all_reduce")


def sets() -> list[tuple[str, str]]:
    if not TRACES.is_dir():
        return []
    nested = ("gloo", "single", "odd", "nanogpt-compare")
    tops = [p for p in sorted(TRACES.iterdir()) if p.name not in (*nested, "straggler-timelines")]
    paths = tops + [p for name in nested for p in sorted((TRACES / name).iterdir()) if p.is_dir()]
    return [(str(path.relative_to(TRACES)), run.name) for path in paths for run in discover(path).runs]


@pytest.mark.parametrize(("path", "name"), sets())
def test_every_set_is_analysed_and_its_parts_add_up(path: str, name: str, cache: Path) -> None:
    tables = usp_prof.open_run(TRACES / path, run=name, cache_dir=cache).tables
    parts = breakdown.compute(tables).parts
    total = parts.compute + parts.exposed.sum(axis=1) + parts.memcpy + parts.idle.sum(axis=1)
    assert total.tolist() == parts.wall.tolist()
    for figures in (parts.compute, parts.exposed, parts.memcpy, parts.idle, parts.comm - parts.exposed):
        assert (figures >= 0).all()
    for analysis in ANALYSES:
        result = analysis.compute(tables)
        values = result.values()
        assert all(np.isfinite(v.value) for v in values)
        assert all(set(v.dims) <= set(v.metric.dims) and v.metric in analysis.METRICS for v in values)
        assert len({(v.metric.id, *sorted(v.dims.items())) for v in values}) == len(values)
        result.to_pandas()


def nanoseconds(text: str) -> int:
    whole, _, part = text.partition(".")
    return int(whole) * 1000 + int((part + "000")[:3])


def device_work(path: Path) -> list[tuple[str, int, int]]:
    """Take the device events of a file the plain way: what they are, begin and end."""
    with gzip.open(path) as file:
        text = file.read().decode("utf-8", "replace")
    data = json.loads(text, strict=False, parse_float=str, parse_int=str)
    base = int(data.get("baseTimeNanoseconds", 0))
    found = []
    for event in data["traceEvents"]:
        kind = {"kernel": "compute", "gpu_memcpy": "copy", "gpu_memset": "copy"}.get(str(event.get("cat", "")))
        if event.get("ph") == "X" and kind:
            start = base + nanoseconds(event["ts"])
            talks = kind == "compute" and COMMUNICATION.search(event["name"]) is not None
            found.append(("comm" if talks else kind, start, start + nanoseconds(event["dur"])))
    return found


def swept(work: list[tuple[str, int, int]], low: int, high: int) -> dict[str, int]:
    """Sweep over all begins and ends inside a window, counting what runs."""
    edges = sorted({low, high, *(t for _, a, b in work for t in (a, b) if low < t < high)})
    changes: dict[int, list[tuple[str, int]]] = {}
    for kind, start, end in work:
        if min(end, high) > max(start, low):
            changes.setdefault(max(start, low), []).append((kind, 1))
            changes.setdefault(min(end, high), []).append((kind, -1))
    running, total = (
        {"compute": 0, "comm": 0, "copy": 0},
        dict.fromkeys(("compute", "comm", "exposed", "copy", "idle"), 0),
    )
    for at, after in pairwise(edges):
        for kind, change in changes.get(at, ()):
            running[kind] += change
        length = after - at
        total["compute"] += length if running["compute"] else 0
        total["comm"] += length if running["comm"] else 0
        total["exposed"] += length if running["comm"] and not running["compute"] else 0
        total["copy"] += length if running["copy"] and not running["comm"] and not running["compute"] else 0
        total["idle"] += length if not any(running.values()) else 0
    return total


@pytest.mark.parametrize("path", GPU)
def test_compute_communication_and_overlap_are_those_of_a_plain_sweep(path: str, cache: Path) -> None:
    run = usp_prof.open_run(TRACES / path, cache_dir=cache)
    parts = breakdown.compute(run.tables).parts
    for file in run.files[:2]:  # the plain way is slow
        work = device_work(file.path)
        for row in np.flatnonzero(parts.rank == file.rank).tolist():
            assert swept(work, int(parts.start[row]), int(parts.end[row])) == {
                "compute": parts.compute[row], "comm": parts.any_comm[row], "exposed": parts.exposed[row].sum(),
                "copy": parts.memcpy[row], "idle": parts.idle[row].sum(),
            }  # fmt: skip


def opened(path: str, cache: Path) -> Run:
    return usp_prof.open_run(TRACES / path, cache_dir=cache)


def test_megatron_tp8_is_held_up_by_ranks_0_and_6(cache: Path) -> None:
    """HTA names their victims, others crash: 0 and 6 arrive last and wait least in NCCL."""
    tables = opened("megatron-tp8-a100", cache).tables
    result = stragglers.compute(tables)
    assert {c.rank for c in result.culprits[:2]} == {0, 6}
    share = {late.rank: late.late / late.calls for late in result.lateness}
    assert share[0] == pytest.approx(32 / 84)
    way = critical_path.compute(tables)
    spent = {rank: sum(s.ns for s in way.shares if s.rank == rank) for rank in tables.ranks}
    assert {rank for rank, ns in spent.items() if ns > 0.3 * way.length_ns} == {0, 6}
    host = sum(s.ns for s in way.shares if s.part == "idle:host")
    assert 0.3 < host / way.length_ns < 0.8  # not "cpu_bound 100 %"
    assert clock.compute(tables).clock.residual_p50_ns.max() < 20_000


def test_the_recorded_straggler_is_named(cache: Path) -> None:
    result = stragglers.compute(opened("gloo/dp4-zero3-straggler-r2-4r", cache).tables)
    assert result.culprits[0].rank == 2
    late = {row.rank: (row.late, row.calls) for row in result.lateness}
    assert late[2] == (24, 54)
    values = collectives.compute(opened("gloo/dp4-zero3-straggler-r2-4r", cache).tables).values()
    per_rank = [v for v in values if v.metric is collectives.WAIT_TIME and set(v.dims) == {"rank"}]
    waits = {v.dims["rank"]: v.value for v in per_rank}
    assert min(waits, key=lambda rank: waits[rank]) == 2


@pytest.mark.parametrize(("name", "schedule", "measured", "ideal"), [
    ("1F1B", Schedule.ONE_F_ONE_B, (0.28, 0.30), 3 / 11),
    ("GPipe", Schedule.GPIPE, (0.295, 0.32), 3 / 11),
    ("InterleavedZeroBubble", Schedule.INTERLEAVED_ZB, (0.10, 0.13), 3 / 51),
])  # fmt: skip
def test_paced_pipelines_show_their_schedules_bubble(
    name: str, schedule: Schedule, measured: tuple[float, float], ideal: float, cache: Path
) -> None:
    result = pipeline.compute(opened(f"gloo/pp4-paced-{name}-4r", cache).tables)
    assert (result.schedule.schedule, result.schedule.likeness) == (schedule, 1)
    assert measured[0] < result.bubble_fraction() < measured[1]
    assert result.bubbles.textbook == pytest.approx(ideal)
    assert result.bubbles.balanced == pytest.approx(ideal, abs=0.002)
    assert ideal - 0.001 < result.bubbles.measured < result.bubble_fraction()


def test_megatrons_all_reduce_bandwidth_is_plausible_for_its_links(cache: Path) -> None:
    """64 MiB over eight A100: between 60 % of the links' peak and the peak."""
    kinds: list[Any] = list(collectives.compute(opened("megatron-tp8-a100", cache).tables).kinds)
    largest = max(kinds, key=lambda kind: kind.size_bytes)
    assert largest.size_bytes == 1 << 26
    assert 0.6 < largest.link_fraction < 1
