"""Overlap: what hides which communication, and how much more could be hidden."""

from __future__ import annotations

import made
import pytest
from made import Row, part, step, work

from usp_prof.analyses import overlap
from usp_prof.model.selection import Selection


def tables() -> made.TableSet:
    rows = [
        work("compute", 0, 40, name="gemm"),
        work("compute", 30, 60, name="norm"),
        work("compute", 80, 100, name="gemm"),
        work("communication", 20, 50, "tp", collective=0),
        work("communication", 55, 75, "dp", collective=1),
        work("communication", 70, 78, "dp"),
    ]
    parts = [part("all_gather", 20, 50, part=0, axis="tp"), part("reduce_scatter", 55, 75, part=1)]
    return made.run({0: {"activities": rows, "collectives": parts, "steps": [step(0, 0, 110)]}})


def values(result: overlap.OverlapResult, name: str) -> dict[tuple[int | str, ...], float]:
    return {tuple(v.dims.values()): v.value for v in result.values() if v.metric.id == name}


def test_hidden_and_exposed_by_axis_and_kind() -> None:
    result = overlap.compute(tables())
    assert values(result, "comm_time") == {
        (): 53, (0,): 53, (0, 0): 53, ("dp",): 23, (0, "dp"): 23, (0, 0, "dp"): 23, ("tp",): 30, (0, "tp"): 30,
        (0, 0, "tp"): 30, ("dp", "other"): 8, ("dp", "reduce_scatter"): 20, ("tp", "all_gather"): 30,
    }  # fmt: skip
    assert values(result, "hidden_comm_time")["dp",] == 5
    fraction = values(result, "overlap_fraction")
    assert fraction[()] == pytest.approx(35 / 53)
    assert fraction["tp",] == 1
    assert fraction["dp", "reduce_scatter"] == pytest.approx(5 / 20)
    assert fraction["dp", "other"] == 0


def test_what_could_be_hidden_is_bounded_by_free_compute() -> None:
    found = values(overlap.compute(tables()), "hideable_comm_time")
    # 80 of compute, 35 of it already beside communication: 45 are free, 18 are exposed.
    assert found[()] == 18
    short = [work("compute", 0, 5), work("communication", 5, 50, "dp")]
    bounded = overlap.compute(made.run({0: {"activities": short, "steps": [step(0, 0, 50)]}}))
    assert values(bounded, "hideable_comm_time")[()] == 5


def test_the_kernels_that_hide_are_named_by_how_much() -> None:
    result = overlap.compute(tables())
    assert [(h.axis, h.name, h.hidden_ns) for h in result.hiders] == [
        ("dp", "norm", 5), ("tp", "gemm", 20), ("tp", "norm", 20),
    ]  # fmt: skip
    many = [work("compute", 10 * i, 10 * i + 5, name=f"k{i:02}") for i in range(14)]
    many.append(work("communication", 0, 200, "dp"))
    found = overlap.compute(made.run({0: {"activities": many, "steps": [step(0, 0, 200)]}})).hiders
    assert len(found) == 10


def test_the_table_has_a_row_for_each_axis() -> None:
    table = overlap.compute(tables()).to_pandas()
    rows = table[["axis", "comm_ns", "exposed_ns", "hidden_ns"]].to_numpy().tolist()
    assert rows == [["dp", 23, 18, 5], ["tp", 30, 0, 30]]
    assert (table["exposed_ns"] + table["hidden_ns"] == table["comm_ns"]).all()
    assert table["overlap_fraction"].tolist() == [5 / 23, 1.0]


def test_without_communication_there_is_no_fraction() -> None:
    rows: dict[str, list[Row]] = {"activities": [work("compute", 0, 9)], "steps": [step(0, 0, 10)]}
    result = overlap.compute(made.run({0: rows}))
    assert values(result, "overlap_fraction") == {}
    assert values(result, "comm_time")[()] == 0
    columns = ["rank", "step", "axis", "comm_ns", "exposed_ns", "hidden_ns", "overlap_fraction"]
    assert list(result.to_pandas().columns) == columns
    assert len(result.to_pandas()) == 0


def test_kinds_and_hiders_look_at_the_selected_steps_only() -> None:
    rows = [work("compute", 0, 100)]
    rows += [work("communication", at, at + 10, "dp", collective=n) for n, at in enumerate((10, 60))]
    parts = [part(op, 0, 0, part=n) for n, op in enumerate(("all_gather", "all_reduce"))]
    run = made.run({0: {"activities": rows, "collectives": parts, "steps": [step(0, 0, 50), step(1, 50, 100)]}})
    chosen = overlap.compute(run, Selection(first_step=1))
    assert {k.collective: k.comm_ns for k in chosen.kinds} == {"all_reduce": 10}
    assert sum(h.hidden_ns for h in chosen.hiders) == 10
