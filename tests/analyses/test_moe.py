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


def test_imbalance_is_the_fullest_rank_over_the_mean() -> None:
    result = moe.compute(table_set({0: trace(0, [30, 10], second=[20]), 1: trace(1, [10, 10], second=[20])}))
    found = values(result)
    assert found["moe_imbalance", 1] == (30 + 10) / (20 + 10)
    assert found["moe_imbalance", 2] == 1.0
    assert found["moe_imbalance",] == (30 + 10 + 20) / (20 + 10 + 20)
    assert found["moe_tokens", 0] == 30
    assert [load.imbalance for load in result.loads] == [1.5, 1.0, 1.0]
    assert result.to_pandas().tokens.tolist() == [30, 10, 10, 10, 20, 20]


def test_phases_are_timed_per_step() -> None:
    tables = table_set({rank: trace(rank, [1, 1]) for rank in (0, 1)})
    found = values(moe.compute(tables))
    assert found["moe_time", "dispatch", 0] == 100
    assert found["moe_time", "combine"] == pytest.approx((50 + 51) / 2)
    assert found["moe_time", "all_to_all", 1] == 80
    assert ("moe_time", "dispatch", 1) not in values(moe.compute(tables, Selection(ranks=(0,))))


def test_uneven_all_to_alls_tell_the_load_where_nothing_is_marked() -> None:
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


def test_unknown_loads_are_said_and_dense_runs_stay_silent() -> None:
    run = Trace(rank=0, world=2, device="cpu").group("1", [0, 1], "mesh_ep").step(1, at=0, dur=10_000)
    run.gloo("all_to_all", at=10, dur=80, posted_at=1, group="1", sequence=0)
    assert [note.code for note in moe.compute(table_set(run)).notes] == ["no_expert_loads"]
    plain = moe.compute(table_set(Trace(device="cpu").step(1, at=0, dur=10)))
    assert (plain.values(), plain.notes, plain.to_pandas().empty) == ([], (), True)
