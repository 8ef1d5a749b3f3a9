from __future__ import annotations

import pytest
from tiny import Trace, table_set

from usp_prof.analyses import moe
from usp_prof.model.selection import Selection


def trace(rank: int, loads: list[int], *, second: list[int] | None = None) -> Trace:
    run = Trace(rank=rank, world=2, device="cpu").group("1", [0, 1], "mesh_ep")
    run.step(1, at=0, dur=10_000).step(2, at=10_000, dur=10_000)
    for step, tokens in enumerate((loads, second or [])):
        for number, count in enumerate(tokens):
            at = 10_000 * step + 1_000 * number
            run.mark("ep::dispatch", at=at, dur=100).mark(f"ep::load tokens={count}", at=at + 200, dur=1)
            run.mark("ep::combine", at=at + 300, dur=50 + rank)
            run.gloo("all_to_all", at=at + 10, dur=80, posted_at=at + 1, group="1", sequence=number)
    return run


def values(result: moe.MoeResult) -> dict[tuple[object, ...], float]:
    return {(value.metric.id, *value.dims.values()): value.value for value in result.values()}


def test_imbalance_is_the_load_of_the_fullest_rank_over_the_mean() -> None:
    result = moe.compute(table_set({0: trace(0, [30, 10], second=[20]), 1: trace(1, [10, 10], second=[20])}))
    value_of_metric = values(result)
    assert value_of_metric["moe_imbalance", 1] == (30 + 10) / (20 + 10)
    assert value_of_metric["moe_imbalance", 2] == 1.0
    assert value_of_metric["moe_imbalance",] == (30 + 10 + 20) / (20 + 10 + 20)
    assert value_of_metric["moe_tokens", 0] == 30
    assert [load.imbalance for load in result.loads] == [1.5, 1.0, 1.0]
    assert result.to_pandas().tokens.tolist() == [30, 10, 10, 10, 20, 20]


def test_phases_are_timed_per_step() -> None:
    tables = table_set({rank: trace(rank, [1, 1]) for rank in (0, 1)})
    value_of_metric = values(moe.compute(tables))
    assert value_of_metric["moe_time", "dispatch", 0] == 100
    assert value_of_metric["moe_time", "combine"] == pytest.approx((50 + 51) / 2)
    assert value_of_metric["moe_time", "all_to_all", 1] == 80
    assert ("moe_time", "dispatch", 1) not in values(moe.compute(tables, Selection(ranks=(0,))))


def test_the_experts_own_time_is_a_phase() -> None:
    run = Trace(rank=0, world=1, device="cpu").step(1, at=0, dur=1_000).step(2, at=1_000, dur=1_000)
    for at in (100, 1_100):
        run.mark("ep::load tokens=7", at=at, dur=300)
    value_of_metric = values(moe.compute(table_set(run)))
    assert (value_of_metric["moe_time", "experts", 0], value_of_metric["moe_time", "experts"]) == (300, 300)


def counting(rank: int, marks: list[str]) -> Trace:
    run = Trace(rank=rank, world=4, device="cpu").step(1, at=0, dur=10_000).step(2, at=10_000, dur=10_000)
    for members in ([0, 1], [2, 3]):
        run.group(f"g{members[0]}", members, "mesh_ep")
    for number, mark in enumerate(marks):
        run.mark(mark, at=10_000 * number + 100, dur=10)
    return run


def test_tokens_are_counted_by_expert_over_groups_and_steps() -> None:
    """Two groups of two ranks with two experts each: experts 0 to 3, and a copy of each."""
    loads = {0: (6, 2), 1: (1, 3), 2: (8, 0), 3: (2, 2)}
    runs = {
        rank: counting(rank, [f"ep::load tokens={a + b} experts={a},{b}", "ep::load tokens=0 experts=0,0"])
        for rank, (a, b) in loads.items()
    }
    result = moe.compute(table_set(runs))
    assert result.experts == {0: 7.0, 1: 1.0, 2: 1.5, 3: 2.5}  # mean of two steps
    value_of_metric = values(result)
    assert value_of_metric["expert_tokens", 0] == 7.0
    assert value_of_metric["expert_imbalance",] == 7.0 * 4 / 12


@pytest.mark.parametrize("odd", ["ep::load tokens=5", "ep::load tokens=5 experts=5", "ep::load tokens=5 experts=x"])
def test_experts_are_unknown_if_ranks_count_them_differently(odd: str) -> None:
    runs = {rank: counting(rank, ["ep::load tokens=5 experts=3,2"] if rank else [odd]) for rank in range(2)}
    assert moe.compute(table_set(runs)).experts == {}


def test_one_expert_per_rank_is_read_as_a_number() -> None:
    runs = {rank: counting(rank, [f"ep::load tokens={rank + 1} experts={rank + 1}"]) for rank in range(2)}
    assert moe.compute(table_set(runs)).experts == {0: 0.5, 1: 1.0}


def test_without_marks_the_load_comes_from_all_to_all_sizes() -> None:
    runs = {}
    for rank, received in ((0, 30), (1, 10)):
        run = Trace(rank=rank, world=2).group("1", [0, 1], "mesh_ep").step(1, at=0, dur=10_000)
        run.collective("all_to_all", 1_000, 100, group="1", nelems=20, out_nelems=received, launch_at=900, sequence=0)
        run.collective("all_to_all", 2_000, 100, group="1", nelems=20, out_nelems=20, launch_at=1_900, sequence=1)
        runs[rank] = run
    result = moe.compute(table_set(runs))
    assert result.source == "all-to-all sizes"
    assert values(result)["moe_imbalance",] == 1.5
    assert result.tokens == {}


def test_unknown_loads_are_reported_and_dense_runs_are_silent() -> None:
    run = Trace(rank=0, world=2, device="cpu").group("1", [0, 1], "mesh_ep").step(1, at=0, dur=10_000)
    run.gloo("all_to_all", at=10, dur=80, posted_at=1, group="1", sequence=0)
    assert [note.code for note in moe.compute(table_set(run)).notes] == ["no_expert_loads"]
    plain = moe.compute(table_set(Trace(device="cpu").step(1, at=0, dur=10)))
    assert (plain.values(), plain.notes, plain.to_pandas().empty) == ([], (), True)
