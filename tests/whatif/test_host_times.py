"""Late ranks: repairs cover pauses, the loader and launches, on GPU runs with known faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from made_faults import run_of
from tiny import Trace, table_set

from usp_prof.model.edit import parse_edit
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import EdgeKind
from usp_prof.replay.host_gaps import think_times
from usp_prof.replay.pauses import pauses
from usp_prof.replay.step_times import unedited
from usp_prof.run import open_run
from usp_prof.whatif.attribution import slowdown
from usp_prof.whatif.predict import predict
from usp_prof.whatif.time_shares import excess_to_remove, longest_excess_of_peers, times_of_nodes

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

US, MS = 1_000, 1_000_000
SLEEPING = Path(__file__).parents[2].parent / "shared" / "traces" / "torchrec-4r-sleeping-rank"
ABOUT_ALL_OF_IT = (0.84, 0.93)
"""Of steps of 1,056 to 1,172 ms, 1,004 to 1,011 are asleep; a part of what ran meanwhile then takes its own time."""

PLAIN: dict[str, Any] = {"mesh": {"dp": 4}, "work": {"steps": 3, "micro_batches": 2}, "shape": {"layers": 2}}
SHORT = PLAIN | {"speed": dict.fromkeys(("forward_ns", "input_gradient_ns", "weight_gradient_ns"), 150_000)}
SKEWED = PLAIN | {"clocks": {"ranks_per_host": 2, "offset_bound_ns": 2 * MS}}
STAGES = PLAIN | {"mesh": {"dp": 2, "pp": 2}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a pause in each step": (PLAIN, {"kind": "gc_pause", "delay_ns": 20 * MS}),
    "a pause in one step": (STAGES, {"kind": "gc_pause", "delay_ns": 20 * MS, "step": 11}),
    "late launches": (SHORT, {"kind": "slow_host", "factor": 6.0}),
    "late launches in one step": (SHORT, {"kind": "slow_host", "factor": 10.0, "step": 12}),
    "late input": (SKEWED, {"kind": "late_input", "delay_ns": 15 * MS}),
    "slow in one step": (SKEWED, {"kind": "slow_rank", "factor": 1.8, "step": 12}),
}


def made(declared: dict[str, Any], seed: int, **more: Any) -> TableSet:
    return run_of(json.dumps(declared | {"seed": seed, **more})).tables


@pytest.mark.parametrize(("case", "seed"), [(case, seed) for seed, case in enumerate(CASES, start=11)])
def test_repairing_a_late_rank_gains_the_cost_of_its_fault(case: str, seed: int) -> None:
    declared, fault = CASES[case]
    faulty = made(declared, seed, faults=[fault | {"rank": 2}])
    recorded, repaired = unedited(faulty), unedited(made(declared, seed))
    same_steps = np.isin(repaired.step, recorded.step[recorded.is_complete])
    before, clean = recorded.mean_measured_ns, repaired.measured_ns[same_steps].mean()
    cost = 1 - clean / before
    assert cost > 0.1
    assert predict(faulty, [parse_edit("rank_as_peers=2")]).gain_fraction == pytest.approx(cost, abs=0.01)
    assert predict(faulty, [parse_edit("rank_as_peers=1")]).gain_fraction == pytest.approx(0, abs=0.01)
    if fault["kind"] != "slow_rank":  # all compute goes to the mean of the peers, which is not that of a clean run
        assert predict(faulty, [parse_edit("ideal")]).gain_fraction == pytest.approx(cost, abs=0.02)
        assert predict(faulty, [parse_edit("host_as_peers=2")]).gain_fraction == pytest.approx(cost, abs=0.01)


@pytest.mark.parametrize("edit", ["rank_as_peers=2", "host_as_peers=2", "ideal", "no_pauses"])
def test_a_clean_run_gains_nothing(edit: str) -> None:
    assert predict(made(SHORT, 17), [parse_edit(edit)]).gain_fraction == pytest.approx(0, abs=0.01)


@pytest.fixture(scope="module")
def sleeping() -> TableSet:
    """Return the recorded run of four ranks in which rank 2 sleeps for a second in each step."""
    if not SLEEPING.exists():
        pytest.skip("the corpus is not here")
    return open_run(SLEEPING).tables


@pytest.mark.parametrize("edit", ["rank_as_peers=2", "host_as_peers=2", "ideal", "ideal,rank=2", "no_pauses"])
def test_a_rank_that_sleeps_costs_nearly_all_of_the_step(sleeping: TableSet, edit: str) -> None:
    low, high = ABOUT_ALL_OF_IT
    assert low < predict(sleeping, [parse_edit(edit)]).gain_fraction < high


def test_only_the_sleeping_rank_is_blamed(sleeping: TableSet) -> None:
    graph = graph_of(sleeping)
    assert set(graph.nodes.rank[pauses(graph, sleeping).node].tolist()) == {2}
    for rank in (0, 1, 3):
        assert predict(sleeping, [parse_edit(f"rank_as_peers={rank}")]).gain_fraction == pytest.approx(0, abs=0.01)
    result = slowdown(sleeping)
    assert 1 - 1 / result.slowdown == pytest.approx(predict(sleeping, [parse_edit("ideal")]).gain_fraction)
    shares = {part.name: part.share for part in result.parts if part.dimension == "rank"}
    assert shares["2"] > 0.95


def _idle_host(device_ends: int, *, more_launched: bool) -> Trace:
    """Make the host idle from 110 to 20,000 us while a kernel runs, without an event for the wait."""
    trace = Trace().step(0, 0, 30_000 * US).kernel("first", 110 * US, device_ends - 110 * US, launch_at=100 * US)
    if more_launched:
        trace.kernel("queued", device_ends, 5_000 * US, launch_at=105 * US)
    return trace.kernel("after", 26_000 * US, 10 * US, launch_at=20_000 * US)


@pytest.mark.parametrize(
    ("device_ends", "more_launched", "waits"),
    [
        (19_960 * US, False, True),
        (15_000 * US, False, False),  # the device was idle for 5 ms: the host was not waiting for it
        (
            19_960 * US,
            True,
            False,
        ),  # work continues after that kernel, so the host did not wait but paused
    ],
)
def test_a_wait_without_a_call_is_not_a_pause(device_ends: int, more_launched: bool, waits: bool) -> None:
    graph = graph_of(table_set({0: _idle_host(device_ends, more_launched=more_launched)}))
    assert bool((graph.edges.kind == EdgeKind.SYNC).any()) is waits
    assert bool((think_times(graph) > 10 * MS).any()) is not waits


@pytest.mark.parametrize(("longest_ms", "is_pause"), [(150, True), (60, False)])
def test_a_gap_far_longer_than_all_others_is_a_pause(longest_ms: int, is_pause: bool) -> None:
    """A host that waits 25 ms before every tenth launch has a 99th percentile of 25 ms, a twentieth of a pause."""
    trace = Trace().step(0, 0, 2_000 * MS)
    at = 0
    for place in range(200):
        at += (longest_ms if place == 120 else 25) * MS if place % 10 == 0 else MS
        trace.kernel("work", at + 10 * US, 100 * US, launch_at=at)
    graph = graph_of(tables := table_set({0: trace}))
    assert len(pauses(graph, tables).node) == is_pause


def test_a_thread_that_only_sleeps_is_not_the_host() -> None:
    trace = Trace().step(0, 0, 30_000 * US).kernel("first", 110 * US, 100 * US, launch_at=100 * US)
    trace.event("cudaEventSynchronize", "cuda_runtime", 150 * US, 15_000 * US, tid=900, args={"correlation": 1})
    graph = graph_of(table_set({0: trace.kernel("after", 260 * US, 10 * US, launch_at=250 * US)}))
    assert graph.nodes.of_host.sum() == 2, "two launches, and nothing of the thread that waits"


def test_a_copy_that_ends_within_its_call_is_waited_for() -> None:
    trace = Trace().step(0, 0, 30_000 * US).kernel("long", 110 * US, 9_000 * US, launch_at=100 * US)
    trace.memcpy(9_110 * US, 10 * US, correlation=7, kind="DtoH (Device -> Pageable)")
    trace.launch(7, 200 * US, 8_930 * US, name="cudaMemcpyAsync")
    graph = graph_of(table_set({0: trace.kernel("after", 9_200 * US, 10 * US, launch_at=9_150 * US)}))
    edges = graph.edges
    awaited = [graph.names[graph.nodes.name[node]] for node in edges.source[edges.kind == EdgeKind.SYNC]]
    assert awaited == ["Memcpy DtoH (Device -> Pageable)"]
    assert think_times(graph).max() < MS


def test_a_pageable_copy_to_the_host_waits_whatever_other_copies_do() -> None:
    """A copy that starts 1 ms after its call returned made all calls of this name seem not to wait."""
    trace = Trace().step(0, 0, 30_000 * US).kernel("long", 110 * US, 9_000 * US, launch_at=100 * US)
    trace.memcpy(9_130 * US, 10 * US, correlation=7, kind="DtoH (Device -> Pageable)")
    trace.launch(7, 200 * US, 8_930 * US, name="cudaMemcpyAsync")
    trace.memcpy(10_300 * US, 10 * US, correlation=8, kind="DtoH (Device -> Pageable)")
    trace.launch(8, 9_150 * US, 10 * US, name="cudaMemcpyAsync")
    graph = graph_of(table_set({0: trace.kernel("after", 10_400 * US, 10 * US, launch_at=9_200 * US)}))
    assert (graph.edges.kind == EdgeKind.SYNC).sum() == 1
    assert think_times(graph).max() < MS


@pytest.mark.parametrize("early_ns", [0, 500, 1_000])
def test_a_call_that_seems_to_start_before_the_copy_returned_comes_after_it(early_ns: int) -> None:
    """Whole microseconds make the sync start within the copy; the wait for the copy was then taken for a pause."""
    trace = Trace().step(0, 0, 30_000 * US).kernel("long", 110 * US, 9_000 * US, launch_at=100 * US)
    # The device's clock is 30 us ahead: the copy seems to end after the call that waits for it.
    trace.memcpy(9_150 * US, 10 * US, correlation=7, kind="DtoH (Device -> Pageable)")
    trace.launch(7, 200 * US, 8_930 * US, name="cudaMemcpyAsync")
    trace.event("cudaStreamSynchronize", "cuda_runtime", 9_130 * US - early_ns, 0, args={"correlation": 8, "stream": 7})
    graph = graph_of(table_set({0: trace.kernel("after", 9_300 * US, 10 * US, launch_at=9_150 * US)}))
    assert think_times(graph).max() < MS


@pytest.mark.parametrize(
    ("own", "piece", "should", "expected"),
    [
        ([5, 100, 5], [0, 0, 0], [20], [5, 10, 5]),  # the pause goes first
        ([60, 60, 60], [0, 0, 0], [30], [10, 10, 10]),
        ([10, 30, 50], [0, 0, 0], [25], [8, 8, 8]),
        ([5, 15, 40], [0, 0, 1], [40, 30], [10, 30, 30]),  # too short a piece is stretched
        ([0, 0, 7], [0, 0, 1], [6, 7], [0, 6, 7]),
    ],
)
def test_a_piece_gets_its_target_duration(
    own: list[int], piece: list[int], should: list[int], expected: list[int]
) -> None:
    durations = times_of_nodes(np.array(own), np.array(piece), np.array(should, float))
    assert durations.tolist() == expected


@pytest.mark.parametrize(
    ("excess", "of_peers", "expected"),
    [
        ([100, 30, -30], [[30, 0, -30]], [70, 30, 0]),  # the longest piece is as long as the peer's longest then
        (
            [100, 30, -30],
            [[0, 30, -30], [0, 0, 0], [90, 30, 0]],
            [70, 30, 0],
        ),  # for any position of the peers' pieces
        ([30, -30, 0], [[40, 0, -40]], [0, 0, 0]),  # no longer than its peers, and not unusual
        ([30, -50, 0], [[20, 0, -20]], [10, 0, 0]),  # one unusual piece of a rank that has less work elsewhere
        ([4, 2, 0], [[9, 9, 9]], [4, 2, 0]),  # pieces as the peers', but all its own total above theirs
    ],
)
def test_repairs_first_shorten_what_exceeds_the_peers_longest_pieces(
    excess: list[int], of_peers: list[list[int]], expected: list[int]
) -> None:
    longest = longest_excess_of_peers([np.array(rank, float) for rank in (excess, *of_peers)])
    removed = excess_to_remove(np.array(excess, float), longest[0])
    assert removed.tolist() == expected
