"""Gains that are only the cost of recording, by hand; on real traces in `trainer/test_gpu_traces.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tiny import Trace, table_set

from usp_prof.contract import Manifest
from usp_prof.model.edit import parse_edit
from usp_prof.whatif.predict import predict
from usp_prof.whatif.recording_cost import RecordingCost, recording_cost

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

US = 1_000

WAITS = RecordingCost(20.0, waited_ns=40.0)
"""Of a recorded step of 100 ns the device waits 40 for launches; 20 of these are the recording's."""


@pytest.mark.parametrize(
    ("after", "device", "unrecorded"),
    [
        (60, 60, 60),  # nothing waits for launches any more: the cost is not saved twice
        (80, 40, 60),  # device work is removed, but the waits and their cost stay
        (100, 60, 80),
        (80, 60, 70),  # half of the waits are left, and half of the cost
        (110, 60, 90),  # a change for the worse
    ],
)
def test_the_cost_shrinks_with_the_waits_for_launches(after: float, device: float, unrecorded: float) -> None:
    assert WAITS.taken_from(after, device) == pytest.approx(unrecorded)


def _tables(unrecorded_us: int) -> TableSet:
    """Make three steps of 1,000 us, in each of which the device waits 100 us for a launch."""
    trace = Trace()
    for number in range(3):
        at = number * 1000 * US
        trace.step(number, at, 1000 * US).op("aten::mm", at, 20 * US).op("aten::mm", at + 580 * US, 20 * US)
        trace.kernel("gemm", at + 10 * US, 490 * US, launch_at=at + 5 * US)
        trace.kernel("gemm", at + 600 * US, 410 * US, launch_at=at + 590 * US)
    return table_set({0: trace}, Manifest(unrecorded_step_ns={"0": unrecorded_us * US}))


@pytest.mark.parametrize(("unrecorded_us", "cost_us"), [(1200, 0), (998, 0), (960, 40), (400, 99)])
def test_the_cost_is_at_most_the_wait_for_launches(unrecorded_us: int, cost_us: int) -> None:
    """In steps that took 400 us before and 1,000 now, most of the difference has other causes."""
    cost = recording_cost(_tables(unrecorded_us))
    assert cost.is_known
    assert cost.ns == pytest.approx(cost_us * US, abs=2 * US)


@pytest.mark.parametrize(
    ("after", "device", "hidden"), [(90, 60, 0), (100, 60, 0), (100, 50, 10), (100, 0, 30), (60, 70, 0)]
)
def test_new_waits_after_a_change_may_be_recording_cost(after: float, device: float, hidden: float) -> None:
    cost = RecordingCost(20.0, waited_ns=40.0, host_ns=50.0)
    assert cost.hidden_ns(after, device) == hidden


@pytest.mark.parametrize(("cost", "matters"), [(0.4, False), (0.6, True)])
def test_costs_from_half_a_percent_of_the_step_matter(cost: float, matters: bool) -> None:
    assert RecordingCost(cost).matters(100) is matters


def _with_a_pause() -> TableSet:
    """Make three steps of 4 ms on two ranks, with ten ops per kernel; the host of rank 1 pauses 6 ms in the first."""
    traces = {}
    for rank in range(2):
        trace, at, free = Trace(rank=rank, world=2), 0, 0
        for number in range(3):
            began = at
            for call in range(40):
                at += 6_000 * US if (rank, number, call) == (1, 0, 3) else 0
                for part in range(10):
                    trace.op("aten::view", at + 10 * part * US, 8 * US)
                at += 100 * US
                free = max(free, at) + 95 * US
                trace.kernel("gemm", free - 95 * US, 95 * US, launch_at=at - US)
            trace.step(number, began, at - began)
        traces[rank] = trace
    return table_set(traces)


def test_a_pause_without_ops_is_no_cost_of_recording() -> None:
    """All ops of a step may cost 2 ms, and the devices wait for longer than that, but one of them for the pause."""
    tables = _with_a_pause()
    assert not recording_cost(tables).is_known
    prediction = predict(tables, [parse_edit("no_pauses")])
    assert prediction.gain_fraction == pytest.approx(1 / 5, abs=0.01)
    assert prediction.error_fraction < 0.5 * prediction.gain_fraction
