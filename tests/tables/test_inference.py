"""Inference: each axis inferred from traffic, its reason, and counter-examples that stay unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tiny import Trace, table_set

if TYPE_CHECKING:
    from collections.abc import Callable

    from usp_prof.tables.table_set import TableSet

MEGABYTE = 1 << 18  # elements of four bytes
LARGE = [4, 256, 1024]


def run(world: int, build: Callable[[Trace], Trace], ranks: range | None = None) -> TableSet:
    return table_set({rank: build(Trace(rank, world).step(1, 0, 900_000)) for rank in ranks or range(world)})


def axes(tables: TableSet) -> set[tuple[str, str]]:
    sources: set[tuple[str, str]] = set()
    for rank in tables.ranks:
        parts = tables.columns("collectives", rank)
        sources |= set(zip(parts["axis"].tolist(), parts["axis_source"].tolist(), strict=True))
    return sources


def reasons(tables: TableSet) -> list[str]:
    return [row.detail for row in tables.health if row.code == "axis_inferred"]


def bare(trace: Trace, kernel: str, count: int = 3) -> Trace:
    """Add kernels without any information about their group."""
    for number in range(count):
        trace.kernel(kernel, 1_000 + 100 * number, 50, stream=20, launch_at=10 + 40 * number)
    return trace


BACKWARD = 400_000
"""Moment from which the autograd engine runs in these traces."""


def reductions(trace: Trace, *moments: int, nelems: int = MEGABYTE, op: str = "all_reduce", group: str = "0") -> Trace:
    """Add reductions posted at these moments, and a backward pass."""
    trace.group("0", list(range(trace.world)), "default_pg")
    trace.op("autograd::engine::evaluate_function: AddmmBackward0", BACKWARD, 100_000)
    for number, moment in enumerate(moments):
        trace.collective(op, moment + 50, 60, group=group, nelems=nelems, launch_at=moment, sequence=number)
    return trace


@pytest.mark.parametrize(("forward_at", "axis"), [(100_000, "dp"), (520_000, "unknown")])
def test_gradients_may_be_reduced_between_backward_and_optimizer(forward_at: int, axis: str) -> None:
    """DeepSpeed reduces its last bucket when the engine has ended; a growing sequence number is a forward pass."""

    def build(trace: Trace) -> Trace:
        for number in range(3):
            trace.op("aten::mm", forward_at + 1_000 * number, 900, sequence=10 + number)
        return reductions(trace, BACKWARD + 200_000)

    assert {name for name, _ in axes(run(2, build))} == {axis}


@pytest.mark.parametrize(
    ("kernel", "axis"),
    [
        ("void deep_ep::intranode::dispatch<8>(x)", "ep"),
        ("void vllm::cross_device_reduce_1stage<half, 2>(x)", "tp"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "unknown"),
        ("ncclDevKernel_SendRecv(x)", "unknown"),
        ("ncclDevKernel_AllGather_RING_LL(x)", "unknown"),
        ("void multimem_all_reduce_kernel<c10::BFloat16>(x)", "unknown"),
    ],
)
@pytest.mark.parametrize("ranks", [range(16), range(8), range(1)])
def test_a_kernel_has_the_same_axis_on_every_rank_or_none(kernel: str, axis: str, ranks: range) -> None:
    tables = run(16, lambda trace: bare(trace, kernel), ranks)
    assert axes(tables) == {(axis, "none" if axis == "unknown" else "inferred")}
    assert len(reasons(tables)) == (axis != "unknown")
    assert tables.topology.axes == {}


def test_reductions_in_backward_only_are_gradients() -> None:
    late = range(BACKWARD + 1_000, BACKWARD + 9_000, 1_000)
    tables = run(2, lambda trace: reductions(trace, *late))
    assert axes(tables) == {("dp", "inferred")}
    assert tables.topology.axes == {"dp": 2}
    assert "none in forward" in reasons(tables)[0]
    assert "none in forward" in tables.topology.groups[0].axis_reason
    assert tables.columns("groups", 0)["axis_reason"].tolist() == [tables.topology.groups[0].axis_reason]


@pytest.mark.parametrize("count", [3, 30])
def test_inference_has_no_gradients(count: int) -> None:
    def build(trace: Trace) -> Trace:
        trace.group("0", list(range(16)), "default_pg")
        for number in range(count):
            trace.collective(
                "all_reduce", 1_000 + 100 * number, 50, group="0", nelems=MEGABYTE, launch_at=10 + 40 * number
            )
        return trace

    assert axes(run(16, build)) == {("unknown", "none")}
    assert axes(run(16, build, range(1))) == {("unknown", "none")}


def test_a_norm_reduced_around_the_optimizer_has_no_axis() -> None:
    tables = run(2, lambda trace: reductions(trace, BACKWARD + 1_000, BACKWARD + 2_000, nelems=1))
    assert axes(tables) == {("unknown", "none")}


def test_reductions_in_forward_and_backward_are_activations() -> None:
    moments = [*range(1_000, 9_000, 1_000), *range(BACKWARD + 1_000, BACKWARD + 9_000, 1_000)]
    tables = run(2, lambda trace: reductions(trace, *moments))
    assert axes(tables) == {("tp", "inferred")}
    assert "in forward and in backward" in reasons(tables)[0]


def test_batch_statistics_are_not_activations() -> None:
    """Synchronized batch norm reduces a vector of each layer in forward and in backward: that is data parallel."""
    moments = [*range(1_000, 9_000, 1_000), *range(BACKWARD + 1_000, BACKWARD + 9_000, 1_000)]
    assert axes(run(2, lambda trace: reductions(trace, *moments, nelems=2_048))) == {("unknown", "none")}


def test_tied_embeddings_of_a_pipeline_are_not_gradients() -> None:
    def build(trace: Trace) -> Trace:
        trace = reductions(trace, BACKWARD + 1_000)
        return trace.collective("send", 5_000, 50, group="0", nelems=8, launch_at=4_000, peer=1 - trace.rank)

    assert axes(run(2, build)) == {("unknown", "none")}


def test_similar_groups_have_the_same_axis() -> None:
    """Two nodes with four ranks each; the work of the second node was launched before the window."""
    late = range(BACKWARD + 1_000, BACKWARD + 9_000, 1_000)

    def build(trace: Trace) -> Trace:
        node = trace.rank // 4
        trace.group(str(node + 1), list(range(4 * node, 4 * node + 4)))
        if node == 0:
            return reductions(trace, *late, group="1")
        return trace.collective("all_reduce", 2_000, 50, group="2", nelems=MEGABYTE)

    assert axes(run(8, build)) == {("dp", "inferred")}


def test_a_library_function_around_a_reduction_determines_the_axis() -> None:
    def build(trace: Trace) -> Trace:
        trace.op("_ReduceFromModelParallelRegion", 900, 200)
        return reductions(trace, 1_000)

    assert axes(run(2, build)) == {("tp", "mark")}


def sendrecv(trace: Trace, *calls: tuple[str, int, int], nelems: int | list[int] = 1024) -> Trace:
    """Add sends and receives in order: operation, peer, moment."""
    trace.group("0", list(range(trace.world)), "default_pg")
    for number, (op, peer, moment) in enumerate(calls):
        size = nelems if isinstance(nelems, int) else nelems[number % len(nelems)]
        trace.collective(
            op, moment, 50, group="0", nelems=size, launch_at=moment - 40, peer=peer, stream=20 + number % 2
        )
    return trace


def pipeline(trace: Trace, **rest: Any) -> Trace:
    """GPipe with four micro-batches: all forward, then all backward."""
    rank, last = trace.rank, trace.world - 1
    calls = []
    for batch in range(4):
        at = 1_000 + 1_000 * batch + 300 * rank
        calls += [("recv", rank - 1, at)] * (rank > 0) + [("send", rank + 1, at + 200)] * (rank < last)
    for batch in range(4):
        at = 9_000 + 1_000 * batch + 300 * (last - rank)
        calls += [("recv", rank + 1, at)] * (rank < last) + [("send", rank - 1, at + 200)] * (rank > 0)
    return sendrecv(trace, *calls, **rest)


def ring(trace: Trace) -> Trace:
    at, size = range(1_000, 9_000, 1_000), trace.world
    return sendrecv(
        trace,
        *(call for t in at for call in (("send", (trace.rank + 1) % size, t), ("recv", (trace.rank - 1) % size, t))),
    )


def halo(trace: Trace) -> Trace:
    near = [rank for rank in (trace.rank - 1, trace.rank + 1) if 0 <= rank < trace.world]
    return sendrecv(
        trace, *((op, rank, t) for t in range(1_000, 9_000, 1_000) for rank in near for op in ("send", "recv"))
    )


def everybody(trace: Trace) -> Trace:
    peers = [rank for rank in range(trace.world) if rank != trace.rank]
    return sendrecv(trace, *((op, rank, 1_000) for rank in peers for op in ("send", "recv")))


def test_sends_that_precede_their_answers_are_a_pipeline() -> None:
    tables = run(4, pipeline)
    assert axes(tables) == {("pp", "inferred")}
    assert tables.topology.axes == {"pp": 4}
    assert axes(run(4, pipeline, range(1, 2))) == {("pp", "inferred")}


@pytest.mark.parametrize(
    "build", [ring, halo, everybody, lambda trace: pipeline(trace, nelems=[1 << size for size in range(8, 16)])]
)
def test_other_sends_are_not_a_pipeline(build: Callable[[Trace], Trace]) -> None:
    assert axes(run(4, build)) == {("unknown", "none")}


def half_job(trace: Trace, late: int) -> Trace:
    """Two replicas with two ranks each do the same work; the second one is later."""
    behind = late * (trace.rank // 2)
    for number in range(8):
        at = 10_000 + 100_000 * number + behind * (number + 1)
        trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", at, 50_000, stream=20, launch_at=at - 5_000)
    return trace


@pytest.mark.parametrize(("late", "group"), [(0, "@0,1,2,3"), (60_000, "")])
def test_kernels_without_a_group_belong_to_all_ranks_if_they_end_together(late: int, group: str) -> None:
    tables = run(4, lambda trace: half_job(trace, late))
    assert set(tables.columns("collectives", 3)["group"].tolist()) == {group}


def test_two_streams_may_start_their_calls_in_another_order_on_each_rank() -> None:
    """A rank whose host is late launches the gather of one stream after the reduction of another."""

    def build(trace: Trace) -> Trace:
        for number in range(8):
            at, behind = 10_000 + 100_000 * number, 20_000 * (trace.rank == 2)
            trace.kernel("ncclDevKernel_AllGather_RING_LL(x)", at + behind, 50_000 - behind, stream=20, launch_at=at)
            trace.kernel("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)", at + 9_000, 60_000, stream=24, launch_at=at)
        return trace

    tables = run(4, build)
    assert {group for rank in range(4) for group in tables.columns("collectives", rank)["group"].tolist()} == {
        "@0,1,2,3"
    }


def test_ranks_without_a_host_name_may_have_different_clocks() -> None:
    def build(trace: Trace) -> Trace:
        offset = 5_000_000 * (trace.rank // 2)
        for number in range(8):
            at = 10_000 + 100_000 * number + offset
            trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", at, 50_000, stream=20, launch_at=at - 5_000)
        return trace.step(2, 900_000, 9_000_000)

    assert set(run(4, build).columns("collectives", 3)["group"].tolist()) == {"@0,1,2,3"}


def test_a_single_file_does_not_determine_groups() -> None:
    tables = run(4, lambda trace: half_job(trace, 0), range(1))
    assert set(tables.columns("collectives", 0)["group"].tolist()) == {""}


def test_a_group_of_half_the_ranks_is_not_the_world() -> None:
    def build(trace: Trace) -> Trace:
        trace.group("1", [0, 1], "mesh_tp").group("2", [0, 1, 2, 3])
        return trace.collective("all_reduce", 1_000, 50, group="2", nelems=MEGABYTE, launch_at=500)

    tables = table_set({0: build(Trace(0, 8).step(1, 0, 9_000))})
    assert axes(tables) == {("unknown", "none")}
