"""Several graphs replayed at once come out as one by one; arrivals lie in the plan's order."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_faults import run_with

from usp_prof.replay.arrivals import arrivals_of, side_by_side
from usp_prof.replay.build import graph_of
from usp_prof.replay.longest_path import at_once, replay, replay_all
from usp_prof.replay.plan import make_plan

if TYPE_CHECKING:
    from usp_prof.replay.graph import Graph
    from usp_prof.replay.plan import Plan


@cache
def graph() -> Graph:
    """Give the graph of a run without faults."""
    return graph_of(run_with("clean").tables)


@cache
def plan() -> Plan:
    """Give its plan."""
    return make_plan(graph())


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3), st.floats(0, 1)), min_size=1, max_size=5))
def test_graphs_replayed_at_once_come_out_as_alone(scales: list[tuple[float, float, float]]) -> None:
    kept = np.random.default_rng(0).random(len(graph().edges.source))
    graphs = [
        graph().with_changes(
            duration=(graph().duration * longer).astype(np.int64),
            gap=(graph().gap * wider).astype(np.int64),
            edges=graph().edges.take(kept >= dropped) if dropped else graph().edges,
        )
        for longer, wider, dropped in scales
    ]
    for each, found in zip(graphs, replay_all(graphs, plan()), strict=True):
        alone = replay(each)
        np.testing.assert_array_equal(found.start, alone.start)
        np.testing.assert_array_equal(found.end, alone.end)


def test_one_graph_that_grows_beyond_all_measure_holds_up_none() -> None:
    longer = graph().with_changes(duration=graph().duration * 200)
    for each, found in zip([graph(), longer], replay_all([graph(), longer], plan()), strict=True):
        np.testing.assert_array_equal(found.end, replay(each).end)


def test_arrivals_lie_by_target_whatever_the_order_of_edges() -> None:
    mixed = np.random.default_rng(1).permutation(len(graph().edges.source))
    shuffled = graph().with_changes(edges=graph().edges.take(mixed))
    plain, other = arrivals_of(graph(), plan()), arrivals_of(shuffled, plan())
    for found in (plain, other):
        assert (np.diff(found.target) >= 0).all()
    rows = [sorted(zip(f.target, f.source, f.lag, strict=True)) for f in (plain, other)]
    assert rows[0] == rows[1]


def test_arrivals_side_by_side_keep_to_their_rounds() -> None:
    each = [
        arrivals_of(graph(), plan()),
        arrivals_of(graph().with_changes(edges=graph().edges.take(np.arange(40))), plan()),
    ]
    joined, begin = side_by_side(each, plan())
    nodes = joined.target % len(graph().nodes)
    for low, high, first, last in zip(begin[:-1], begin[1:], plan().bounds[:-1], plan().bounds[1:], strict=True):
        assert ((nodes[low:high] >= first) & (nodes[low:high] < last)).all()
    assert begin[-1] == sum(len(found.target) for found in each)


def test_many_small_graphs_are_replayed_at_once_and_no_large_ones() -> None:
    assert at_once(graph()) > 1000


@pytest.mark.parametrize("count", [0, 1])
def test_none_and_one_are_no_special_case(count: int) -> None:
    assert len(replay_all([graph()] * count, plan())) == count
