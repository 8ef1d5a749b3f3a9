"""Overlap: which work hides which communication, and how much more could be hidden."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import made
import numpy as np
import pytest
from made import Row, part, step, work

import usp_prof
from usp_prof.analyses import overlap
from usp_prof.analyses.measures import partition
from usp_prof.model.selection import Selection

TRACES = Path(__file__).parents[2] / "traces"


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


def test_hidden_and_exposed_time_are_split_by_axis_and_kind() -> None:
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


def test_time_in_contention_with_another_axis_is_not_hidden() -> None:
    rows = [work("communication", 0, 60, "dp"), work("communication", 20, 90, "tp"), work("compute", 80, 100)]
    result = overlap.compute(made.run({0: {"activities": rows, "steps": [step(0, 0, 100)]}}))
    frame = result.to_pandas()[["axis", "comm_ns", "hidden_ns", "exposed_ns", "contended_ns", "overlap_fraction"]]
    assert frame.to_numpy().tolist() == [["dp", 60, 0, 20, 40, 0.0], ["tp", 70, 10, 60, 0, 1 / 7]]
    assert values(result, "contended_comm_time")["dp",] == 40


@pytest.mark.parametrize("name", ["recorded-5d", "gpu-nccl-zero3", "recorded-zero3-prefetch"])
def test_a_sweep_over_a_recorded_run_finds_the_same_three_parts(name: str, tmp_path: Path) -> None:
    run = usp_prof.open_run(TRACES / name, cache_dir=tmp_path)
    parts = overlap.compute(run.tables).parts
    contended = 0
    for rank in run.ranks[:3]:
        activities, sets = run.tables.columns("activities", rank), partition.sets_of(run.tables, rank)
        is_compute, talks = (activities.matches("kind", kind) for kind in ("compute", "communication"))
        code, names = activities.codes("axis")
        axes = [names[number] or "unknown" for number in code[talks].tolist()]
        spans = list(zip(sets.begin[talks].tolist(), sets.done[talks].tolist(), axes, strict=True))
        spans += [(a, b, "compute") for a, b in zip(sets.begin[is_compute].tolist(), sets.done[is_compute].tolist(),
                                                    strict=True)]  # fmt: skip
        for row in np.flatnonzero(parts.rank == rank).tolist():
            swept = three_parts(spans, int(parts.start[row]), int(parts.end[row]))
            for column, axis in enumerate(parts.axes):
                analyzed = [int(part[row, column]) for part in (parts.hidden, parts.exposed, parts.contended)]
                assert analyzed == swept.get(axis, [0, 0, 0]), (rank, row, axis)
                assert parts.comm[row, column] == sum(analyzed)
                contended += analyzed[2]
    assert contended > 0 or name != "recorded-5d"


def three_parts(spans: list[tuple[int, int, str]], low: int, high: int) -> dict[str, list[int]]:
    """Walk from edge to edge: hidden, exposed and contended time of each axis."""
    events = sorted({(max(a, low), min(b, high), b, label) for a, b, label in spans if min(b, high) > max(a, low)})
    edges = sorted({edge for a, b, _, _ in events for edge in (a, b)})
    order = list(partition.AXIS_ORDER)
    parts: dict[str, list[int]] = {}
    running: list[tuple[int, int, int, str]] = []
    waiting = events[::-1]
    for a, b in pairwise(edges):
        running = [event for event in running if event[1] > a]
        while waiting and waiting[-1][0] <= a:
            running.append(waiting.pop())
        last_end = {label: max(end for *_, end, axis in running if axis == label) for *_, label in running}
        computes = last_end.pop("compute", 0) > a
        owner = min(last_end, key=lambda axis: (-last_end[axis], order.index(axis)), default="")
        for axis in last_end:
            parts.setdefault(axis, [0, 0, 0])[0 if computes else 1 if axis == owner else 2] += b - a
    return parts


def test_hideable_communication_is_bounded_by_free_compute() -> None:
    value_of_dims = values(overlap.compute(tables()), "hideable_comm_time")
    # 80 of compute, of which 35 already hide communication: 45 are free, 18 are exposed.
    assert value_of_dims[()] == 18
    short = [work("compute", 0, 5), work("communication", 5, 50, "dp")]
    bounded = overlap.compute(made.run({0: {"activities": short, "steps": [step(0, 0, 50)]}}))
    assert values(bounded, "hideable_comm_time")[()] == 5


def test_the_kernels_that_hide_communication_are_listed_with_their_time() -> None:
    result = overlap.compute(tables())
    assert [(h.axis, h.name, h.hidden_ns) for h in result.hiders] == [
        ("dp", "norm", 5), ("tp", "gemm", 20), ("tp", "norm", 20),
    ]  # fmt: skip
    many = [work("compute", 10 * i, 10 * i + 5, name=f"k{i:02}") for i in range(14)]
    many.append(work("communication", 0, 200, "dp"))
    hiders = overlap.compute(made.run({0: {"activities": many, "steps": [step(0, 0, 200)]}})).hiders
    assert len(hiders) == 10


def test_the_table_has_a_row_for_each_axis() -> None:
    table = overlap.compute(tables()).to_pandas()
    rows = table[["axis", "comm_ns", "exposed_ns", "hidden_ns"]].to_numpy().tolist()
    assert rows == [["dp", 23, 18, 5], ["tp", 30, 0, 30]]
    assert (table["exposed_ns"] + table["hidden_ns"] + table["contended_ns"] == table["comm_ns"]).all()
    assert table["overlap_fraction"].tolist() == [5 / 23, 1.0]


def test_without_communication_there_is_no_fraction() -> None:
    rows: dict[str, list[Row]] = {"activities": [work("compute", 0, 9)], "steps": [step(0, 0, 10)]}
    result = overlap.compute(made.run({0: rows}))
    assert values(result, "overlap_fraction") == {}
    assert values(result, "comm_time")[()] == 0
    columns = ["rank", "step", "axis", "comm_ns", "exposed_ns", "hidden_ns", "contended_ns", "overlap_fraction"]
    assert list(result.to_pandas().columns) == columns
    assert len(result.to_pandas()) == 0


def test_kinds_and_hiding_kernels_cover_only_the_selected_steps() -> None:
    rows = [work("compute", 0, 100)]
    rows += [work("communication", at, at + 10, "dp", collective=n) for n, at in enumerate((10, 60))]
    parts = [part(op, 0, 0, part=n) for n, op in enumerate(("all_gather", "all_reduce"))]
    run = made.run({0: {"activities": rows, "collectives": parts, "steps": [step(0, 0, 50), step(1, 50, 100)]}})
    chosen = overlap.compute(run, Selection(first_step=1))
    assert {k.collective: k.comm_ns for k in chosen.kinds} == {"all_reduce": 10}
    assert sum(h.hidden_ns for h in chosen.hiders) == 10
