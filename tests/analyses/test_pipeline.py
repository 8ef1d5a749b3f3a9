"""Bubbles: schedules with known bubbles built from actions, with additional losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import declared
import made
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import Row, part, step, work

from usp_prof.analyses import pipeline
from usp_prof.contract import Manifest
from usp_prof.extras.synth.declaration import Declaration, Mesh
from usp_prof.extras.synth.declaration import Shape as Layers
from usp_prof.extras.synth.declaration import Work as Plan
from usp_prof.model.finding import NOTHING_FOUND
from usp_prof.model.selection import Selection
from usp_prof.model.topology import Axis, Topology
from usp_prof.report.build import analyze, build
from usp_prof.report.document import KeyFigures
from usp_prof.schedule import Schedule, Shape, schedule_by_name
from usp_prof.schedule_orders import Action, Kind, order, simulate

if TYPE_CHECKING:
    from pathlib import Path

TWO = (Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB, Schedule.ZBV, Schedule.DUALPIPE_V)
MS = 1_000_000


def even(action: Action) -> int:
    return 40 * MS if action.kind is Kind.BACKWARD else 20 * MS


def laid_out(
    schedule: Schedule, shape: Shape, *, steps: int = 1, replicas: int = 1, lengths: Any = even, skew: int = 0
) -> dict[int, dict[str, list[Row]]]:
    """Make ranks with the actions of a simulated schedule; replicas have the same stages."""
    line = simulate(order(schedule, shape), lengths)
    tables: dict[int, dict[str, list[Row]]] = {}
    for rank in range(shape.ranks * replicas):
        shift = skew * (rank % 2)
        marks = [
            {
                "kind": str(a.kind), "stage": a.stage, "micro_batch": a.micro_batch, "source": "mark", "step": number,
                "device_start_ns": s + number * 2 * line.window + shift,
                "device_end_ns": e + number * 2 * line.window + shift,
            }
            for number in range(steps)
            for a, r, s, e in zip(line.actions, line.rank.tolist(), line.start.tolist(), line.end.tolist(), strict=True)
            if r == rank // replicas
        ]  # fmt: skip
        tables[rank] = {
            "actions": marks,
            "steps": [step(n, 2 * n * line.window, 2 * (n + 1) * line.window) for n in range(steps)],
        }
    return tables


def wholes(result: pipeline.PipelineResult) -> dict[str, float]:
    return {v.metric.id: v.value for v in result.values() if not v.dims}


@pytest.mark.parametrize("schedule", list(Schedule))
@pytest.mark.parametrize("replicas", [1, 2])
def test_known_schedules_are_recognized_with_their_bubbles(schedule: Schedule, replicas: int) -> None:
    shape = Shape(4, 8, 2 if schedule in TWO else 1)
    truth = simulate(order(schedule, shape), even).bubble_fraction
    result = pipeline.compute(made.run(laid_out(schedule, shape, steps=2, replicas=replicas)))
    assert result.schedule.likeness == 1
    # With one stage per rank, interleaved orders equal those of 1F1B and ZB-H1.
    assert result.schedule.schedule is schedule
    value_of_metric = wholes(result)
    assert value_of_metric["bubble_fraction"] == pytest.approx(truth)
    assert value_of_metric["bubble_ideal_fraction"] == pytest.approx(truth)
    assert value_of_metric["bubble_balanced_fraction"] == pytest.approx(truth)
    assert value_of_metric["stage_imbalance"] == pytest.approx(1)
    assert (result.micro_batches, result.notes) == (8, ())


@given(st.lists(st.integers(1, 30), min_size=4, max_size=4))
def test_uneven_stages_show_in_the_ideal_and_not_in_the_balanced_bubble(lengths: list[int]) -> None:
    def uneven(action: Action) -> int:
        return lengths[action.stage] * (2 if action.kind is Kind.BACKWARD else 1) * MS

    value_of_metric = wholes(pipeline.compute(made.run(laid_out(Schedule.ONE_F_ONE_B, Shape(4, 8), lengths=uneven))))
    assert value_of_metric["bubble_fraction"] == pytest.approx(value_of_metric["bubble_ideal_fraction"])
    assert value_of_metric["bubble_ideal_fraction"] >= value_of_metric["bubble_balanced_fraction"] - 1e-6
    assert value_of_metric["bubble_textbook_fraction"] == pytest.approx(3 / 11)
    assert value_of_metric["stage_imbalance"] == pytest.approx(max(lengths) / np.mean(lengths))


def test_idle_time_splits_by_phase_and_adds_up() -> None:
    result = pipeline.compute(made.run(laid_out(Schedule.ONE_F_ONE_B, Shape(4, 8))))
    for cell in result.cells:
        parts = cell.busy_ns + cell.warm_up_idle_ns + cell.steady_idle_ns + cell.cool_down_idle_ns
        assert parts == cell.window_ns
    last, first = result.cells[3], result.cells[0]
    # The last stage waits for its first forward and for the others' last backwards; nothing in between.
    assert (last.warm_up_idle_ns, last.steady_idle_ns, last.cool_down_idle_ns) == (60 * MS, 0, 120 * MS)
    assert (first.warm_up_idle_ns, first.cool_down_idle_ns) == (120 * MS, 60 * MS)
    table = result.to_pandas()
    assert table["bubble_fraction"].tolist() == pytest.approx([3 / 11] * 4)


def test_values_come_by_step_rank_and_stage() -> None:
    result = pipeline.compute(made.run(laid_out(Schedule.ONE_F_ONE_B, Shape(2, 4), steps=2)))
    dims = {tuple(sorted(v.dims)) for v in result.values()}
    assert dims == {(), ("step",), ("rank",), ("rank", "step"), ("kind", "stage")}
    lengths = {(v.dims["stage"], v.dims["kind"]): v.value for v in result.values() if "stage" in v.dims}
    assert lengths == {(0, "F"): 20 * MS, (0, "B"): 40 * MS, (1, "F"): 20 * MS, (1, "B"): 40 * MS}
    chosen = pipeline.compute(made.run(laid_out(Schedule.ONE_F_ONE_B, Shape(2, 4), steps=2)), Selection(first_step=1))
    assert {cell.step for cell in chosen.cells} == {1}


def test_marks_that_enclose_their_receive_do_not_hide_the_bubble() -> None:
    """Torch's own `PP:1F0` marks contain the wait for the activation."""
    tables = {
        0: {
            "actions": [{"kind": "F", "stage": 0, "micro_batch": 0, "source": "torch", "step": 0,
                         "device_start_ns": 0, "device_end_ns": 60}],
            "activities": [work("compute", 0, 50), work("communication", 50, 60, "pp", collective=0)],
            "collectives": [part("send", 50, 60, peer=1, axis="pp", part=0)],
        },
        1: {
            "actions": [{"kind": "F", "stage": 1, "micro_batch": 0, "source": "torch", "step": 0,
                         "device_start_ns": 0, "device_end_ns": 110}],
            "activities": [work("communication", 0, 60, "pp", collective=0), work("compute", 60, 110)],
            "collectives": [part("recv", 0, 60, peer=0, axis="pp", part=0)],
        },
    }  # fmt: skip
    result = pipeline.compute(made.run({rank: rows | {"steps": [step(0, 0, 110)]} for rank, rows in tables.items()}))
    assert [cell.busy_ns for cell in result.cells] == [60, 60]


def test_without_marks_nothing_is_claimed() -> None:
    silent = {r: {"collectives": [part("send" if r else "recv", 0, 9, axis="pp", peer=1 - r)]} for r in range(2)}
    result = pipeline.compute(made.run(silent))
    assert result.values() == []
    assert [n.code for n in result.notes] == ["pipeline_unmarked"]
    assert pipeline.compute(made.run({0: {}})).notes == ()
    assert np.isnan(result.imbalance)
    assert np.isnan(result.bubble_fraction())


@pytest.mark.parametrize("count", [1, 4])
def test_a_single_stage_is_not_a_pipeline_and_has_no_bubble(count: int) -> None:
    """A trainer may mark its passes without a pipeline. Gaps are not a bubble, and no figure is 0 or NaN."""
    marks = [
        {"kind": kind, "stage": 0, "micro_batch": number, "source": "mark", "step": 0,
         "device_start_ns": 100 * number + at, "device_end_ns": 100 * number + at + 20}
        for number in range(count) for kind, at in (("F", 0), ("B", 50))
    ]  # fmt: skip
    tables = {rank: {"actions": marks, "steps": [step(0, 0, 100 * count)]} for rank in range(2)}
    result = pipeline.compute(made.run(tables))
    assert (result.values(), result.notes, result.cells) == ([], (), ())


def test_a_run_without_a_pipeline_has_no_pipeline_section(tmp_path: Path) -> None:
    tables, truth = declared.read(Declaration(mesh=Mesh(dp=2), work=Plan(steps=2, micro_batches=4)), tmp_path)
    assert len(tables.columns("actions", 0))  # its passes are marked anyway
    document = build(tables, analyze(tables), name="run", search_result=NOTHING_FOUND)
    shown = {metric for metric in document.metrics if "bubble" in metric or "stage" in metric}
    assert shown == set()
    assert "pipeline" not in {section.id for section in document.sections}
    labels = {f.label for block in document.summary.blocks if isinstance(block, KeyFigures) for f in block.figures}
    assert "bubble" not in labels
    assert not any(truth["bubble_fraction"].values())


def test_missing_stages_give_no_ideal_and_report_it() -> None:
    tables = laid_out(Schedule.ONE_F_ONE_B, Shape(4, 8))
    del tables[1]
    result = pipeline.compute(made.run(tables, Manifest(schedule="1F1B")))
    assert "bubble_ideal_fraction" not in wholes(result)
    assert "bubble_fraction" in wholes(result)
    assert "pipeline_incomplete" in [n.code for n in result.notes]


def test_actions_without_a_known_stage_have_a_bubble_but_no_ideal() -> None:
    tables = laid_out(Schedule.GPIPE, Shape(2, 4))
    for rank in tables:
        tables[rank]["collectives"] = [{"axis": "pp", "op": "send" if rank == 0 else "recv"}]
        for row in tables[rank]["actions"]:
            row["stage"] = row["micro_batch"] = -1
    result = pipeline.compute(made.run(tables))
    assert "pipeline_unnamed" in [note.code for note in result.notes]
    assert "bubble_fraction" in wholes(result)
    assert "bubble_ideal_fraction" not in wholes(result)


def test_stages_with_different_numbers_of_ranks_have_no_pipeline_chain() -> None:
    tables = laid_out(Schedule.GPIPE, Shape(2, 4), replicas=2)
    del tables[3]
    result = pipeline.compute(made.run(tables))
    assert [n.code for n in result.notes] == ["pipeline_irregular"]
    tables[3] = {"steps": [step(0, 0, 10)]}
    assert [n.code for n in pipeline.compute(made.run(tables)).notes] == ["pipeline_irregular", "pipeline_unmarked"]


def test_an_unrecognized_schedule_uses_the_declared_name_for_the_textbook_bubble() -> None:
    tables = laid_out(Schedule.GPIPE, Shape(2, 8))
    for row in tables[0]["actions"]:
        row["micro_batch"] = 7 - row["micro_batch"]
    result = pipeline.compute(made.run(tables, Manifest(schedule="Schedule1F1B")))
    assert result.schedule.schedule is Schedule.ONE_F_ONE_B
    assert result.schedule.likeness < 0.8
    assert wholes(result)["bubble_textbook_fraction"] == pytest.approx(1 / 9)


def test_unconnected_clocks_leave_the_bubble_unknown() -> None:
    tables = laid_out(Schedule.GPIPE, Shape(2, 4), skew=7 * MS)
    for rank, rows in tables.items():
        rows["ranks"] = [{"host": f"h{rank}", "base_ns": 1}]
    result = pipeline.compute(made.run(tables))
    assert [n.code for n in result.notes] == ["pipeline_clocks"]
    assert "bubble_fraction" not in wholes(result)
    assert np.isnan(result.bubble_fraction(0))
    assert wholes(result)["bubble_ideal_fraction"] == pytest.approx(1 / 5)  # from durations only


def test_a_stage_that_was_not_read_leaves_the_bubble_unknown() -> None:
    every = laid_out(Schedule.GPIPE, Shape(4, 4))
    tables = made.run({rank: every[rank] for rank in (0, 2)})
    tables.topology = Topology({Axis.PP: 4}, {rank: {Axis.PP: rank} for rank in range(4)})
    result = pipeline.compute(tables)
    assert [n.detail for n in result.notes] == ["pipeline ranks 1, 3 were not read, so the bubble is unknown"]
    assert wholes(result) == {}


def test_accumulation_rounds_repeat_micro_batches() -> None:
    tables = laid_out(Schedule.GPIPE, Shape(2, 4), steps=2)
    for rows in tables.values():
        for row in rows["actions"]:
            row["step"] = 0
    assert pipeline.compute(made.run(tables)).micro_batches == 8


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "interleaved", "interleaved-zb", "zbv", "dualpipev"])
def test_simulated_traces_have_the_simulated_bubble(schedule: str, tmp_path: Path) -> None:
    chunks = 1 if schedule in {"gpipe", "1f1b", "zb-h1"} else 2
    plan = Plan(schedule=schedule, virtual_stages=chunks, micro_batches=8, steps=2)
    tables, truth = declared.read(Declaration(mesh=Mesh(pp=4), shape=Layers(layers=8), work=plan), tmp_path)
    result = pipeline.compute(tables)
    for number, bubble in truth["bubble_fraction"].items():
        assert result.bubble_fraction(int(number)) == pytest.approx(bubble, abs=0.005)
    assert result.schedule.schedule is schedule_by_name(schedule)
    assert result.schedule.likeness == 1
