from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_faults import FAULTS, run_with

from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import NEVER, EdgeKind, Edges, Graph, NodeKind, Nodes
from usp_prof.replay.longest_path import replay, replay_together
from usp_prof.replay.plan import make_plan
from usp_prof.replay.step_times import unedited


@pytest.mark.parametrize("style", ["nccl", "gloo"])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_unedited_run_is_the_measured_one(fault: str, style: str) -> None:
    tables = run_with(fault, style).tables
    graph = graph_of(tables)
    timeline = replay(graph)
    np.testing.assert_array_equal(timeline.start, graph.nodes.start)
    np.testing.assert_array_equal(timeline.end, graph.nodes.end)
    assert unedited(tables).error.max() == 0
    assert len(unedited(tables).rank) == 4 * 5


def test_ranks_are_connected_by_their_calls() -> None:
    graph = graph_of(run_with("clean").tables)
    assert graph.tied.sum() == 200
    kinds = set(graph.edges.kind.tolist())
    assert {EdgeKind.LAUNCH, EdgeKind.WAIT, EdgeKind.ISSUE, EdgeKind.SYNC} <= kinds


def test_a_delay_reaches_everything_that_depends_on_it() -> None:
    graph = graph_of(run_with("clean").tables)
    node = int(np.flatnonzero((graph.nodes.rank == 0) & (graph.nodes.kind == NodeKind.COMPUTE))[5])
    duration = graph.duration.copy()
    duration[node] += 50_000_000
    late = replay(graph.with_changes(duration=duration))
    moved = late.end - graph.nodes.end
    assert moved.min() >= 0
    assert {int(moved[graph.nodes.rank == rank].max()) for rank in range(4)} <= set(range(40_000_000, 50_000_001))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw small graphs: one lane per rank, edges forward in a common order, calls between lanes."""
    lanes, length = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    count = lanes * length
    numbers = st.integers(0, 20)
    duration = np.array(draw(st.lists(numbers, min_size=count, max_size=count)), np.int64)
    gap = np.array(draw(st.lists(numbers, min_size=count, max_size=count)), np.int64)
    lane = np.repeat(np.arange(lanes), length)
    place = np.tile(np.arange(length), lanes)
    gap[place == 0] = 0
    pairs = draw(
        st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1), numbers, st.booleans()), max_size=8)
    )
    good = [(a, b, lag, end) for a, b, lag, end in pairs if place[a] < place[b]]
    good.sort(key=lambda edge: edge[1])
    call = np.full(count, -1, np.int64)
    if lanes > 1 and draw(st.booleans()):
        call[place == draw(st.integers(0, length - 1))] = 0
    columns = [np.array([edge[i] for edge in good], np.int64) for i in range(3)]
    edges = Edges(
        columns[0],
        np.array([edge[3] for edge in good], bool),
        columns[1],
        columns[2],
        np.full(len(good), int(EdgeKind.WAIT)),
    )
    zeros = np.zeros(count, np.int64)
    kind = np.where(call >= 0, int(NodeKind.COMMUNICATION), int(NodeKind.COMPUTE))
    nodes = Nodes(lane, lane, kind, place * 100, duration, zeros, zeros, zeros, call)
    earliest = np.where(place == 0, 0, NEVER)
    transfer = np.where(call >= 0, 7, 0)
    return Graph(nodes, gap, earliest, edges, duration, transfer, call >= 0, ("dp",), ("op",))


def _slow(graph: Graph) -> tuple[list[int], list[int]]:
    """Replay by relaxation until nothing changes: slow, but obviously correct."""
    n = len(graph.nodes)
    start, end = [0] * n, [0] * n
    for _ in range(2 * n + 2):
        for i in range(n):
            when = [int(graph.earliest[i]), 0]
            if i and graph.nodes.lane[i] == graph.nodes.lane[i - 1]:
                when.append(end[i - 1] + int(graph.gap[i]))
            rows = np.flatnonzero(graph.edges.target == i).tolist()
            when += [
                (end if graph.edges.at_end[q] else start)[int(graph.edges.source[q])] + int(graph.edges.lag[q])
                for q in rows
            ]
            start[i] = max(when)
            end[i] = start[i] + int(graph.duration[i])
            if graph.tied[i]:
                last = max(start[j] for j in np.flatnonzero(graph.nodes.call == graph.nodes.call[i]).tolist())
                end[i] = max(start[i], last + int(graph.transfer[i]))
    return start, end


@given(graphs())
def test_segments_have_the_times_of_the_longest_path(graph: Graph) -> None:
    timeline = replay(graph, make_plan(graph))
    start, end = _slow(graph)
    assert timeline.start.tolist() == start
    assert timeline.end.tolist() == end


@given(graphs(), st.sampled_from([10, 10**3, 10**7]))
def test_large_slowdowns_are_replayed_exactly(graph: Graph, factor: int) -> None:
    longer = graph.with_changes(duration=graph.duration * factor, transfer=graph.transfer * factor)
    timeline = replay(longer, make_plan(graph))
    start, end = _slow(longer)
    assert timeline.start.tolist() == start
    assert timeline.end.tolist() == end


@given(graphs(), st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_graphs_with_the_same_dependencies_are_replayed_in_one_pass(graph: Graph, factors: list[int]) -> None:
    edited = [graph.with_changes(duration=graph.duration * factor, gap=graph.gap + factor) for factor in factors]
    assert all(other.waits_as(graph) for other in edited)
    for other, timeline in zip(edited, replay_together(edited, make_plan(graph)), strict=True):
        start, end = _slow(other)
        assert timeline.start.tolist() == start
        assert timeline.end.tolist() == end


@given(graphs(), st.lists(st.booleans(), min_size=8, max_size=8))
def test_removed_edges_have_no_effect(graph: Graph, removed_places: list[bool]) -> None:
    is_removed = np.array(removed_places[: len(graph.edges.target)], bool)
    removed = graph.with_changes(edges=graph.edges.without(is_removed))
    assert removed.waits_as(graph)
    timeline = replay(removed, make_plan(graph))
    start, end = _slow(graph.with_changes(edges=graph.edges.take(~is_removed)))
    assert timeline.start.tolist() == start
    assert timeline.end.tolist() == end


def test_a_run_of_many_blocks_is_as_exact() -> None:
    # Three lanes; every 50th node is a member of a call, and every 7th waits for an earlier node of the next lane.
    lanes, length = 3, 40_000
    lane, place = np.repeat(np.arange(lanes), length), np.tile(np.arange(length), lanes)
    random = np.random.default_rng(0)
    duration, gap = (
        random.integers(0, 9, lanes * length),
        np.where(place == 0, 0, random.integers(0, 9, lanes * length)),
    )
    call = np.where(place % 50 == 49, place // 50, -1)
    target = np.flatnonzero(place % 7 == 6)
    source = (lane[target] + 1) % lanes * length + place[target] - random.integers(1, 6, len(target))
    kind = np.full(len(target), int(EdgeKind.WAIT))
    edges = Edges(source, np.ones(len(target), bool), target, random.integers(0, 9, len(target)), kind)
    zeros = np.zeros(lanes * length, np.int64)
    nodes = Nodes(lane, lane, zeros, place * 10, duration, zeros, zeros, zeros, call)
    earliest = np.where(place == 0, 0, NEVER)
    graph = Graph(nodes, gap, earliest, edges, duration, zeros + 7, call >= 0, ("dp",), ("op",))

    start, end = np.zeros(lanes * length, np.int64), np.zeros(lanes * length, np.int64)
    edge_of_target = dict(zip(target.tolist(), range(len(target)), strict=True))
    for number in range(length):
        rows = np.arange(lanes) * length + number
        for row in rows.tolist():
            start[row] = end[row - 1] + gap[row] if number else 0
            if (edge := edge_of_target.get(row)) is not None:
                start[row] = max(start[row], end[source[edge]] + edges.lag[edge])
        end[rows] = start[rows] + duration[rows]
        if call[number] >= 0:
            end[rows] = start[rows].max() + 7
    timeline = replay(graph)
    np.testing.assert_array_equal(timeline.start, start)
    np.testing.assert_array_equal(timeline.end, end)


def test_a_graph_with_another_dependency_needs_its_own_plan() -> None:
    graph = graph_of(run_with("clean").tables)
    edges = graph.edges
    assert not graph.with_changes(edges=replace(edges, source=edges.source[::-1])).waits_as(graph)
    assert not graph.with_changes(tied=np.zeros_like(graph.tied)).waits_as(graph)


def test_clocks_that_are_years_apart_are_replayed_one_segment_at_a_time() -> None:
    graph = graph_of(run_with("clean").tables)
    late = graph.nodes.rank * (2**60)
    far = replace(
        graph,
        nodes=replace(graph.nodes, start=graph.nodes.start + late, call=np.full(len(graph.nodes), -1)),
        earliest=np.where(graph.earliest == NEVER, NEVER, graph.earliest + late),
        tied=np.zeros_like(graph.tied),
    )
    plan = make_plan(far)
    assert sum(len(block.rounds) for block in plan.blocks) == sum(len(block.heads) for block in plan.blocks)
    np.testing.assert_array_equal(replay(far).start, far.nodes.start)


def test_nodes_behind_a_cycle_keep_their_measured_times() -> None:
    zeros, lane = np.zeros(2, np.int64), np.arange(2)
    nodes = Nodes(zeros, lane, zeros, np.array([5, 3]), zeros + 10, zeros, zeros, zeros, zeros - 1)
    edges = Edges(np.array([1, 0]), np.ones(2, bool), np.array([0, 1]), zeros, zeros + int(EdgeKind.WAIT))
    graph = Graph(nodes, zeros, zeros, edges, zeros + 10, zeros, zeros > 0, (), ())
    plan = make_plan(graph)
    assert plan.nodes.tolist() == [1, 0]
    timeline = replay(graph, plan)
    assert timeline.start.tolist() == [25, 15]  # the first waits for the other's measured end, 15


def test_an_empty_run_takes_no_time() -> None:
    none = np.zeros(0, np.int64)
    nodes, edges = Nodes(*[none] * 9), Edges(none, none > 0, none, none, none)
    graph = Graph(nodes, none, none, edges, none, none, none > 0, (), ())
    assert len(replay(graph).start) == 0
