"""Known answers for time defects of other tools: HTA's A2, A7, A8, A15, B5, TraceLens's T5, T6, T8, T9, T11."""

from __future__ import annotations

import time

import made
import pytest
import tiny
from made import part, step

from usp_prof.analyses import breakdown, clock, collectives, critical_path, overlap, step_time, stragglers

US = 1_000


def test_a2_zero_length_and_submicrosecond_events_are_accepted() -> None:
    trace = tiny.Trace().step(1, 0, 20 * US)
    for k in range(5):
        trace.kernel("gemm", at=1_000 + 700 * k, dur=k * 7, launch_at=500 + k)
    tables = tiny.table_set(trace)
    assert breakdown.compute(tables).mean_ns()["compute"] == 7 + 14 + 21 + 28
    for analysis in (step_time, overlap, critical_path):
        analysis.compute(tables).values()


def test_a7_a_bubble_at_the_start_of_the_window_counts() -> None:
    """Rank 1 is idle for 60% of the step; the span of its own kernels would hide that."""
    work = {0: (0, 100), 1: (60, 30)}
    traces = {}
    for rank, (at, dur) in work.items():
        trace = tiny.Trace(rank, 2).step(1, 0, 100 * US).step(2, 100 * US, 10 * US)
        trace.memset(at=2, dur=1, launch_at=1)  # the step begins on both ranks
        trace.kernel("gemm", at=at * US + 3, dur=dur * US, launch_at=at * US + 2 if at else 2)
        trace.kernel("gemm", at=100 * US + 4, dur=US, launch_at=100 * US + 1)
        traces[rank] = trace
    parts = breakdown.compute(tiny.table_set(traces)).parts
    idle = {
        (r, s): int(i) / int(w)
        for r, s, i, w in zip(parts.rank.tolist(), parts.step.tolist(), parts.idle.sum(axis=1), parts.wall, strict=True)
    }
    assert idle[1, 1] == pytest.approx(0.7, abs=0.001)
    assert idle[0, 1] == pytest.approx(0.0, abs=0.001)


def test_a8_the_last_step_counts_and_later_work_does_not() -> None:
    trace = tiny.Trace(base=tiny.BASE + 12_345)
    for number in range(3):
        at = number * 1_000 * US
        trace.step(number, at, 900 * US).kernel("gemm", at=at + 10, dur=300 * US, launch_at=at + 1)
    trace.kernel("teardown", at=9_000 * US, dur=5_000 * US, launch_at=8_000 * US)
    result = breakdown.compute(tiny.table_set(trace))
    assert result.parts.step.tolist() == [0, 1, 2]
    assert result.parts.compute.tolist() == [300 * US] * 3


def test_a15_without_sync_events_the_path_still_includes_the_devices() -> None:
    def rank(own: int) -> tiny.Trace:
        trace = tiny.Trace(0 if own > 5 else 1, 2).group("1", [0, 1], "mesh_tp").step(1, 0, 40 * US)
        trace.kernel("gemm", at=US, dur=own * US, launch_at=10)
        met = (1 + own) * US
        return trace.collective("all_reduce", at=met, dur=12 * US - met, group="1", nelems=64, sequence=1, launch_at=20)

    result = critical_path.compute(tiny.table_set({0: rank(10), 1: rank(2)}))
    assert [piece.rank for piece in result.pieces] == [0]
    assert {share.part for share in result.shares} == {"compute", "comm:tp"}


@pytest.mark.parametrize("name", ["ncclKernel_AllReduce_RING_LL_Sum_float", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"])
def test_b5_stragglers_are_found_with_any_nccl_kernel_name(name: str) -> None:
    traces = {}
    for rank in range(3):
        met = (20 if rank == 1 else 10) * US
        trace = tiny.Trace(rank, 3).group("1", [0, 1, 2], "mesh_dp").step(1, 0, 50 * US)
        trace.kernel("gemm", at=1, dur=met - 1, launch_at=0)
        args = {"Process Group Name": "1", "Collective name": "allreduce", "Group size": 3, "Seq": 4, "dtype": "Float",
                "Process Group Ranks": "[0, 1, 2]", "In msg nelems": 8, "Out msg nelems": 8}  # fmt: skip
        trace.kernel(name, at=met, dur=25 * US - met, stream=20, launch_at=2, args=args)
        traces[rank] = trace
    assert [c.rank for c in stragglers.compute(tiny.table_set(traces)).culprits] == [1]


def shifted(skew_ns: int, late_ns: int = 0) -> made.TableSet:
    """Two hosts with two ranks each. The second host's clock has an offset, and rank 3 is late."""
    tables = {}
    for rank in range(4):
        off, late = (skew_ns if rank > 1 else 0), (late_ns if rank == 3 else 0)
        parts = [
            part("all_reduce", k * 10_000_000 + 1_000_000 + late + off, k * 10_000_000 + 9_000_000 + off, sequence=k,
                 part=k, step=k, group="g@0,1,2,3", group_size=4)
            for k in range(8)
        ]  # fmt: skip
        windows = [step(k, k * 10_000_000 + off, (k + 1) * 10_000_000 + off) for k in range(8)]
        tables[rank] = {"collectives": parts, "steps": windows, "ranks": [{"host": f"n{rank // 2}", "base_ns": 1}]}
    return made.run(tables)


def test_t5_a_clock_offset_is_not_waiting() -> None:
    tables = shifted(5_000_000)
    assert clock.compute(tables).clock.offset_ns.tolist() == [0, 0, -5_000_000, -5_000_000]
    waits = [v.value for v in collectives.compute(tables).values() if v.metric is collectives.WAIT_TIME]
    assert set(waits) == {0}
    late = {row.rank: row.late for row in stragglers.compute(shifted(5_000_000, late_ns=2_000_000)).lateness}
    assert late == {0: 0, 1: 0, 2: 0, 3: 8}


def test_t6_without_skew_no_rank_is_late() -> None:
    assert {row.late for row in stragglers.compute(shifted(0)).lateness} == {0}


def test_t8_sends_and_receives_have_traffic() -> None:
    traces = {}
    for rank in range(2):
        trace = tiny.Trace(rank, 2).group("1", [0, 1], "mesh_pp").step(1, 0, 50 * US)
        op = "recv" if rank else "send"
        trace.collective(op, at=US, dur=9 * US, group="1", nelems=1_000, peer=1 - rank, launch_at=5)
        traces[rank] = trace
    pairs = collectives.compute(tiny.table_set(traces)).pairs
    assert [(p.source, p.target, p.axis, p.bytes) for p in pairs] == [(0, 1, "pp", 4_000)]


def test_t9_four_thousand_collectives_on_sixteen_ranks_are_matched_fast() -> None:
    """Other tools need 26 s; this bound leaves a factor of ten for a busy machine."""
    rows = [part("all_reduce", 10 * k, 10 * k + 9, sequence=k, part=k, group_size=16, in_bytes=8) for k in range(250)]
    tables = made.run({rank: {"collectives": rows, "steps": [step(0, 0, 3_000)]} for rank in range(16)})
    begun = time.process_time()
    collectives.compute(tables).values()
    stragglers.compute(tables).values()
    assert time.process_time() - begun < 3


def test_t11_gloo_traces_are_analyzed_like_nccl_traces() -> None:
    traces = {}
    for rank in range(2):
        trace = tiny.Trace(rank, 2, device="cpu").group("1", [0, 1], "mesh_dp").step(1, 0, 50 * US)
        trace.op("aten::mm", at=US, dur=(5 + 10 * rank) * US, dims=[[4, 4], [4, 4]])
        at = (7 + 10 * rank) * US
        trace.gloo("all_reduce", at=at, dur=30 * US - at, dims=[64], posted_at=at - 100, group="1", sequence=1)
        traces[rank] = trace
    tables = tiny.table_set(traces)
    assert breakdown.compute(tables).mean_ns()["comm:dp"] > 0
    assert [c.rank for c in stragglers.compute(tables).culprits] == [1]
    assert collectives.compute(tables).kinds[0].algbw > 0
