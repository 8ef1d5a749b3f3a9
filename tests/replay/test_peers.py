"""Peers: a repaired rank has no step that is unusually long, and none becomes longer."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import Trace, table_set

from usp_prof.model.edit import Edit
from usp_prof.replay.build import graph_of
from usp_prof.replay.peers import compute_by_step, peer_groups
from usp_prof.whatif.predict import predict

US = 1_000
STEP = 10_000 * US


def _rank(kernels: list[int]) -> Trace:
    """Run one kernel of the given length in each step."""
    trace = Trace()
    for number, length in enumerate(kernels):
        begin = number * STEP
        trace.step(number, begin, STEP)
        trace.kernel("work", begin + 100 * US, length * US, launch_at=begin + 90 * US)
        trace.collective("all_reduce", begin + 8_000 * US, 500 * US)
    return trace


@pytest.mark.parametrize(
    ("own", "repaired"),
    [
        ([5_000, 5_000, 5_000], [2_000, 2_000, 2_000]),
        ([1_000, 4_000, 3_000], [1_000, 2_000, 2_000]),  # no step of the peers is ever that long
        ([1_000, 2_000, 2_500], [1_000, 2_000, 2_000]),  # also if the rank is faster over all steps
    ],
)
def test_a_repair_removes_what_exceeds_the_peers_and_makes_no_step_longer(own: list[int], repaired: list[int]) -> None:
    tables = table_set({0: _rank(own)} | {peer: _rank([2_000] * 3) for peer in (1, 2, 3)})
    edited = predict(tables, [Edit("rank_as_peers", "0")]).graph
    assert np.allclose(list(compute_by_step(edited, 0).values()), np.array(repaired) * US, atol=US)
    assert list(compute_by_step(edited, 1).values()) == list(compute_by_step(graph_of(tables), 1).values())


def test_a_step_without_measurable_compute_cannot_be_compared() -> None:
    tables = table_set({0: _rank([4_000, 0, 4_000]), 1: _rank([2_000] * 3), 2: _rank([2_000] * 3)})
    edited = predict(tables, [Edit("rank_as_peers", "0")]).graph
    assert list(compute_by_step(edited, 0).values()) == [2_000 * US, 0, 2_000 * US]
    idle_peers = table_set({0: _rank([4_000, 4_000, 4_000]), 1: _rank([2_000, 0, 2_000]), 2: _rank([2_000, 0, 2_000])})
    edited = predict(idle_peers, [Edit("rank_as_peers", "0")]).graph
    assert list(compute_by_step(edited, 0).values()) == [2_000 * US] * 3


def _opens(first_launch: int) -> Trace:
    """Run collectives that were launched before recording began, and three steps whose first work is launched then."""
    trace = Trace()
    for place in range(5):
        trace.kernel("ncclDevKernel_AllReduce_Sum_f32", place * 500 * US, 400 * US, stream=20, correlation=1 + place)
    for number in range(3):
        begin = number * STEP
        launch = begin + (first_launch if number == 0 else 90) * US
        trace.step(number, begin, STEP)
        trace.kernel("work", launch + 10 * US, 2_000 * US, launch_at=launch)
        for place in range(2):
            trace.collective("all_reduce", begin + (7_000 + place) * US, 500 * US, launch_at=begin + 6_000 * US)
    return trace


def test_collectives_of_an_earlier_step_do_not_make_ranks_differ() -> None:
    """They end within the first step on rank 1, and before it on rank 0, whose host was late."""
    tables = table_set({0: _opens(3_000), 1: _opens(90)})
    assert peer_groups(tables, graph_of(tables)) == [(0, 1)]


def test_a_rank_whose_recording_lacks_steps_keeps_its_peers() -> None:
    """It has 2 collectives fewer in each step that was not recorded; it used to have no peers."""
    tables = table_set({0: _rank([3_000] * 2), 1: _rank([2_000] * 9), 2: _rank([2_000] * 9)})
    assert peer_groups(tables, graph_of(tables)) == [(0, 1, 2)]
