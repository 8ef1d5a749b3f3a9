"""Launches that wait for a full queue: faster kernels let them continue sooner."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from tiny import Trace, table_set

from usp_prof.model.edit import parse_edit
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import EdgeKind
from usp_prof.whatif.predict import predict

US = 1_000
KERNEL, LAUNCH, THINK, LATENCY = 100 * US, 4 * US, 5 * US, 8 * US
STEPS, KERNELS, PLACES = 4, 150, 40


@dataclass(frozen=True, slots=True)
class Made:
    """Synthetic trace, and the total time of its steps."""

    trace: Trace
    total_ns: int


def run(kernel_ns: int, *, from_step: int = 0, places: int = PLACES) -> Made:
    """Launch ahead of the device until `places` launches are pending: each launch then waits until one has begun.

    What the host did before `from_step` is not in the trace: the queue is full from its first event on.
    """
    host, device, begun, launches = 0, 0, [], []
    for number in range(STEPS * KERNELS):
        host += THINK
        called = host
        if number >= places:
            host = max(host, begun[number - places] + 2 * US)
        host += LAUNCH
        begun.append(max(device, called + LATENCY))
        device = begun[-1] + kernel_ns
        launches.append((called, host - called))
    trace, cut = Trace(), launches[from_step * KERNELS][0]
    bounds = [launches[number * KERNELS][0] for number in range(from_step, STEPS)] + [device]
    for step, (low, high) in enumerate(itertools.pairwise(bounds)):
        trace.step(step, low, high - low)
    for number, ((called, took), at) in enumerate(zip(launches, begun, strict=True), start=1):
        if called >= cut:
            trace.launch(number, called, took).kernel("gemm", at, kernel_ns, correlation=number)
        elif at >= cut:
            trace.kernel("gemm", at, kernel_ns)
    return Made(trace, device)


@pytest.mark.parametrize("from_step", [0, 2])
def test_faster_kernels_let_a_full_queue_drain(from_step: int) -> None:
    now, faster = run(KERNEL, from_step=from_step), run(KERNEL // 2)
    prediction = predict(table_set({0: now.trace}), [parse_edit("compute_faster=2")])
    assert prediction.gain_fraction == pytest.approx(1 - faster.total_ns / now.total_ns, abs=0.03)


def test_a_full_queue_is_not_a_blocking_call() -> None:
    prediction = predict(table_set({0: run(KERNEL).trace}), [parse_edit("no_blocking")])
    assert prediction.gain_fraction == pytest.approx(0, abs=0.01)


def test_slow_launches_without_a_full_queue_do_not_wait() -> None:
    trace = Trace()
    at, generator = 0, np.random.default_rng(5)
    for step in range(STEPS):
        trace.step(step, at, KERNELS * 200 * US)
        for number in range(step * KERNELS, (step + 1) * KERNELS):
            slow = int(generator.integers(20, 150)) * US
            trace.launch(number, at, slow).kernel("gemm", at + slow + 8 * US, 20 * US, correlation=number)
            at += 200 * US
    graph = graph_of(table_set({0: trace}))
    assert not (graph.edges.kind == EdgeKind.QUEUE).any()


@pytest.mark.parametrize(
    ("returned_us", "waits"),
    [
        (30_110, True),  # 0.01 ms after the only end of work in 30 ms
        (30_500, True),
        (34_000, False),  # 4 ms of 30 may be chance
        (29_000, False),  # the work still runs
    ],
)
def test_one_long_launch_waits_for_the_work_after_whose_end_it_returns(returned_us: int, waits: bool) -> None:
    trace = Trace().step(0, 0, 40_000 * US)
    trace.launch(1, 0, 5 * US).kernel("gemm", 20 * US, 80 * US, correlation=1)
    trace.launch(2, 10 * US, 5 * US).kernel("long", 100 * US, 30_000 * US, correlation=2)
    trace.launch(3, 120 * US, (returned_us - 120) * US).kernel("next", 36_000 * US, 50 * US, correlation=3)
    graph = graph_of(table_set({0: trace}))
    awaited = graph.edges.source[graph.edges.kind == EdgeKind.QUEUE]
    assert [graph.names[name] for name in graph.nodes.name[awaited]] == (["long"] if waits else [])
