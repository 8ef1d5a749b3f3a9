"""Device without launch waits: its work runs immediately, even if the host never catches up."""

from __future__ import annotations

import pytest
from tiny import Trace, table_set

from usp_prof.model.edit import parse_edit
from usp_prof.whatif.predict import predict

US = 1_000
PACE, KERNEL, EACH, STEPS = 100 * US, 10 * US, 20, 4


def _behind(*, waits: bool) -> Trace:
    """Make steps of short kernels, each launched long after the one before it has ended."""
    trace = Trace()
    for step in range(STEPS):
        begin = step * EACH * PACE
        trace.step(step, begin, EACH * PACE)
        for number in range(EACH):
            at = begin + number * PACE
            trace.kernel("gemm", at + 15 * US, KERNEL, launch_at=at + 5 * US)
        if waits:
            trace.event("cudaDeviceSynchronize", "cuda_runtime", at + 20 * US, 6 * US, args={"correlation": 1})
    return trace


@pytest.mark.parametrize("waits", [False, True])
def test_a_host_that_is_always_behind_determines_the_step(waits: bool) -> None:
    prediction = predict(table_set({0: _behind(waits=waits)}), [parse_edit("no_launch_gaps")])
    device = EACH * KERNEL / (EACH * PACE)
    host = 0.08 if waits else 0.0  # between a wait and the next first launch the host does what it did
    assert prediction.before_ns == pytest.approx(EACH * PACE, rel=0.05)
    assert 1 - device - host - 0.05 < prediction.gain_fraction < 1 - device + 0.02
    assert 0.2 < prediction.error_fraction < 0.6, "how much of the host's work graphs take is not known"
