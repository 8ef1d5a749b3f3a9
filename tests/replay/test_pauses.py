"""Pauses of the host, by hand: before a call, within a launch, before the first call, and what is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tiny import Trace, table_set

from usp_prof.model.edit import parse_edit
from usp_prof.replay.build import graph_of
from usp_prof.replay.pauses import PausePlace, pauses
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

MS = 1_000_000
LAUNCH = 10_000
KERNEL = 900_000
CALLS = 20
"""In each step, one per millisecond."""
SLOW_CALL, SLOW_NS = 5, 4 * MS
"""Before this call, every host works for longer: Python between two layers."""

Paused = dict[tuple[int, int, int], int]
"""Pauses by rank, step and call."""


def _tables(
    before: Paused,
    within: Paused | None = None,
    *,
    opening: int = 0,
    ranks: int = 2,
    depth: int = 0,
    with_op: bool = True,
    slow_ns: int = SLOW_NS,
    in_op: bool = False,
    steps: int = 2,
) -> TableSet:
    """Make runs of 20 launches per step; the device is never behind, unless `depth` kernels are queued at first."""
    traces = {}
    for rank in range(ranks):
        trace, at = Trace(rank=rank, world=ranks), 0
        free = depth * KERNEL
        for step in range(steps):
            began = at
            if with_op:
                trace.op("aten::view", at, 1000)
            at += MS + (opening if (rank, step) == (1, 0) else 0)
            for call in range(CALLS):
                if call == SLOW_CALL:
                    if in_op:
                        trace.op("DeepSpeedCPUAdam::adam_update", at, slow_ns)
                    at += slow_ns
                at += before.get((rank, step, call), 0)
                length = LAUNCH + (within or {}).get((rank, step, call), 0)
                starts = max(at + length, free)
                correlation = 10_000 * rank + 100 * step + call + 1
                trace.launch(correlation, at, length)
                trace.kernel(f"gemm{call}", starts, KERNEL, correlation=correlation)
                free, at = starts + KERNEL, at + max(MS, length + LAUNCH)
            trace.step(step, began, at - began)
        traces[rank] = trace
    return table_set(traces)


def _pauses_of(tables: TableSet) -> list[tuple[int, int, PausePlace, float]]:
    """Return the pauses as rank, step, place and milliseconds."""
    graph = graph_of(tables)
    host_pauses = pauses(graph, tables)
    nodes = graph.nodes
    return sorted(
        (int(nodes.rank[node]), int(nodes.step[node]), PausePlace(place), round(ns / MS, 1))
        for node, place, ns in zip(host_pauses.node, host_pauses.place, host_pauses.excess_ns, strict=True)
    )


def test_work_that_recurs_on_all_ranks_is_no_pause() -> None:
    assert _pauses_of(_tables({})) == []


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("in_op", [True, False])
def test_an_op_of_the_host_that_recurs_on_all_ranks_is_work(in_op: bool, steps: int) -> None:
    """An optimizer on the host takes as long in every step; garbage collection may too, but is no op."""
    paused = _pauses_of(_tables({}, slow_ns=90 * MS, in_op=in_op, steps=steps))
    assert len(paused) == (0 if in_op else 2 * steps)


def test_a_pause_is_long_for_its_place() -> None:
    """Every host takes longer before another call of the step."""
    assert _pauses_of(_tables({(1, 0, 9): 3 * MS})) == [(1, 0, PausePlace.BEFORE_CALL, 3.0)]


def test_a_long_pause_does_not_hide_short_ones() -> None:
    before = {(0, 1, 12): 90 * MS, (1, 0, 9): 3 * MS}
    assert _pauses_of(_tables(before)) == [(0, 1, PausePlace.BEFORE_CALL, 91.0), (1, 0, PausePlace.BEFORE_CALL, 3.0)]


def test_a_single_step_does_not_tell_what_is_usual_at_a_place() -> None:
    assert _pauses_of(_tables({(0, 0, 9): 3 * MS}, ranks=1)) == []


def test_a_host_pauses_within_a_launch() -> None:
    assert _pauses_of(_tables({}, {(1, 1, 9): 15 * MS})) == [(1, 1, PausePlace.WITHIN_CALL, 15.0)]


def test_a_launch_into_a_full_queue_waits_for_room() -> None:
    """The device has as many launches to run after the call as before."""
    assert _pauses_of(_tables({}, {(1, 1, 9): 15 * MS}, depth=100)) == []


@pytest.mark.parametrize("with_op", [True, False])
def test_a_host_pauses_before_its_first_call(with_op: bool) -> None:
    """The step's mark, and perhaps an op, are before this pause."""
    assert _pauses_of(_tables({}, opening=12 * MS, with_op=with_op)) == [(1, 0, PausePlace.BEFORE_FIRST_CALL, 12.0)]


@pytest.mark.parametrize(
    ("before", "within", "opening", "paused_ms"),
    [
        ({(1, 0, 9): 3 * MS}, {}, 0, 3),
        ({}, {(1, 1, 9): 15 * MS}, 0, 15),
    ],
)
def test_no_pauses_saves_the_pause(before: Paused, within: Paused, opening: int, paused_ms: float) -> None:
    tables = _tables(before, within, opening=opening)
    prediction = predict(tables, [parse_edit("no_pauses")])
    saved_ns = prediction.gain_fraction * prediction.recorded_ns
    assert saved_ns * 4 == pytest.approx(paused_ms * MS, abs=0.1 * MS)
