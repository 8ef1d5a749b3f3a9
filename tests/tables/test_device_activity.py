"""Ranks without recorded device work: host work is not compute, and no device figure is shown."""

from __future__ import annotations

from typing import Any

import pytest
from tiny import Trace, table_set

from usp_prof.analyses import breakdown, kernels, overlap, step_time, stragglers
from usp_prof.report.build import analyze, build


def host_only(rank: int = 0, world: int = 1) -> Trace:
    """Return a rank of a GPU run recorded with activities=[CPU, CUDA], whose kernels are missing."""
    trace = Trace(rank, world).step(1, at=0, dur=10_000).step(2, at=10_000, dur=10_000)
    for at in (100, 5_000, 10_100, 15_000):
        trace.op("aten::mm", at, 4_000).launch(at, at + 10)
    return trace


def full_trace(rank: int = 0, world: int = 1) -> Trace:
    """Return the same rank with its kernels."""
    trace = host_only(rank, world)
    for at in (100, 5_000, 10_100, 15_000):
        trace.kernel("gemm", at + 200, 2_000, correlation=at)
    return trace


@pytest.mark.parametrize("analysis", [breakdown, overlap, step_time, stragglers, kernels])
def test_host_ops_are_not_compute_if_kernels_are_missing(analysis: Any) -> None:
    tables = table_set(host_only())
    assert analysis.compute(tables).values() == []
    (row,) = [row for row in tables.health if row.code == "no_device_activity"]
    assert row.rank == 0
    assert "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]" in row.detail


def test_the_report_states_what_is_missing() -> None:
    tables = table_set({0: host_only(0, 2), 1: host_only(1, 2)})
    document = build(tables, analyze(tables), name="x")
    assert {value.metric.id for value in document.values} & {"compute_time", "idle_time", "slowdown", "mfu"} == set()
    assert document.findings == ()
    assert "no_device_activity" in {row.code for row in document.health}


def test_the_other_ranks_keep_their_figures() -> None:
    tables = table_set({0: full_trace(0, 2), 1: host_only(1, 2)})
    values = breakdown.compute(tables).values()
    ranks = {value.dims["rank"] for value in values if "rank" in value.dims}
    assert ranks == {0}
    assert [row.rank for row in tables.health if row.code == "no_device_activity"] == [1]
    assert {culprit.rank for culprit in stragglers.compute(tables).culprits} <= {0}


@pytest.mark.parametrize(
    ("trace", "kind"),
    [
        (Trace(device="cpu").op("aten::mm", 0, 50), "cpu"),
        (Trace(device="cpu").op("aten::mm", 0, 50).gloo("all_reduce", 60, 5, posted_at=58), "cpu"),
        # With CUDA activity the profiler itself synchronizes; nothing was launched.
        (Trace(device="cpu").op("aten::mm", 0, 50).launch(0, 60, name="cudaDeviceSynchronize"), "cpu"),
        # gloo on a machine that has GPUs.
        (Trace(device="cpu").meta(deviceProperties=[{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}])
         .op("aten::mm", 0, 50).gloo("all_reduce", 60, 5, posted_at=58), "cpu"),
        (Trace(device="cpu").op("aten::mm", 0, 50).launch(1, 60), "unrecorded"),
        (Trace(device="cpu").op("aten::mm", 0, 50).launch(1, 60, name="hipMemcpyAsync"), "unrecorded"),
        (Trace().meta(deviceProperties=[{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]).op("aten::mm", 0, 50),
         "unrecorded"),
        (full_trace(), "cuda"),
    ],
)  # fmt: skip
def test_a_device_is_unrecorded_only_if_other_events_mention_it(trace: Trace, kind: str) -> None:
    tables = table_set(trace)
    assert tables.columns("ranks", 0)["device_kind"].tolist() == [kind]
    assert bool(len(tables.columns("activities", 0))) is (kind != "unrecorded")


def test_an_op_that_waits_for_communication_is_not_compute() -> None:
    """A distributed tensor's op waits for its input; only the inner op, on the local tensor, computes."""
    trace = Trace(device="cpu").step(1, at=0, dur=200).op("aten::add", 0, 100)
    trace.op("_c10d_functional::wait_tensor", 10, 60).op("aten::add", 75, 20).op("aten::mm", 110, 50)
    compute = table_set(trace).columns("activities", 0)
    assert compute["dur_ns"].tolist() == [20, 50]
