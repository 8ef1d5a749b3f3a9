"""Predicted run as tables: every analysis of it agrees with the prediction."""

from __future__ import annotations

import numpy as np
import pytest
from made_faults import run_with

from usp_prof.analyses import breakdown, pipeline, step_time
from usp_prof.model.edit import parse_edit
from usp_prof.replay.build import graph_of
from usp_prof.replay.longest_path import replay
from usp_prof.tables import calls
from usp_prof.tables.matching import same_calls
from usp_prof.whatif.layout import memory_of
from usp_prof.whatif.predict import predict
from usp_prof.whatif.predicted import predicted_tables
from usp_prof.whatif.predicted_tables import retimed

TIMED = ("events", "activities", "steps", "actions", "collectives", "ops", "annotations", "launches", "kernels")


@pytest.mark.parametrize("style", ["nccl", "gloo"])
def test_the_unedited_run_keeps_all_its_times(style: str) -> None:
    tables = run_with("slow_rank", style).tables
    graph = graph_of(tables)
    same = retimed(tables, graph, replay(graph))
    for name in TIMED:
        before, after = tables.arrow(name), same.arrow(name)
        for column in before.column_names:
            if column.endswith("_ns"):
                np.testing.assert_array_equal(after[column].to_numpy(), before[column].to_numpy(), f"{name}.{column}")


@pytest.mark.parametrize("style", ["nccl", "gloo"])
@pytest.mark.parametrize(
    "edits", ["rank_as_peers=all", "schedule=zb-h1", "rank_as_peers=all schedule=interleaved", "dp=4", "recompute=full"]
)
def test_the_tables_take_as_long_as_was_predicted(edits: str, style: str) -> None:
    tables = run_with("slow_rank", style).tables
    prediction = predict(tables, [parse_edit(edit) for edit in edits.split()])
    times = step_time.compute(predicted_tables(prediction))
    mean = float((times.end_ns - times.start_ns).mean())
    assert mean == pytest.approx(prediction.after_ns, rel=0.01 if prediction.rescheduled else 1e-3)


def test_a_repaired_run_has_the_parts_of_a_run_without_the_fault() -> None:
    tables, clean = run_with("slow_rank").tables, run_with("clean").tables
    repaired = predicted_tables(predict(tables, [parse_edit("rank_as_peers=all")]))
    wanted = breakdown.compute(clean).mean_ns()
    repaired_ns = breakdown.compute(repaired).mean_ns()
    total_ns = sum(wanted.values())
    assert repaired_ns.keys() == wanted.keys()
    assert all(abs(repaired_ns[role] - wanted[role]) < 0.01 * total_ns for role in wanted)


def test_another_schedule_has_its_own_bubble() -> None:
    tables = run_with("clean").tables
    prediction = predict(tables, [parse_edit("schedule=zb-h1")])
    assert prediction.rescheduled is not None
    bubble = pipeline.compute(predicted_tables(prediction))
    bubble_fraction = next(
        value.value for value in bubble.values() if value.metric.id == "bubble_fraction" and not value.dims
    )
    assert bubble_fraction == pytest.approx(prediction.rescheduled.bubble_fraction, abs=1e-3)


@pytest.mark.parametrize("edits", ["rank_as_peers=all", "dp=4", "rank_as_peers=all schedule=zb-h1"])
def test_calls_are_those_of_the_recorded_run(edits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = run_with("slow_rank").tables
    recorded = calls.match_calls(tables).columns()["op"]
    shown = predicted_tables(predict(tables, [parse_edit(edit) for edit in edits.split()]))
    if "schedule" in edits:  # its ranks are built again, without calls that differ
        assert shown.recorded is None
        return
    monkeypatch.delattr(same_calls, "_match")  # nothing is matched by moved times
    assert sorted(calls.match_calls(shown).columns()["op"]) == sorted(recorded)


@pytest.mark.parametrize("style", ["nccl", "gloo"])
@pytest.mark.parametrize(
    "second", ["comm_hidden,axis=dp", "no_input_wait", "compute_faster=1.2", "bandwidth=2,axis=dp"]
)
def test_a_prediction_of_a_prediction_combines_both(second: str, style: str) -> None:
    tables = run_with("slow_rank", style).tables
    first = parse_edit("rank_as_peers=all")
    shown = predicted_tables(predict(tables, [first]))
    alone, both = predict(shown, [parse_edit(second)]), predict(tables, [first, parse_edit(second)])
    assert alone.before_ns == pytest.approx(predict(tables, [first]).after_ns, rel=1e-3)
    assert alone.after_ns == pytest.approx(both.after_ns, rel=0.01)


def test_a_predicted_run_states_its_origin() -> None:
    tables = run_with("clean").tables
    shown = predicted_tables(predict(tables, [parse_edit("dp=4"), parse_edit("zero=3")]))
    codes = {row.code for row in shown.health}
    assert {"predicted", "predicted_ranks", "predicted_calls"} <= codes
    assert shown.topology.axes["dp"] == 4
    assert shown.manifest is not None
    assert shown.manifest.zero_stage == 3
    assert set(shown.arrow("ranks")["world_size"].to_pylist()) == {8}


def test_a_changed_schedule_is_stated_next_to_its_timeline() -> None:
    """Between moved actions, collectives and kernels cannot be distinguished, and the run reports it."""
    shown = predicted_tables(predict(run_with("clean").tables, [parse_edit("schedule=zbv")]))
    assert "rearranged" in {row.code for row in shown.health}


def test_sharding_and_recomputation_change_their_memory_parts() -> None:
    tables = run_with("clean").tables
    prediction = predict(tables, [parse_edit("zero=3"), parse_edit("recompute=full")])
    before, after = memory_of(prediction.layout_before), memory_of(prediction.layout_after)
    assert before is not None
    assert after is not None
    assert before.parameter_bytes / 2 < after.parameter_bytes + after.gathered_bytes < before.parameter_bytes
    assert after.optimizer_bytes == before.optimizer_bytes / 2
    assert after.activation_bytes < before.activation_bytes * 0.6  # one of two layers is recomputed at a time
