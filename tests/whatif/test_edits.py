from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_faults import run_of, run_with

from usp_prof.model.edit import Edit, parse_edit
from usp_prof.model.errors import UsageError
from usp_prof.model.finding import Basis
from usp_prof.replay.step_times import unedited
from usp_prof.run import open_run
from usp_prof.whatif.edits import EDITS, loading_per_step_ns
from usp_prof.whatif.predict import predict


@pytest.mark.parametrize(
    ("fault", "edit", "within"),
    [
        ("slow_rank", "rank_as_peers=1", 0.01),
        ("slow_rank", "rank_as_peers=all", 0.01),
        ("slow_rank", "compute_faster=1.4,rank=1", 0.01),
        ("slow_link", "comm_faster=8,axis=dp", 0.01),
        ("slow_link", "link_as_peers=all", 0.01),
        ("gc_pause", "no_pauses", 0.01),
    ],
)
@pytest.mark.parametrize("style", ["nccl", "gloo"])
def test_repairs_are_predicted(fault: str, edit: str, within: float, style: str) -> None:
    """The predicted step is that of the run without the fault."""
    predicted = predict(run_with(fault, style).tables, [parse_edit(edit)])
    clean = unedited(run_with("clean", style).tables).mean_measured_ns
    assert predicted.before_ns > clean
    assert predicted.after_ns == pytest.approx(clean, rel=within)
    assert predicted.gain_fraction > 0


def test_late_input_is_predicted() -> None:
    repaired = predict(run_with("late_input").tables, [Edit("no_input_wait")])
    clean = predict(run_with("clean").tables, [Edit("no_input_wait")])
    assert repaired.after_ns == pytest.approx(clean.after_ns, rel=0.01)
    assert loading_per_step_ns(run_with("late_input").tables, 1) > 3_000_000


def test_repairing_a_clean_run_gains_nothing() -> None:
    for edit in ("rank_as_peers=all", "no_pauses", "compute_faster=1", "comm_faster=1"):
        assert abs(predict(run_with("clean").tables, [parse_edit(edit)]).gain_fraction) < 0.005, edit


@pytest.mark.parametrize("edit", ["comm_hidden,axis=dp", "comm_removed,axis=dp", "no_launch_gaps", "bucketed=1e12"])
def test_edits_that_only_remove_work_never_lose(edit: str) -> None:
    assert predict(run_with("slow_link").tables, [parse_edit(edit)]).gain_fraction >= 0


def test_removing_gains_more_than_hiding() -> None:
    tables = run_of('{"work": {"overlap_dp": false}}').tables
    hidden, removed = (predict(tables, [parse_edit(f"{name},axis=dp")]) for name in ("comm_hidden", "comm_removed"))
    assert 0 < hidden.gain_fraction <= removed.gain_fraction + 0.02


def test_edits_can_be_combined() -> None:
    tables = run_with("slow_rank").tables
    edits = [parse_edit("rank_as_peers=1"), parse_edit("comm_faster=4,axis=pp")]
    together = predict(tables, edits).gain_fraction
    alone = [predict(tables, [edit]).gain_fraction for edit in edits]
    assert max(alone) <= together <= sum(alone) + 0.01


def test_compute_can_be_selected_by_name() -> None:
    tables = run_with("clean").tables
    attention = predict(tables, [parse_edit("compute_faster=2,name=flash")]).gain_fraction
    everything = predict(tables, [parse_edit("compute_faster=2")]).gain_fraction
    assert 0 < attention < everything


def test_compute_can_be_selected_by_stage() -> None:
    tables = run_with("clean").tables
    gains = [predict(tables, [parse_edit(f"compute_faster=2,stage={stage}")]).gain_fraction for stage in (0, 1)]
    everything = predict(tables, [parse_edit("compute_faster=2")]).gain_fraction
    assert 0 < min(gains) <= max(gains) < everything


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "interleaved", "zbv"])
def test_schedules_are_simulated(schedule: str) -> None:
    predicted = predict(run_with("clean").tables, [parse_edit(f"schedule={schedule}")])
    assert predicted.basis is Basis.MODELLED
    if schedule == "1f1b":
        assert abs(predicted.gain_fraction) < 0.01, "the run's own schedule"
    if schedule in ("zb-h1", "zbv", "interleaved"):
        assert predicted.gain_fraction > 0.03


@pytest.mark.parametrize(
    "text",
    ["comm_fastr=2", "comm_faster=0", "comm_faster=fast", "rank_as_peers=99", "schedule=best", "rank_as_peers=one"],
)
def test_invalid_edits_are_refused_with_the_reason(text: str) -> None:
    with pytest.raises(UsageError):
        predict(run_with("clean").tables, [parse_edit(text)])


@pytest.mark.parametrize("text", ["rank_as_peers=99", "rank_as_peers=0+99", "host_as_peers=99"])
def test_a_rank_that_the_run_lacks_is_named_with_those_it_has(text: str) -> None:
    with pytest.raises(UsageError, match="has no rank 99") as refused:
        predict(run_with("clean").tables, [parse_edit(text)])
    assert "its ranks are 0, 1, 2" in (refused.value.hint or "")


@pytest.mark.parametrize(("text", "hint"), [("tp=3", "tp=2"), ("tp=9", "tp=4"), ("ep=3", "ep=2")])
def test_a_degree_that_does_not_divide_the_model_is_refused(text: str, hint: str) -> None:
    """The tiny model has four heads and four experts."""
    run = open_run(Path(__file__).parents[2] / "traces" / "recorded-5d")
    with pytest.raises(UsageError, match="does not divide the model's 4") as refused:
        predict(run.tables, [parse_edit(text)])
    assert refused.value.hint == hint


@pytest.mark.parametrize("text", ["", ",", "=3", "a b=2"])
def test_text_that_is_not_an_edit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not an edit"):
        parse_edit(text)


def test_edits_are_written_as_they_are_read() -> None:
    for kind in EDITS:
        edit = parse_edit(kind.example)
        assert parse_edit(str(edit)) == edit
        assert edit.name == kind.name
        assert kind.doc


def test_replay_is_deterministic() -> None:
    edits = [parse_edit("rank_as_peers=1")]
    first, second = (predict(run_with("slow_rank").tables, edits).timeline.start for _ in range(2))
    np.testing.assert_array_equal(first, second)


RECORDED = Path(__file__).parents[2] / "traces"


@pytest.mark.skipif(not (RECORDED / "recorded-slow-rank").is_dir(), reason="the recorded pair is not in this checkout")
def test_a_recorded_repair_is_predicted(tmp_path: Path) -> None:
    faulty, repaired = (
        open_run(RECORDED / name, cache_dir=tmp_path).tables
        for name in ("recorded-slow-rank", "recorded-slow-rank-repaired")
    )
    predicted = predict(faulty, [Edit("rank_as_peers", "2")])
    measured = 1 - unedited(repaired).mean_measured_ns / unedited(faulty).mean_measured_ns
    assert predicted.gain_fraction == pytest.approx(measured, abs=0.03)
