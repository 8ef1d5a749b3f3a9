"""Stragglers: the late rank is reported with cause and cost; its victims and ties are not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import declared
import made
import numpy as np
import pytest
import tiny
from made import Row, part, step, work

from usp_prof import open_run
from usp_prof.analyses import stragglers
from usp_prof.analyses.measures.lateness import Why
from usp_prof.extras.synth.declaration import Declaration, Fault, FaultKind, Mesh
from usp_prof.extras.synth.declaration import Work as Plan
from usp_prof.model.selection import Selection
from usp_prof.tables import clock

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

MS = 1_000_000


def synchronous(
    own_ms: dict[int, list[int]], *, skew: dict[int, int] | None = None, hosts: bool = False, **more: object
) -> TableSet:
    """Make steps in which all ranks compute and then run an all-reduce of 1 ms."""
    ranks = sorted(own_ms)
    rounds = len(next(iter(own_ms.values())))
    tables: dict[int, dict[str, list[Row]]] = {}
    for rank in ranks:
        begin, rows = 0, {"activities": [], "collectives": [], "steps": []}
        shift = (skew or {}).get(rank, 0)
        for number in range(rounds):
            length = max(own_ms[r][number] for r in ranks) + 1
            at, own_length_ms = begin * MS + shift, own_ms[rank][number]
            met, end = at + own_length_ms * MS, at + length * MS
            rows["activities"] += [work("compute", at, met), work("communication", met, end, "dp", collective=number)]
            rows["collectives"].append(
                part(
                    "all_reduce",
                    met,
                    end,
                    sequence=number,
                    part=number,
                    step=number,
                    group="g@all",
                    group_size=len(ranks),
                )
            )
            rows["steps"].append(step(number, at, end))
            begin += length
        rows["ranks"] = [{"host": f"h{rank}" if hosts else "one", "base_ns": 1}]
        tables[rank] = rows | more
    return made.run(tables)


def test_the_straggler_is_the_last_to_arrive_not_the_one_with_most_communication() -> None:
    result = stragglers.compute(synchronous({0: [10, 10], 1: [10, 10], 2: [14, 14], 3: [10, 10]}))
    assert [(c.rank, c.axis, c.why, c.cost_ns) for c in result.culprits] == [(2, "dp", Why.SLOW_COMPUTE, 4 * MS)]
    assert result.culprits[0].slowdown == pytest.approx(1.4)
    assert result.culprits[0].persistent
    value_of_metric = {(v.metric.id, *v.dims.values()): v.value for v in result.values()}
    assert value_of_metric["late_fraction", 2, "dp"] == 1
    assert value_of_metric["late_fraction", 0, "dp"] == 0
    assert value_of_metric["slowdown",] == pytest.approx(1.4)
    assert value_of_metric["straggler_cost",] == 4 * MS
    # Own time averages 11 of 15 ms per step; the transfer takes 1 ms.
    assert value_of_metric["own_time_slowdown",] == pytest.approx(15 / 12)


def test_a_late_start_is_excess_of_the_step_before() -> None:
    """Rank 1 starts its second step 4 ms late; until then its first step lasts. The others wait in the second step."""

    def rank(late_ms: int) -> dict[str, list[Row]]:
        rows: dict[str, list[Row]] = {"activities": [], "collectives": [], "steps": []}
        for number, (begin, next_begin) in enumerate([(0, 11 + late_ms), (11 + late_ms, 26)]):
            met, end = (begin + 10) * MS, (11 if number == 0 else 26) * MS
            rows["activities"] += [
                work("compute", begin * MS, met),
                work("communication", met, end, "dp", collective=number),
            ]
            rows["collectives"].append(
                part("all_reduce", met, end, sequence=number, part=number, step=number, group="g@0,1,2", group_size=3)
            )
            rows["steps"].append(step(number, begin * MS, next_begin * MS))
        return rows

    result = stragglers.compute(made.run({0: rank(0), 1: rank(4), 2: rank(0)}))
    assert [(c.rank, c.cost_ns, c.steps, c.why) for c in result.culprits] == [(1, 2 * MS, (1,), Why.HOST)]


def test_tied_and_equal_ranks_have_no_straggler() -> None:
    result = stragglers.compute(synchronous({rank: [10, 10] for rank in range(4)}))
    assert result.culprits == ()
    assert {late.late for late in result.lateness} == {0}
    assert [n.code for n in result.notes] == ["arrivals_tied"]


def test_two_equally_slow_ranks_are_not_stragglers() -> None:
    result = stragglers.compute(synchronous({0: [10], 1: [14], 2: [14], 3: [10]}))
    assert result.culprits == ()


def test_a_clock_offset_does_not_make_a_straggler() -> None:
    """Other tools report 5 ms of clock offset as 5 ms of lateness."""
    tables = synchronous(dict.fromkeys(range(4), [10] * 6), skew={2: 5 * MS, 3: 5 * MS}, hosts=True)
    assert stragglers.compute(tables).culprits == ()


def test_ranks_that_name_one_host_may_have_clocks_that_differ_by_less_than_the_waits() -> None:
    """Rank 0 is 10 ms late, and two clocks differ by 5 ms: no call seems to end before it starts."""
    tables = synchronous({0: [20] * 6, 1: [10] * 6, 2: [10] * 6, 3: [10] * 6}, skew={2: 5 * MS, 3: 5 * MS})
    assert clock.fit_clocks(tables).contradicted.tolist() == [False, False, True, True]
    assert [(c.rank, c.cost_ns) for c in stragglers.compute(tables).culprits] == [(0, 10 * MS)]


def test_groups_of_one_rank_do_not_count() -> None:
    alone = {"collectives": [part("all_reduce", 0, 9, group=f"g@{r}", group_size=1) for r in range(3)]}
    result = stragglers.compute(made.run({r: alone | {"steps": [step(0, 0, 10)]} for r in range(2)}))
    assert result.lateness == ()
    assert [n.code for n in result.notes] == ["arrivals_unknown"]


def test_a_rank_delayed_on_one_axis_is_not_blamed_on_another() -> None:
    """Rank 0 is slow. Rank 1 waits for it on tp and is therefore last in its dp group. Only rank 0 is the cause."""

    def rank(own: int, waited: int, tp: str, dp: str, met: int) -> dict[str, list[Row]]:
        tp_end, dp_end = own + waited + 1, 22
        return {
            "activities": [
                work("compute", 0, own * MS),
                work("communication", own * MS, tp_end * MS, "tp", collective=0),
                work("communication", met * MS, dp_end * MS, "dp", collective=1),
            ],
            "collectives": [
                part("all_reduce", own * MS, tp_end * MS, part=0, group=tp, axis="tp"),
                part("all_reduce", met * MS, dp_end * MS, part=1, group=dp, axis="dp"),
            ],
            "steps": [step(0, 0, dp_end * MS)],
        }

    result = stragglers.compute(
        made.run(
            {
                0: rank(20, 0, "tp@0,1", "dp@0,2", 21),
                1: rank(10, 10, "tp@0,1", "dp@1,3", 21),
                2: rank(10, 0, "tp@2,3", "dp@0,2", 11),
                3: rank(10, 0, "tp@2,3", "dp@1,3", 11),
            }
        )
    )
    assert [c.rank for c in result.culprits] == [0]
    late = {(row.rank, row.axis): (row.late, row.own_ns) for row in result.lateness}
    assert late[1, "dp"] == (1, 0)
    assert late[0, "dp"] == (1, 10 * MS)


def test_more_kernels_are_more_work_not_a_slower_device() -> None:
    tables = {}
    for rank, kernels in ((0, 4), (1, 2), (2, 2)):
        rows = [work("compute", k * MS, (k + 1) * MS) for k in range(kernels)]
        rows.append(work("communication", kernels * MS, 5 * MS, "dp", collective=0))
        tables[rank] = {
            "activities": rows,
            "collectives": [part("all_reduce", kernels * MS, 5 * MS, part=0, group="g@0,1,2", group_size=3)],
            "steps": [step(0, 0, 5 * MS)],
        }
    assert [(c.rank, c.why) for c in stragglers.compute(made.run(tables)).culprits] == [(0, Why.MORE_WORK)]


def test_larger_shapes_are_more_work_too() -> None:
    """Experts that get more tokens run as many kernels, on larger matrices."""
    traces = {}
    for rank, rows in enumerate((64, 16, 16)):
        trace = tiny.Trace(rank, 3).group("1", [0, 1, 2], "mesh_ep").step(1, 0, 90_000)
        dims = [[rows, 32], [32, 32]]
        trace.op("aten::mm", at=10, dur=50, dims=dims, types=["float", "float"])
        trace.kernel("gemm", at=1_000, dur=1_000 * rows, launch_at=20)
        met = 1_000 + 1_000 * rows
        trace.collective("all_to_all", at=met, dur=80_000 - met, group="1", nelems=8, sequence=1, launch_at=70)
        traces[rank] = trace
    assert [(c.rank, c.why) for c in stragglers.compute(tiny.table_set(traces)).culprits] == [(0, Why.MORE_WORK)]


def test_without_peers_lateness_has_no_cause() -> None:
    stages = {r: [{"stage": r, "kind": "F", "micro_batch": 0, "step": 0}] for r in range(2)}
    tables = synchronous({0: [10], 1: [14]})
    rows = {
        r: {n: tables.columns(n, r).arrow.to_pylist() for n in ("activities", "collectives", "steps")} for r in range(2)
    }
    result = stragglers.compute(made.run({r: rows[r] | {"actions": stages[r]} for r in range(2)}))
    assert [(c.rank, c.why) for c in result.culprits] == [(1, Why.UNKNOWN)]
    assert "no_peers" in [n.code for n in result.notes]
    assert "slowdown" not in {v.metric.id for v in result.values()}
    assert np.isnan(result.rank_slowdown(1))


def pipeline(own_ms: dict[int, list[int]], ops: list[str]) -> TableSet:
    """Make one stage per rank; in each round, all ranks take part in one of these operations."""
    tables = synchronous(own_ms)
    names = ("activities", "collectives", "steps")
    rows = {r: {name: tables.columns(name, r).arrow.to_pylist() for name in names} for r in own_ms}
    for rank, its in rows.items():
        for call, op in zip(its["collectives"], ops, strict=True):
            call["op"] = op
        its["actions"] = [{"stage": rank, "kind": "F", "micro_batch": 0, "step": at} for at in range(len(ops))]
    return made.run(rows)


@pytest.mark.parametrize("op", ["broadcast", "scatter"])
def test_a_last_stage_is_not_late_for_work_that_only_it_can_do(op: str) -> None:
    """The last stage computes sampled tokens and the loss, on which the other stages depend."""
    result = stragglers.compute(pipeline({0: [10, 10], 1: [10, 10], 2: [10, 10], 3: [18, 18]}, [op, op]))
    assert result.culprits == ()
    assert [(late.rank, late.late) for late in result.lateness if late.late] == []
    assert "straggler_cost" not in {value.metric.id for value in result.values()}
    assert ("depends_on_one_rank", 2) in {(note.code, note.count) for note in result.notes}


def test_a_slow_rank_that_also_broadcasts_is_late_in_other_calls() -> None:
    own = {0: [10] * 4, 1: [10] * 4, 2: [14] * 4, 3: [10] * 4}
    ops = ["all_reduce", "broadcast", "all_reduce", "broadcast"]
    result = stragglers.compute(pipeline(own, ops))
    assert [(c.rank, c.steps, c.cost_ns) for c in result.culprits] == [(2, (0, 2), 2 * MS)]


def test_single_ranks_and_unconnected_clocks_are_reported() -> None:
    assert [n.code for n in stragglers.compute(synchronous({0: [10]})).notes] == ["one_rank"]
    apart = made.run({r: {"ranks": [{"host": f"h{r}", "base_ns": 1}], "steps": [step(0, 0, 9)]} for r in range(2)})
    assert [n.code for n in stragglers.compute(apart).notes] == ["arrivals_unknown", "clocks_untied"]


def test_a_selection_still_compares_with_all_peers() -> None:
    tables = synchronous({0: [10, 10], 1: [10, 10], 2: [10, 14], 3: [10, 10]})
    chosen = stragglers.compute(tables, Selection(ranks=(2,), first_step=1))
    assert [(c.rank, c.cost_ns, c.steps) for c in chosen.culprits] == [(2, 4 * MS, (1,))]
    assert stragglers.compute(tables, Selection(ranks=(1,))).culprits == ()
    assert chosen.to_pandas()["slowdown"].tolist() == pytest.approx([1.4])


FAULTS = {
    "slow": (Mesh(dp=2, tp=2), Fault(FaultKind.SLOW_RANK, 1, factor=1.5), {1}, Why.SLOW_COMPUTE),
    "slow in a pipeline": (Mesh(dp=2, tp=2, pp=2), Fault(FaultKind.SLOW_RANK, 5, factor=1.5), {5}, Why.SLOW_COMPUTE),
    "link": (Mesh(dp=2, tp=2), Fault(FaultKind.SLOW_LINK, 3, factor=4.0, axis="tp"), {2, 3}, Why.SLOW_LINK),
}


@pytest.mark.parametrize("name", list(FAULTS))
def test_simulated_faults_are_found_at_their_simulated_cost(name: str, tmp_path: Path) -> None:
    mesh, fault, ranks, cause = FAULTS[name]
    tables, truth = declared.read(Declaration(mesh=mesh, work=Plan(steps=2), faults=(fault,)), tmp_path)
    culprits = stragglers.compute(tables).culprits
    assert {c.rank for c in culprits} == ranks
    assert {c.why for c in culprits} == {cause}
    for culprit in culprits:
        assert culprit.cost_ns == pytest.approx(truth["culprits"][0]["cost_ns"], rel=0.08)
    if cause is Why.SLOW_LINK:
        assert {c.axis for c in culprits} == {"tp"}


def test_a_run_without_faults_has_no_straggler(tmp_path: Path) -> None:
    tables, _ = declared.read(Declaration(mesh=Mesh(dp=4), work=Plan(steps=2)), tmp_path)
    assert stragglers.compute(tables).culprits == ()


@pytest.mark.parametrize(("name", "is_ring"), [("recorded-ring-contiguous", True), ("recorded-1f1b", False)])
def test_ring_sends_are_reported_as_not_counted(name: str, is_ring: bool, tmp_path: Path) -> None:
    tables = open_run(Path(__file__).parents[2] / "traces" / name, cache_dir=tmp_path).tables
    assert ("rings_not_counted" in {note.code for note in stragglers.compute(tables).notes}) is is_ring
