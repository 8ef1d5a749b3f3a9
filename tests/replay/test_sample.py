"""A sample of a run's steps: part of the graph that replays as measured, refused where it does not stand for all."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_faults import long_run_with, run_with

from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import EdgeKind, Graph, NodeKind
from usp_prof.replay.longest_path import replay
from usp_prof.replay.recorded import unedited
from usp_prof.replay.sample import COUNTED, LEAD, LONG, STRETCHES, WIDTH, Recorded, sample_of
from usp_prof.replay.steady import SURE, saving
from usp_prof.replay.step_times import step_times
from usp_prof.tables.catalogue import RUN_TABLES, SCHEMAS
from usp_prof.tables.table_set import MemorySource, TableSet
from usp_prof.whatif.edited import as_recorded

if TYPE_CHECKING:
    from usp_prof.run import Run

FAULTS = ["slow_rank", "late_input"]


@cache
def recorded(fault: str) -> Recorded:
    """Give the sample of a long run."""
    found = sample_of(long_run_with(fault).tables)
    assert found is not None
    return found


def saved(fault: str, graph: Graph) -> float | None:
    """Say what a step saves, by the sample."""
    part = recorded(fault).sample.narrowed(graph)
    mean = unedited(long_run_with(fault).tables).mean_measured_ns
    return saving(recorded(fault), graph, replay(part), mean)


def wholly(fault: str, graph: Graph) -> float:
    """Say what a step saves, by a replay of all steps."""
    tables = long_run_with(fault).tables
    before = unedited(tables)
    return before.mean_replayed_ns - step_times(tables, graph, replay(graph)).mean_replayed_ns


def test_a_short_run_is_no_sample_of_anything() -> None:
    assert sample_of(run_with("clean").tables) is None


@pytest.mark.parametrize("fault", FAULTS)
def test_the_sample_of_the_recorded_run_replays_as_measured(fault: str) -> None:
    found = recorded(fault)
    np.testing.assert_array_equal(found.timeline.start, found.graph.nodes.start)
    np.testing.assert_array_equal(found.timeline.end, found.graph.nodes.end)


@pytest.mark.parametrize("fault", FAULTS)
def test_stretches_lie_apart_and_count_their_inner_steps(fault: str) -> None:
    sample = recorded(fault).sample
    assert len(sample.stretch) >= LONG
    assert np.bincount(sample.stretch[sample.stretch >= 0]).tolist() == [WIDTH] * STRETCHES
    for number in range(STRETCHES):
        mine = np.flatnonzero(sample.stretch == number)
        assert np.flatnonzero(sample.counted[mine]).tolist() == list(range(LEAD, LEAD + COUNTED))
    lanes = sample.nodes.lane
    np.testing.assert_array_equal(lanes % STRETCHES, sample.stretch[sample.step[sample.rows]])
    assert (np.diff(sample.nodes.start)[lanes[1:] == lanes[:-1]] >= 0).all()
    whole = np.isin(sample.nodes.call, np.unique(sample.base.nodes.call)) & (sample.nodes.call >= 0)
    np.testing.assert_array_equal(whole, sample.whole)


@settings(max_examples=25, deadline=None)
@given(
    fault=st.sampled_from(FAULTS),
    kind=st.sampled_from([NodeKind.COMPUTE, NodeKind.COMMUNICATION, NodeKind.HOST]),
    rank=st.integers(-1, 3),
    factor=st.floats(0.3, 1.6),
    every=st.integers(1, 40),
    dropped=st.sampled_from([None, EdgeKind.LAUNCH, EdgeKind.WAIT, EdgeKind.SYNC]),
)
def test_what_a_sample_says_all_steps_say(
    fault: str, kind: NodeKind, rank: int, factor: float, every: int, dropped: EdgeKind | None
) -> None:
    """Scale some nodes in every so many steps, and drop edges: the sample stands for that, or is refused.

    A run settles in its first steps, and nothing holds up the end of its last: these are in no stretch.
    """
    graph, sample = graph_of(long_run_with(fault).tables), recorded(fault).sample
    rows = (graph.nodes.kind == kind) & (sample.step % every == 0)
    if rank >= 0:
        rows &= graph.nodes.rank == rank
    scaled = [np.where(rows, each * factor, each).astype(np.int64) for each in (graph.duration, graph.transfer)]
    edges = graph.edges if dropped is None else graph.edges.take(graph.edges.kind != dropped)
    changed = graph.with_changes(duration=scaled[0], transfer=scaled[1], edges=edges)
    found = saved(fault, changed)
    if found is not None:
        mean = unedited(long_run_with(fault).tables).mean_measured_ns
        ends = 2 * abs(found) / len(sample.stretch)
        assert abs(found - wholly(fault, changed)) <= 2 * SURE * mean + ends


def test_steps_that_one_rank_alone_has_are_left_out() -> None:
    run = long_run_with("slow_rank")
    short = {rank: run.tables.arrow("steps", [rank]) for rank in run.ranks}
    short[2] = short[2].slice(0, len(short[2]) - 4)
    found = sample_of(_with_steps(run, short))
    assert found is not None
    assert len(found.sample.labels) == len(found.sample.stretch) == 56
    np.testing.assert_array_equal(found.timeline.end, found.graph.nodes.end)
    short[1] = pa.concat_tables([short[1].slice(0, 30), short[1].slice(31)])
    assert sample_of(_with_steps(run, short)) is None  # rank 1 has a hole where the others have a step


def _with_steps(run: Run, steps: dict[int, pa.Table]) -> TableSet:
    names = [schema.name for schema in SCHEMAS if schema.name not in {*RUN_TABLES, "steps"}]
    sources = {
        rank: MemorySource({"steps": steps[rank]} | {name: run.tables.arrow(name, [rank]) for name in names})
        for rank in run.ranks
    }
    return TableSet(sources, manifest=run.manifest, topology=run.tables.topology)


def test_a_change_of_all_steps_alike_is_told_by_the_sample() -> None:
    graph = graph_of(long_run_with("slow_rank").tables)
    assert (
        saved("slow_rank", graph.with_changes(duration=graph.duration // 2, transfer=graph.transfer // 2)) is not None
    )


def test_a_change_of_steps_outside_is_refused() -> None:
    sample = recorded("slow_rank").sample
    outside = (sample.stretch[sample.step] < 0) & (sample.base.nodes.kind == NodeKind.COMPUTE)
    changed = sample.base.with_changes(duration=np.where(outside, 0, sample.base.duration))
    assert saved("slow_rank", changed) is None


def test_a_lane_that_falls_behind_is_refused() -> None:
    """The device gets faster and its host does not: launches that are early enough now would be late some steps on."""
    graph = graph_of(long_run_with("slow_rank").tables)
    host = np.isin(graph.nodes.kind, (NodeKind.HOST, NodeKind.RETURN))
    faster = graph.with_changes(
        duration=np.where(host, graph.duration, graph.duration // 4),
        transfer=graph.transfer // 4,
        edges=graph.edges.take(graph.edges.kind != EdgeKind.LAUNCH),
    )
    assert saved("slow_rank", faster) is not None
    assert saved("slow_rank", faster.with_changes(earliest=np.where(host, graph.nodes.start, graph.earliest))) is None


def test_the_graph_as_recorded_saves_nothing() -> None:
    assert saved("slow_rank", as_recorded(long_run_with("slow_rank").tables).graph) == 0
