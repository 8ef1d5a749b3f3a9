"""Untraced waits: a silent host may wait for the device, but not if it does so only once by chance."""

from __future__ import annotations

import pytest
from tiny import Trace, table_set

from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import EdgeKind, NodeKind

US = 1_000
STEP = 3_000 * US


def _silent_for(*idle_us: int) -> Trace:
    """Launch one kernel per step, then stay silent; the device is idle that long before the next launch.

    Steps are equally long, except those with an idle device for longer than a step.
    """
    trace, at = Trace(), 0
    for step, idle in enumerate((*idle_us, 0)):
        length = STEP + (idle * US if idle * US > STEP else 0)
        trace.step(step, at, length)
        trace.kernel("work", at + 20 * US, length - (10 + idle) * US, launch_at=at + 10 * US)
        at += length
    return trace


@pytest.mark.parametrize(
    ("idle_us", "waits"),
    [
        ((20, 20, 20), 3),
        ((20, 20, 3_500), 2),  # most of its kind
        ((20, 20, 900), 0),  # the third is as long, although its work has ended
        ((20, 900, 900), 0),  # once, by chance
        ((900, 900, 900), 0),
    ],
)
def test_a_silence_is_a_wait_if_most_of_its_kind_end_with_the_device(idle_us: tuple[int, ...], waits: int) -> None:
    edges = graph_of(table_set({0: _silent_for(*idle_us)})).edges
    assert int((edges.kind == EdgeKind.SYNC).sum()) == waits


def _silent_until(work: int, *late_us: int, length_us: int = 2_000) -> Trace:
    """Launch several kernels per step, then stay silent until `late_us` after the end of one of them."""
    trace = Trace()
    for step, late in enumerate(late_us):
        at = step * 2 * STEP
        trace.step(step, at, 2 * STEP)
        begin = at + 20 * US
        for place in range(4):
            length = length_us if place == 0 else 900
            trace.kernel(f"work {place}", begin, length * US, launch_at=at + (10 + place) * US)
            begin += length * US + US
            if place == work:
                resumed = begin + (late - 1) * US
        trace.kernel("next", begin, 10 * US, launch_at=resumed)
    return trace


@pytest.mark.parametrize(
    ("late_us", "waits"), [((15, 20, 12), 3), ((15, 20, -40), 3), ((15, 450, 20), 0), ((15, 20), 0)]
)
def test_a_silence_is_a_wait_for_work_in_mid_stream_if_it_always_ends_with_it(
    late_us: tuple[int, ...], waits: int
) -> None:
    graph = graph_of(table_set({0: _silent_until(0, *late_us)}))
    syncs = graph.edges.take(graph.edges.kind == EdgeKind.SYNC)
    assert [graph.names[name] for name in graph.nodes.name[syncs.source].tolist()] == ["work 0"] * waits


def test_silences_that_end_with_frequent_work_are_no_waits() -> None:
    trace = Trace()
    for step in range(4):
        at = step * 2 * STEP
        trace.step(step, at, 2 * STEP)
        for place in range(140):  # whenever the host resumes, one of these has just ended
            trace.kernel("work", at + (20 + place * 20) * US, 19 * US, launch_at=at + place * 100)
        trace.kernel("next", at + 2_900 * US, 10 * US, launch_at=at + (1_500 + step * 137) * US)
    edges = graph_of(table_set({0: trace})).edges
    assert not (edges.kind == EdgeKind.SYNC).any()


def test_hosts_of_all_ranks_show_what_a_silence_waits_for() -> None:
    """One step per rank is enough if three ranks agree."""
    for ranks, waits in ((3, 3), (2, 0)):
        traces = {rank: _silent_until(0, 15) for rank in range(ranks)}
        edges = graph_of(table_set(traces)).edges
        assert int((edges.kind == EdgeKind.SYNC).sum()) == waits


def test_a_pause_before_another_call_does_not_show_that_a_silence_is_none() -> None:
    trace = Trace()
    for step in range(3):
        at = step * 2 * STEP
        trace.step(step, at, 2 * STEP)
        trace.kernel("work", at + 20 * US, 3_000 * US, launch_at=at + 10 * US)
        trace.launch(10 + step, at + 3_040 * US, name="cudaFree")
    trace.launch(20, 4 * STEP + 6_000 * US, name="cudaDeviceSynchronize")  # as long after all work has ended
    graph = graph_of(table_set({0: trace}))
    waiting = graph.edges.target[graph.edges.kind == EdgeKind.SYNC]
    assert int((graph.nodes.kind[waiting] == NodeKind.HOST).sum()) == 3


def _late_once(busy_us: int, steps: int = 4) -> Trace:
    """Launch work per step and wait for it in silence; in the last step, the host is busy in an op meanwhile."""
    trace = Trace()
    for step in range(steps):
        at = step * 2 * STEP
        trace.step(step, at, 2 * STEP)
        trace.kernel("work", at + 20 * US, 2_000 * US, launch_at=at + 10 * US)
        trace.kernel("after", at + 2_030 * US, 900 * US, launch_at=at + 15 * US)
        resumed = at + 2_040 * US
        if step == steps - 1:
            for begin in range(at + 30 * US, at + busy_us * US, 100 * US):
                trace.op("aten::add", begin, 90 * US)
            resumed = at + (busy_us + 10) * US
        trace.kernel("next", at + 2_940 * US, 10 * US, launch_at=resumed)
    return trace


@pytest.mark.parametrize(("busy_us", "waits"), [(2_500, 4), (1_000, 3)])
def test_a_host_waits_at_the_same_place_in_steps_in_which_the_work_had_ended(busy_us: int, waits: int) -> None:
    graph = graph_of(table_set({0: _late_once(busy_us)}))
    syncs = graph.edges.take(graph.edges.kind == EdgeKind.SYNC)
    assert [graph.names[name] for name in graph.nodes.name[syncs.source].tolist()] == ["work"] * waits
