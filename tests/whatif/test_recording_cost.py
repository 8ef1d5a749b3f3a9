"""What of a gain is the cost of recording alone? By hand; on real traces in `trainer/test_gpu_traces.py`."""

from __future__ import annotations

import pytest

from usp_prof.whatif.recording_cost import RecordingCost

WAITS = RecordingCost(20.0, waited_ns=40.0)
"""Of a recorded step of 100 ns the device waits 40 for launches; 20 of these are the recording's."""


@pytest.mark.parametrize(
    ("after", "device", "gain"),
    [
        (60, 60, 1 - 60 / 80),  # nothing waits for launches any more: the cost is not saved twice
        (80, 40, 1 - 60 / 80),  # work of the device goes, the waits stay, and the cost with them
        (100, 60, 0),
        (80, 60, 1 - 70 / 80),  # half of the waits are left, and half of the cost
        (110, 60, 1 - 90 / 80),  # a change for the worse
    ],
)
def test_the_cost_shrinks_with_the_waits_for_launches(after: float, device: float, gain: float) -> None:
    assert WAITS.gain_fraction(100, after, device) == pytest.approx(gain)


def test_a_run_that_waits_for_no_launch_is_as_it_was_recorded() -> None:
    assert RecordingCost(5.0, waited_ns=0.0).gain_fraction(100, 50, 50) == pytest.approx(1 - 50 / 95)


@pytest.mark.parametrize(("cost", "matters"), [(0.4, False), (0.6, True)])
def test_half_a_per_cent_of_the_step_is_seen(cost: float, matters: bool) -> None:
    assert RecordingCost(cost).matters(100) is matters
