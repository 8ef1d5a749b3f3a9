"""Groups suggested by a rank's workers: kept while members agree, else moved to the only set of ranks that does."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import Trace, table_set

from usp_prof.tables.communication.posts import _in_order_of_kind
from usp_prof.tables.parallelism.gloo_groups import _assign

WORLD, STAGES, PIPELINES = [0, 1, 2, 3], ([0, 1], [2, 3]), ([0, 2], [1, 3])


def trained(rank: int, sizes: list[int], *, pairs: tuple[list[int], ...] = STAGES, op: str = "all_reduce") -> Trace:
    """One gloo worker runs all-reduces without a group in the trace; those of size 0 were not recorded."""
    trace = Trace(rank, 4, device="cpu").group("0", WORLD, "default_pg").step(1, 0, 90_000)
    for number, ranks in enumerate(pairs, 1):
        if rank in ranks:
            trace.group(str(number), ranks, "undefined")
    for number, size in enumerate(sizes):
        if size:
            trace.gloo(op, 1_000 * (number + 1), 50, dims=[size], thread=300)
    return trace


def groups_of(sizes: dict[int, list[int]], *, pairs: tuple[list[int], ...] = STAGES) -> dict[int, set[tuple[str, int]]]:
    tables = table_set({rank: trained(rank, own, pairs=pairs) for rank, own in sizes.items()})
    return {
        rank: set(zip(parts["group"].tolist(), parts["group_size"].tolist(), strict=True))
        for rank in sizes
        for parts in [tables.columns("collectives", rank)]
    }


def test_members_with_equal_calls_keep_their_group() -> None:
    groups = groups_of({rank: [100, 200] for rank in range(4)})
    assert all(groups[rank] == {("0@0,1,2,3", 4)} for rank in range(4))


def test_stages_with_different_parameters_have_separate_groups() -> None:
    groups = groups_of({0: [100, 200], 1: [100, 200], 2: [100, 300], 3: [100, 300]})
    assert groups[0] == groups[1] == {("1@0,1", 2)}
    assert groups[2] == groups[3] == {("2@2,3", 2)}


def test_members_run_their_calls_at_the_same_times() -> None:
    """All ranks run the same all-reduces, some together, the rest at other times on ranks 0 and 2 than on 1 and 3."""
    traces = {}
    for rank in WORLD:
        trace = trained(rank, [], pairs=(*STAGES, *PIPELINES))
        for number in range(20):
            at = 1_000_000 * (number + 1)
            trace.gloo("all_gather", at, 50_000, dims=[8], thread=290)
            trace.gloo("all_reduce", at + 300_000 * (rank % 2 + 1), 50_000 + rank, dims=[8], thread=300)
        traces[rank] = trace
    tables = table_set(traces)
    for rank in WORLD:
        parts = tables.columns("collectives", rank)
        assert set(parts["group"][parts.matches("op", "all_gather")].tolist()) == {"0@0,1,2,3"}
        pipeline = "3@0,2" if rank % 2 == 0 else "4@1,3"
        assert set(parts["group"][parts.matches("op", "all_reduce")].tolist()) == {pipeline}


def test_the_axis_of_a_replaced_group_is_inferred() -> None:
    traces = {}
    for rank in WORLD:
        trace = trained(rank, [100, 200 if rank < 2 else 300], pairs=())
        traces[rank] = trace.group("1", STAGES[rank // 2], "mesh_dp")
    parts = table_set(traces).columns("collectives", 0)
    assert set(zip(parts["group"], parts["axis"], parts["axis_source"], strict=True)) == {("1@0,1", "dp", "inferred")}


def test_groups_stay_if_every_tenth_event_is_missing() -> None:
    """The ranks lack different calls, and two of them run theirs at other times."""
    traces = {}
    for rank in WORLD:
        trace = trained(rank, [], pairs=())
        trace.group("1", STAGES[rank // 2], "mesh_tp").group("2", [rank], "mesh_cp")
        for number in range(40):
            at = 1_000_000 * (number + 1)
            trace.gloo("all_gather", at, 50_000, dims=[8], thread=290)
            if number % (9 + rank):
                trace.gloo("all_reduce", at + 300_000 * (rank // 2 + 1), 50_000 + rank, dims=[8], thread=300)
        traces[rank] = trace
    parts = table_set(traces).columns("collectives", 0)
    assert set(parts["group"][parts.matches("op", "all_reduce")].tolist()) == {"1@0,1"}


@pytest.mark.parametrize("is_tied", [True, False])
def test_transfers_show_that_ranks_have_one_clock(is_tied: bool) -> None:
    """Stages never run a collective together. Without transfers, their clocks may differ by the 300 us."""
    traces = {}
    for rank in WORLD:
        trace, peer = trained(rank, [], pairs=(*STAGES, *PIPELINES)), (rank + 2) % 4
        for number in range(20):
            at = 1_000_000 * (number + 1)
            trace.gloo("all_reduce", at + 300_000 * (rank // 2), 50_000 + rank, dims=[8], thread=300)
            if is_tied:
                trace.gloo("send", at + 600_000, 50_000, dims=[64], peer=peer, posted_at=at + 599_000)
                trace.gloo("recv", at + 700_000, 50_000, dims=[64], peer=peer, posted_at=at + 699_000)
        traces[rank] = trace
    tables = table_set(traces)
    for rank in WORLD:
        parts = tables.columns("collectives", rank)
        stage = "1@0,1" if rank < 2 else "2@2,3"
        assert set(parts["group"][parts.matches("op", "all_reduce")]) == {stage if is_tied else "0@0,1,2,3"}


@pytest.mark.parametrize("is_refuted", [True, False])
def test_a_group_that_times_refute_is_unknown_unless_another_fits(is_refuted: bool) -> None:
    """Rank 0 starts one of the all-reduces when rank 1 has ended it; no smaller group fits."""
    traces = {}
    for rank in WORLD:
        trace = trained(rank, [])
        for number in range(20):
            is_late = is_refuted and number == 7 and rank in (0, 2)
            trace.gloo("all_reduce", 1_000_000 * (number + 1) + 300_000 * is_late, 100_000, dims=[8], thread=300)
        traces[rank] = trace
    parts = table_set(traces).columns("collectives", 1)
    assert set(parts["group"].tolist()) == {"" if is_refuted else "0@0,1,2,3"}


def test_a_scatter_of_equal_sizes_has_a_group_of_one_rank() -> None:
    trace = Trace(0, 2, device="cpu").group("0", [0, 1], "default_pg").step(1, 0, 90_000)
    trace.group("1", [0], "DATA_PARALLEL_GROUP").group("3", [0, 1], "TENSOR_MODEL_PARALLEL_GROUP")
    for number in range(4):
        at = 1_000 + 10_000 * number
        trace.op("c10d::_reduce_scatter_base_", at, 20, dims=[[32], [32]], types=["float", "float"])
        trace.gloo("reduce_scatter", at + 30, 50, dims=[32], thread=300)
    assert set(table_set(trace).columns("collectives", 0)["group"].tolist()) == {"1@0"}


def test_a_mark_of_one_axis_fits_a_group_of_two() -> None:
    """Megatron gathers the numbers of tokens over experts and tensor-parallel ranks, in a function of the latter."""
    trace = Trace(0, 4, device="cpu").group("0", WORLD, "default_pg").step(1, 0, 900_000)
    trace.group("1", [0], "TENSOR_MODEL_PARALLEL_GROUP").group("2", [0, 2], "MODEL_PARALLEL_GROUP")
    trace.group("3", [0, 1], "EXPERT_MODEL_PARALLEL_GROUP").group("4", [0, 1], "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP")
    for number in range(4):
        at = 1_000 + 10_000 * number
        trace.gloo("all_to_all", at, 50, thread=300 + number % 2, posted_at=at - 100)
        trace.op("_GatherFromSequenceParallelRegion", at + 200, 100)
        trace.op("c10d::_allgather_base_", at + 210, 20, dims=[[64], [32]], types=["float", "float"])
        trace.gloo("all_gather", at + 240, 50, dims=[32], thread=310 + number % 2)
    parts = table_set(trace).columns("collectives", 0)
    assert set(zip(parts["op"], parts["group"], strict=True)) == {("all_to_all", "3@0,1"), ("all_gather", "4@0,1")}


def test_calls_that_fit_no_other_group_stay() -> None:
    """Rank 2 recorded part of the time, so another group of ranks 1 and 3 does not explain rank 0's calls."""
    groups = groups_of({0: [1, 2, 3, 4], 1: [1, 2, 3, 4], 2: [0, 0, 0, 4], 3: [1, 2, 3, 4]}, pairs=PIPELINES)
    assert all(groups[rank] == {("0@0,1,2,3", 4)} for rank in range(4))


def test_calls_that_fit_two_other_groups_stay() -> None:
    both = (*STAGES, *PIPELINES)
    sizes = {0: [100, 200], 1: [100, 200], 2: [100, 300], 3: [100, 300]}
    assert groups_of(sizes, pairs=both)[0] == {("1@0,1", 2)}
    alike = sizes | {2: [100, 200], 3: [9]}
    assert groups_of(alike, pairs=both)[0] == {("0@0,1,2,3", 4)}


def test_all_reduces_after_sharded_gathers_are_tensor_parallel() -> None:
    """A plain trainer shards over dp and splits matrices over tp; each group has two workers, and no event names it."""
    trace = Trace(0, 4, device="cpu").group("0", WORLD, "default_pg").step(1, 0, 90_000)
    trace.group("1", [0, 2], "mesh_dp").group("3", [0, 1], "mesh_tp")
    for number in range(4):
        at = 1_000 + 10_000 * number
        trace.event("FSDP::all_gather (0)", "user_annotation", at - 10, 40)
        trace.op("c10d::_allgather_base_", at, 20, dims=[[64], [32]], types=["float", "float"])
        trace.gloo("all_gather", at + 30, 50, dims=[32], thread=300 + number % 2)
        trace.gloo("all_reduce", at + 5_000, 50, dims=[8], posted_at=at + 4_900, thread=310 + number % 2)
    parts = table_set(trace).columns("collectives", 0)
    for op, group in (("all_gather", "1@0,2"), ("all_reduce", "3@0,1")):
        assert parts.matches("group", group)[parts.matches("op", op)].all()


@pytest.mark.parametrize("small", [True, False])
def test_parts_without_a_group_belong_to_all_ranks_unless_smaller_groups_exist(small: bool) -> None:
    pairs = STAGES if small else ()
    tables = table_set({rank: trained(rank, [8], pairs=pairs, op="broadcast") for rank in range(4)})
    assert tables.columns("collectives", 0)["group"].tolist() == [""] if small else ["@0,1,2,3"]


def test_pipelines_contain_the_ranks_that_exchange_messages() -> None:
    """All ranks send within the default group; each stage also has a gradient group."""
    traces = {}
    for rank in range(4):
        first, peer = rank < 2, (rank + 2) % 4
        trace = Trace(rank, 4, device="cpu").group("0", WORLD, "default_pg").step(1, 0, 90_000)
        trace.group("1", STAGES[rank // 2], "mesh_dp")
        for number in range(6):
            forward = number < 3
            op = "send" if first == forward else "recv"
            trace.gloo(op, 20_000 + 1_000 * number, 100, dims=[64], peer=peer, posted_at=19_000 + 1_000 * number)
        traces[rank] = trace
    assert table_set(traces).topology.axes == {"dp": 2, "pp": 2}


@pytest.mark.parametrize(
    ("scores", "groups"),
    [
        ([[2, 1], [3, 1], [0, 2]], [0, 0, 1]),
        ([[0, 5], [3, 1]], [1, 1]),  # a later worker never has an earlier group: 5 + 1 is more than 0 + 3
        ([[1, 0, 0]] * 3, [0, 0, 1]),  # no group has three workers
    ],
)
def test_workers_get_the_groups_with_the_highest_sum(scores: list[list[float]], groups: list[int]) -> None:
    assert _assign(scores) == groups


def test_ranges_and_posts_of_one_kind_are_matched_in_order() -> None:
    """There are three ranges of A and two posts: the first range was posted before the window."""
    assert _in_order_of_kind(np.array(list("AABA")), np.array(list("ABA"))).tolist() == [-1, 0, 1, 2]
