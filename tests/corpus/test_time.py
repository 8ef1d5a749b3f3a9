"""Time breakdown of real runs: sums are exact on every set, and known values match."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from corpus_sets import TRACES, sets

import usp_prof
from usp_prof.analyses import breakdown, clock, collectives, critical_path, overlap, pipeline, step_time, stragglers
from usp_prof.schedule import Schedule

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.run import Run

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not TRACES.is_dir(), reason="the corpus of real traces is not available next to the project"),
]
ANALYSES = (breakdown, clock, collectives, critical_path, overlap, pipeline, step_time, stragglers)


@pytest.mark.parametrize(("path", "name"), sets())
def test_every_set_is_analyzed_and_its_parts_add_up(path: str, name: str, cache: Path) -> None:
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


def opened(path: str, cache: Path) -> Run:
    return usp_prof.open_run(TRACES / path, cache_dir=cache)


def test_ranks_0_and_6_delay_megatron_tp8(cache: Path) -> None:
    """HTA reports their victims, and other tools crash. Ranks 0 and 6 arrive last and wait least in NCCL."""
    tables = opened("megatron-tp8-a100", cache).tables
    result = stragglers.compute(tables)
    assert {c.rank for c in result.culprits[:2]} == {0, 6}
    share = {late.rank: late.late / late.calls for late in result.lateness}
    assert share[0] == pytest.approx(32 / 84)
    way = critical_path.compute(tables)
    spent = {rank: sum(s.ns for s in way.shares if s.rank == rank) for rank in tables.ranks}
    assert {rank for rank, ns in spent.items() if ns > 0.3 * way.length_ns} == {0, 6}
    host = sum(s.ns for s in way.shares if s.part == "idle:host")
    assert 0.3 < host / way.length_ns < 0.8  # not "cpu_bound 100%"
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
    """64 MiB over eight A100: between 60% of the links' peak and the peak."""
    kinds: list[Any] = list(collectives.compute(opened("megatron-tp8-a100", cache).tables).kinds)
    largest = max(kinds, key=lambda kind: kind.size_bytes)
    assert largest.size_bytes == 1 << 26
    assert 0.6 < largest.link_fraction < 1
