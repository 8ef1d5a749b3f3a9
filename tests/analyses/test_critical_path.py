"""Critical path: it covers the run without gaps, passes through late ranks, and leaves slack to the others."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import declared
import made
import numpy as np
import pytest
from made import Row, part, step, work

from usp_prof.analyses import critical_path, step_time
from usp_prof.extras.synth.declaration import Clocks, Declaration, Fault, FaultKind, Mesh
from usp_prof.extras.synth.declaration import Work as Plan
from usp_prof.model.selection import Selection

if TYPE_CHECKING:
    from pathlib import Path


def relay() -> dict[int, dict[str, list[Row]]]:
    """Rank 0 is late to the first call, rank 1 to the second, and rank 0 works last."""

    def rank(first: int, second: tuple[int, int], end: int) -> dict[str, list[Row]]:
        return {
            "activities": [
                work("compute", 0, first, name="early"),
                work("communication", first, 50, "dp", collective=0),
                work("compute", 50, second[0], name="middle"),
                work("communication", *second, "dp", collective=1),
                work("compute", second[1], end, name="late"),
            ],
            "collectives": [
                part("all_reduce", first, 50, part=0, sequence=0),
                part("all_reduce", *second, part=1, sequence=1),
            ],
            "steps": [step(0, 0, end)],
        }

    return {0: rank(40, (60, 100), 120), 1: rank(20, (90, 100), 110)}


def test_the_path_follows_the_rank_that_was_waited_for() -> None:
    result = critical_path.compute(made.run(relay()))
    assert [(p.rank, p.begin_ns, p.end_ns, p.through) for p in result.pieces] == [
        (0, 0, 40, "dp"), (1, 40, 90, "dp"), (0, 90, 120, ""),
    ]  # fmt: skip
    assert [(s.rank, s.part, s.ns) for s in result.shares] == [
        (0, "compute", 60), (0, "comm:dp", 10), (1, "compute", 40), (1, "comm:dp", 10),
    ]  # fmt: skip
    assert [(b.rank, b.name, b.ns) for b in result.bounding] == [(0, "early", 40), (1, "middle", 40), (0, "late", 20)]
    value_of_metric = {(v.metric.id, *v.dims.values()): v.value for v in result.values()}
    assert value_of_metric["critical_path_time",] == 120
    assert value_of_metric["critical_path_fraction", 1] == 50 / 120
    assert value_of_metric["critical_path_time", "comm:dp"] == 20
    # Rank 0 waited 30 for the second call, rank 1 waited 20 for the first.
    assert (value_of_metric["slack", 0], value_of_metric["slack", 1], value_of_metric["slack",]) == (30, 20, 25)
    assert result.to_pandas()["ns"].sum() == 120


def test_a_fully_hidden_call_does_not_redirect_the_path() -> None:
    tables = relay()
    tables[1]["activities"].append(work("compute", 20, 55, name="beside"))
    assert [p.rank for p in critical_path.compute(made.run(tables)).pieces] == [1, 0]


def test_a_receive_leads_to_its_sender() -> None:
    tables = {
        0: {
            "activities": [work("compute", 0, 60), work("communication", 60, 70, "pp", collective=0)],
            "collectives": [part("send", 60, 70, peer=1, axis="pp", part=0)],
            "steps": [step(0, 0, 70)],
        },
        1: {
            "activities": [work("communication", 0, 70, "pp", collective=0), work("compute", 70, 90)],
            "collectives": [part("recv", 0, 70, peer=0, axis="pp", part=0)],
            "steps": [step(0, 0, 90)],
        },
    }
    result = critical_path.compute(made.run(tables))
    assert [(p.rank, p.begin_ns, p.end_ns) for p in result.pieces] == [(0, 0, 60), (1, 60, 90)]


def test_idle_time_on_the_path_keeps_its_cause() -> None:
    rows = {
        "activities": [work("compute", 0, 10), work("compute", 40, 60, launch_event=7)],
        "launches": [{"event": 7, "start_ns": 35, "dur_ns": 2}],
        "kernels": [{"name": "k"}],
        "steps": [step(0, 0, 70)],
    }
    result = critical_path.compute(made.run({0: rows}))
    assert [(s.part, s.ns) for s in result.shares] == [("compute", 30), ("idle:host", 30), ("idle:other", 10)]
    assert [n.code for n in result.notes] == ["one_rank"]


def test_empty_runs_have_no_path_and_unconnected_clocks_are_reported() -> None:
    nothing = critical_path.compute(made.run({0: {}, 1: {}}))
    assert (nothing.values(), nothing.pieces, nothing.length_ns) == ([], (), 0)
    apart = {r: {"steps": [step(0, 0, 9 + r)], "ranks": [{"host": f"h{r}", "base_ns": 1}]} for r in range(2)}
    assert [n.code for n in critical_path.compute(made.run(apart)).notes] == ["clocks_untied"]


@pytest.mark.parametrize("run", [
    Declaration(mesh=Mesh(dp=2, tp=2), work=Plan(steps=2), clocks=Clocks(ranks_per_host=2, offset_ns=(0, 4_000_000))),
    Declaration(mesh=Mesh(pp=2, dp=2), work=Plan(steps=2), faults=(Fault(FaultKind.SLOW_RANK, 2, factor=1.6),)),
])  # fmt: skip
def test_the_path_covers_simulated_runs_without_gaps(run: Declaration, tmp_path: Path) -> None:
    tables, _ = declared.read(run, tmp_path)
    result = critical_path.compute(tables)
    job = step_time.compute(tables).job
    assert result.length_ns == job[-1].end_ns - job[0].begin_ns
    for before, after in pairwise(result.pieces):
        assert before.end_ns == after.begin_ns
        assert before.rank != after.rank
    # Alignment rounds to nanoseconds where a clock drifts; nothing else may be lost.
    assert abs(sum(share.ns for share in result.shares) - result.length_ns) <= len(result.pieces)
    if run.faults:
        spent = {rank: sum(s.ns for s in result.shares if s.rank == rank) for rank in tables.ranks}
        assert max(spent, key=lambda rank: spent[rank]) == 2
    first = critical_path.compute(tables, Selection(last_step=job[0].step))
    assert first.length_ns == pytest.approx(job[0].length_ns)
    assert np.all(first.parts.stalled >= 0)
