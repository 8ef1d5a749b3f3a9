"""Stream waits: work waits for another stream in some places of the step, and may start late after a long wait."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import MAIN, Trace, table_set

from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import EdgeKind, Graph
from usp_prof.replay.rank_nodes import nodes_of
from usp_prof.replay.recorded_waits import recorded_waits
from usp_prof.replay.stream_waits import candidates

US = 1_000
STEP = 20_000 * US


def _waits(graph: Graph) -> int:
    """Count the kernels named lookup that wait for communication."""
    edges = graph.edges.take(graph.edges.kind == EdgeKind.WAIT)
    names = np.array(graph.names)[graph.nodes.name]
    pairs = zip(names[edges.source].tolist(), edges.target.tolist(), strict=True)
    return len({target for source, target in pairs if "AllReduce" in source and names[target] == "lookup"})


def _lookups(late_us: int, *, steps: int = 6) -> Trace:
    """Look up twice per step after a wait call: during a collective, and after it, as late as given in the first step.

    In the other steps the host is late, so the second lookup starts when it is launched.
    """
    trace = Trace(0, 1).group("0", [0], "tp")
    for step in range(steps):
        at = step * STEP
        trace.step(step, at, STEP)
        trace.collective("all_reduce", at + 1_000 * US, 9_000 * US, group="0", sequence=step, launch_at=at + 10 * US)
        trace.kernel("input", at + 50 * US, 100 * US, stream=25, launch_at=at + 40 * US)
        trace.launch(9_000 + 2 * step, at + 1_010 * US, name="cudaStreamWaitEvent")
        trace.kernel("lookup", at + 1_030 * US, 100 * US, stream=25, launch_at=at + 1_020 * US)
        trace.kernel("index", at + 1_140 * US, 100 * US, stream=25, launch_at=at + 1_100 * US)
        is_late = step > 0
        launch = at + (11_000 if is_late else 1_200) * US
        trace.launch(9_001 + 2 * step, launch - 10 * US, name="cudaStreamWaitEvent")
        begin = launch + 10 * US if is_late else at + (10_000 + late_us) * US
        trace.kernel("lookup", begin, 100 * US, stream=25, launch_at=launch)
    return trace


def test_a_wait_that_holds_in_one_place_of_the_step_is_a_wait_there() -> None:
    assert _waits(graph_of(table_set({0: _lookups(late_us=10)}))) == 6


@pytest.mark.parametrize(("late_us", "waits"), [(80, 6), (200, 0)])
def test_after_a_long_wait_work_may_start_later(late_us: int, waits: int) -> None:
    """The first lookup waited for 8.8 ms, of which 1% is 88 us."""
    assert _waits(graph_of(table_set({0: _lookups(late_us)}))) == waits


def _opens_busy(*, launched: bool) -> Trace:
    """Run two kernels and, on another stream, a collective between them; only later work is launched in the trace.

    The collective may be launched in the trace. The lookup is, after a wait call.
    """
    trace = Trace(0, 1).group("0", [0], "tp").step(0, 0, STEP)
    trace.kernel("backward", 100 * US, 900 * US, correlation=901)
    launch = {"launch_at": 90 * US} if launched else {}
    trace.collective("all_reduce", 200 * US, 300 * US, group="0", sequence=0, **launch)
    trace.collective("all_reduce", 1_002 * US, 4_000 * US, group="0", sequence=1, **launch)
    trace.launch(9_000, 300 * US, name="cudaStreamWaitEvent")
    return trace.kernel("lookup", 5_004 * US, 100 * US, stream=25, launch_at=310 * US)


@pytest.mark.parametrize("launched", [False, True])
def test_work_waits_for_what_was_launched_before_the_recording(launched: bool) -> None:
    """It started at its recorded time, so a repair of the first step saved nothing there."""
    assert _waits(graph_of(table_set({0: _opens_busy(launched=launched)}))) == 1


def test_work_launched_before_the_recording_waits_for_other_streams() -> None:
    """The second collective starts 2 us after the kernel ends, and 500 us after the collective before it."""
    graph = graph_of(table_set({0: _opens_busy(launched=False)}))
    edges, names = graph.edges.take(graph.edges.kind == EdgeKind.ISSUE), np.array(graph.names)[graph.nodes.name]
    assert ("backward", "ncclDevKernel_AllReduce_Sum_f32_RING_LL") in [
        (before, behind.partition("(")[0])
        for before, behind in zip(names[edges.source].tolist(), names[edges.target].tolist(), strict=True)
    ]


def _gathers() -> Trace:
    """Copy in on stream 16 before each gather, after an event that the compute stream records before its last kernel.

    In the first step the copy waits for the event. In the others the host launches it late, after all compute.
    """
    trace = Trace(0, 1).group("0", [0], "dp")
    for step in range(4):
        at = step * STEP
        late_us = 2_000 if step else 0
        trace.step(step, at, STEP)
        trace.kernel("copy out", at + 100 * US, 500 * US, launch_at=at + 10 * US)
        trace.launch(9_000 + 4 * step, at + 20 * US, name="cudaEventRecord")
        trace.kernel("layer", at + 700 * US, 500 * US, launch_at=at + 30 * US)
        now = at + (50 + late_us) * US
        trace.launch(9_001 + 4 * step, now, name="cudaStreamWaitEvent")
        begin = now + 20 * US if step else at + 602 * US
        trace.kernel("copy in", begin, 10 * US, stream=16, launch_at=now + 10 * US)
        trace.launch(9_002 + 4 * step, now + 20 * US, name="cudaEventRecord")
        trace.launch(9_003 + 4 * step, now + 22 * US, name="cudaStreamWaitEvent")
        trace.collective("all_gather", begin + 12 * US, 900 * US, group="0", sequence=step, launch_at=now + 25 * US)
    return trace


def _awaited(graph: Graph, waiting: str) -> list[str]:
    names, edges = np.array(graph.names)[graph.nodes.name], graph.edges
    between = np.isin(edges.kind, (EdgeKind.WAIT, EdgeKind.ISSUE))
    pairs = set(zip(edges.source[between].tolist(), edges.target[between].tolist(), strict=True))
    return [names[source] for source, target in pairs if waiting in names[target]]


def test_communication_waits_for_the_stream_that_issues_it() -> None:
    """FSDP issues gathers from a stream of their own, so that they need not wait for compute."""
    assert set(_awaited(graph_of(table_set(_gathers())), "AllGather")) == {"copy in"}


def test_work_waits_for_what_was_launched_before_the_last_event() -> None:
    assert _awaited(graph_of(table_set(_gathers())), "copy in") == ["copy out"] * 4


@pytest.mark.parametrize("thread", [MAIN, 200])
def test_a_wait_that_the_host_always_hides_is_known_by_its_event(thread: int) -> None:
    """The host records and awaits an event after each message, then waits for the device, then computes."""
    trace = Trace(0, 1).group("0", [0], "pp")
    for step in range(4):
        at = step * STEP
        trace.step(step, at, STEP)
        trace.collective("all_reduce", at + 100 * US, 900 * US, group="0", sequence=step, launch_at=at + 10 * US)
        trace.launch(9_000 + 3 * step, at + 20 * US, name="cudaEventRecord")
        trace.launch(9_001 + 3 * step, at + 30 * US, name="cudaStreamWaitEvent")
        trace.launch(9_002 + 3 * step, at + 40 * US, 980 * US, name="cudaFree", thread=thread)
        trace.kernel("layer", at + 1_100 * US, 500 * US, launch_at=at + 1_090 * US, thread=thread)
    assert len(_awaited(graph_of(table_set(trace)), "layer")) == 4


def test_a_single_wait_call_is_for_the_event_before_it() -> None:
    """The host issues a reduction and an exchange and awaits the exchange. Once, compute starts after the reduction."""
    trace = Trace(0, 1).group("0", [0], "ep").group("1", [0], "dp")
    for step in range(4):
        at, exchange_us = step * STEP, 200 if step == 2 else 900
        trace.step(step, at, STEP)
        trace.kernel("layer", at + 100 * US, 50 * US, launch_at=at + 10 * US)
        trace.collective(
            "all_reduce", at + 160 * US, 300 * US, group="1", sequence=step, launch_at=at + 20 * US, stream=22
        )
        trace.collective(
            "all_to_all", at + 160 * US, exchange_us * US, group="0", sequence=step, launch_at=at + 25 * US, stream=20
        )
        trace.launch(9_000 + 2 * step, at + 30 * US, name="cudaEventRecord")
        trace.launch(9_001 + 2 * step, at + 35 * US, name="cudaStreamWaitEvent")
        trace.kernel("experts", at + (165 + max(exchange_us, 300)) * US, 400 * US, launch_at=at + 40 * US)
    awaited = [name.partition("_RING")[0].partition("(")[0] for name in _awaited(graph_of(table_set(trace)), "experts")]
    assert sorted(awaited) == ["ncclDevKernel_AllReduce_Sum_f32", *["ncclDevKernel_SendRecv"] * 4]


def _pairs(streams: int) -> int:
    """Count the pairs of work that may wait and work that it may wait for, with one kernel per stream."""
    trace = Trace(0, 1).step(0, 0, STEP)
    for stream in range(streams):
        trace.kernel("work", (10 * stream + 5) * US, 20 * US, stream=stream, launch_at=10 * stream * US)
    tables = table_set({0: trace})
    nodes = nodes_of(tables, 0, 0)
    explained_at = np.zeros(len(nodes.lane), np.int64)
    return len(candidates(tables, nodes, explained_at, recorded_waits(tables, nodes)).source)


def test_pairs_grow_with_the_number_of_streams_and_not_with_its_square() -> None:
    assert 0 < _pairs(800) < 3 * _pairs(400)
