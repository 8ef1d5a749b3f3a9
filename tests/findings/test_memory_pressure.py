"""Memory pressure: allocator calls count only within known steps."""

from __future__ import annotations

import made
import pytest
from made import step, work

from usp_prof.findings.rules.blocked_host import MemoryPressure


def tables(source: str, call_step: int) -> made.TableSet:
    call = {"event": 5, "name": "cudaFree", "kind": "malloc", "start_ns": 10, "dur_ns": 6_000, "step": call_step}
    rows = {
        "activities": [work("compute", 7_000, 8_000, event=1, lane="stream 7", launch_event=4)],
        "kernels": [
            {"event": 1, "name": "k", "kind": "compute", "start_ns": 7_000, "dur_ns": 1_000, "launch_event": 4}
        ],
        "launches": [call, {"event": 4, "name": "cudaLaunchKernel", "kind": "launch", "start_ns": 6_500, "dur_ns": 10}],
        "steps": [step(0, 0, 10_000) | {"source": source}],
    }
    return made.run({0: rows})


@pytest.mark.parametrize(
    ("source", "call_step", "findings"),
    [("profiler_step", 0, 1), ("profiler_step", -1, 0), ("window", 0, 0)],
)
def test_allocator_calls_count_only_within_known_steps(source: str, call_step: int, findings: int) -> None:
    assert len(list(MemoryPressure.look(tables(source, call_step)))) == findings
