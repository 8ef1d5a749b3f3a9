"""Links: the host call that launched a kernel, and the result for ambiguous ids."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from tiny import BASE, Trace, table_set

from usp_prof.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.tables.table_set import TableSet

STEPS = 3
STEP_NS = 10_000
"""Host and device take as long for a step; the device runs 2,000 ns behind."""


def trained(correlation: int | None = None, *, only_steps: tuple[int, ...] = (1, 2, 3)) -> Trace:
    """Make three steps with four kernels each; in some steps, all launches have the same correlation id."""
    trace = Trace()
    for step in range(1, STEPS + 1):
        begin = (step - 1) * STEP_NS
        trace.step(step, begin, STEP_NS)
        for place in range(4):
            at = begin + 100 + 2_000 * place
            shared = correlation if step in only_steps else None
            trace.op("aten::mm", at - 20, 60)
            trace.kernel("gemm", at + 2_000, 1_500, launch_at=at, correlation=shared)
    return trace


def counted(tables: TableSet) -> dict[str, tuple[str, int]]:
    rows = tables.columns("health", 0)
    return {
        code: (severity, count)
        for code, severity, count in zip(
            rows["code"].tolist(), rows["severity"].tolist(), rows["count"].tolist(), strict=True
        )
    }


def test_an_id_shared_by_separate_calls_links_nothing() -> None:
    tables = table_set(trained(correlation=7))
    kernels = tables.columns("kernels", 0)
    assert (kernels["launch_event"] == -1).all()
    assert (kernels["op_event"] == -1).all()
    assert (tables.columns("launches", 0)["kernels"] == 0).all()
    counts = counted(tables)
    assert counts["ambiguous_correlation"] == ("error", len(kernels))
    assert "duplicate_correlation" not in counts
    assert "unlinked_kernels" not in counts


def test_with_useless_ids_the_host_marks_are_the_steps() -> None:
    tables = table_set(trained(correlation=7))
    steps = tables.columns("steps", 0)
    assert (steps["end_ns"] - steps["start_ns"]).tolist() == [STEP_NS] * STEPS
    assert "steps_by_host" in counted(tables)


def test_a_step_without_identified_launches_is_not_merged_with_the_previous_one() -> None:
    tables = table_set(trained(correlation=7, only_steps=(2,)))
    steps = tables.columns("steps", 0)
    assert steps["step"].tolist() == [1, 2, 3]
    assert (steps["end_ns"] - steps["start_ns"]).tolist() == [STEP_NS] * STEPS
    assert counted(tables)["steps_by_host"][0] == "error"


def launches(trace: Trace) -> dict[int, dict[str, Any]]:
    """Return the launch calls of a trace by their time."""
    return {event["ts"]: event for event in trace.events if event["cat"] == "cuda_runtime"}


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("other", ["the next", "a later one", "no other"])
def test_a_step_with_an_unknown_first_launch_is_not_shortened(step: int, other: str) -> None:
    """Its first kernel is no longer linked, but the host's marks still contain it."""
    trace = trained()
    begin = (step - 1) * STEP_NS
    call = launches(trace)
    damaged = call[begin + 2_100 if other == "the next" else begin + 100]
    damaged["args"]["correlation"] = {
        "the next": call[begin + 100]["args"]["correlation"],
        "a later one": call[begin + 4_100]["args"]["correlation"],
        "no other": 999_999,
    }[other]
    tables = table_set(trace)
    steps = tables.columns("steps", 0)
    assert (steps["end_ns"] - steps["start_ns"]).tolist() == [STEP_NS] * STEPS
    assert counted(tables)["steps_by_host"][0] == "error"


def test_a_shared_id_affects_only_its_own_kernels() -> None:
    trace = trained()
    call = launches(trace)
    call[4_100]["args"]["correlation"] = call[2_100]["args"]["correlation"]
    tables = table_set(trace)
    steps = tables.columns("steps", 0)
    counts = counted(tables)
    assert counts["ambiguous_correlation"] == ("error", 1)
    assert counts["unlinked_kernels"] == (
        "error",
        1,
    )  # more than 1% of this small trace; no call has the kernel's id any more
    assert "steps_by_host" not in counts
    assert (steps["start_ns"] - BASE).tolist() == [2_100, 12_100, 22_100]


@pytest.mark.parametrize("outer_first", [True, False])
def test_the_outermost_of_nested_calls_counts(outer_first: bool) -> None:
    trace = Trace().step(1, 0, 9_000)
    spans = [("cudaLaunchKernel", 100, 30), ("cuLaunchKernel", 100, 20)]
    for name, at, dur in spans if outer_first else spans[::-1]:
        trace.launch(7, at, dur, name=name, category="cuda_driver" if name.startswith("cuL") else "cuda_runtime")
    tables = table_set(trace.kernel("gemm", 1_000, 400, correlation=7))
    launches = tables.columns("launches", 0)
    assert dict(zip(launches["name"].tolist(), launches["kernels"].tolist(), strict=True)) == {
        "cudaLaunchKernel": 1,
        "cuLaunchKernel": 0,
    }
    assert counted(tables)["duplicate_correlation"] == ("info", 1)


def test_concurrent_calls_of_two_threads_are_not_nested() -> None:
    trace = Trace().step(1, 0, 9_000).launch(7, 100, 30).launch(7, 105, 20, thread=99)
    tables = table_set(trace.kernel("gemm", 1_000, 400, correlation=7))
    assert tables.columns("kernels", 0)["launch_event"].tolist() == [-1]
    assert counted(tables)["ambiguous_correlation"] == ("error", 1)


def test_an_external_id_shared_by_separate_ops_links_nothing() -> None:
    trace = Trace().step(1, 0, 9_000)
    for at in (100, 300):
        trace.op("aten::mm", at, 50, external_id=5)
    trace.kernel("gemm", 1_000, 400, correlation=9, args={"External id": 5})
    assert table_set(trace).columns("kernels", 0)["op_event"].tolist() == [-1]


def test_every_kernel_of_a_sound_trace_is_linked_in_order() -> None:
    kernels = table_set(trained()).columns("kernels", 0)
    assert all(before < after for before, after in pairwise(kernels["launch_event"].tolist()))
    assert set(kernels["op"].tolist()) == {"aten::mm"}


def test_work_that_follows_at_once_does_not_overlap_after_rounding(tmp_path: Path) -> None:
    """Two kernels of 2.0004 us: rounded one by one, the first would end 1 ns after the second starts."""
    kernels = [
        {"ph": "X", "cat": "kernel", "name": f"k{place}", "pid": 0, "tid": 7, "ts": start, "dur": 2.0006,
         "args": {"stream": 7, "device": 0}}
        for place, start in enumerate((1.0, 3.0004, 5.001))
    ]  # fmt: skip
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": BASE, "traceEvents": kernels}))
    own = open_run(path, cache_dir=tmp_path / "cache").tables.columns("kernels", 0)
    assert own["lane"].tolist() == [0, 0, 0]
    assert own["dur_ns"].tolist() == [2_000, 2_001, 2_001]
