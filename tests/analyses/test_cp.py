from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tiny import Trace, table_set

import usp_prof
from usp_prof.analyses import cp
from usp_prof.extras.synth.declaration import Declaration, Fault, FaultKind, Mesh, Speed, Work
from usp_prof.extras.synth.write import write

if TYPE_CHECKING:
    from pathlib import Path


def trace(rank: int, compute: int, *, marks: bool = True) -> Trace:
    run = Trace(rank=rank, world=2, device="cpu").group("1", [0, 1], "mesh_cp").step(1, at=0, dur=10_000)
    run.op("aten::bmm", at=100, dur=compute)
    run.gloo("send", at=5_000, dur=10, thread=100, posted_at=4_990, group="1", peer=1 - rank)
    for number in range(2 if marks else 0):
        at = 6_000 + 100 * number
        run.mark(f"cp::ring_send_recv step={number}", at, 20).mark(
            f"cp::ring_wait step={number}", at + 30, 40 * rank + number
        )
    return run


def values(result: cp.CpResult) -> dict[tuple[object, ...], float]:
    return {
        (value.metric.id, *(value.dims[name] for name in sorted(value.dims))): value.value for value in result.values()
    }


def test_a_causal_mask_makes_the_last_part_slow() -> None:
    value_of_metric = values(cp.compute(table_set({0: trace(0, 1_000), 1: trace(1, 3_000)})))
    assert value_of_metric["cp_imbalance",] == 1.5
    assert value_of_metric["cp_time", "ring_wait", 1] == 40 + 41
    assert value_of_metric["cp_time", "ring_send_recv"] == 40
    assert value_of_metric["ring_wait_time", 1] == (1 + 41) / 2
    assert (value_of_metric["ring_wait_time", 0, 1], value_of_metric["ring_wait_time", 1, 1]) == (1, 41)


def test_unmarked_exchanges_are_reported_and_runs_without_cp_are_silent() -> None:
    result = cp.compute(table_set({rank: trace(rank, 1_000, marks=False) for rank in (0, 1)}))
    assert [note.code for note in result.notes] == ["no_cp_marks"]
    assert result.to_pandas()["compute_ns"].tolist() == [1_000, 1_000]
    plain = cp.compute(table_set(Trace(device="cpu").step(1, at=0, dur=10)))
    assert (plain.values(), plain.notes) == ([], ())


def test_a_synthetic_slow_part_is_found(tmp_path: Path) -> None:
    slow = Fault(FaultKind.SLOW_RANK, 1, factor=1.5)
    run = Declaration(mesh=Mesh(cp=2), work=Work(steps=2), speed=Speed(noise=0.0), faults=(slow,))
    write(run, tmp_path / "run")
    result = cp.compute(usp_prof.open_run(tmp_path / "run", cache_dir=tmp_path / "cache").tables)
    assert values(result)["cp_imbalance",] == pytest.approx(1.5 / 1.25, abs=1e-3)
