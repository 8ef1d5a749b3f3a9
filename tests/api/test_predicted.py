"""Predictions and functions next to `open_run`: what-if, compare, check, plan."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from made_faults import run_with

import usp_prof
from usp_prof import UspProfError
from usp_prof.extras.planner.calibration import calibrate
from usp_prof.model.selection import Selection
from usp_prof.report.answers.whatif import predicted_steps

if TYPE_CHECKING:
    from pathlib import Path

LLAMA = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
}  # fmt: skip


def test_a_prediction_answers_the_same_questions_as_a_run() -> None:
    run = run_with("slow_rank")
    predicted = run.whatif("rank_as_peers=1")
    assert predicted.df["gain_fraction"].item() == predicted.gain_fraction > 0.1
    assert predicted.breakdown().metrics["compute_time"] < run.breakdown().metrics["compute_time"]
    assert predicted.timeline().plot().renderers
    assert "rank_as_peers=1" in predicted.explain() == repr(predicted)


def test_a_prediction_needs_an_edit() -> None:
    with pytest.raises(UspProfError, match="no edit was given"):
        run_with("slow_rank").whatif()


def test_a_prediction_is_compared_with_the_recorded_run() -> None:
    predicted = run_with("slow_rank").whatif("rank_as_peers=1")
    before, after = predicted.compare().metrics["step_time"]
    assert after / before == pytest.approx(predicted.after_ns / predicted.before_ns, abs=0.02)
    assert predicted.plot().renderers
    assert "<svg" in predicted._repr_html_()


def test_a_comparison_covers_the_steps_of_the_prediction() -> None:
    """The comparison used other steps than the prediction: 5.4% in one sentence and 24.7% in the next."""
    run = run_with("gc_pause")
    predicted = run.whatif("no_pauses")
    (pair,) = predicted.compare().comparison.pairs
    assert predicted_steps(predicted.prediction) == Selection(first_step=min(run.breakdown().df["step"]))
    # Parts are centers over steps, which outliers do not move: together they are near the mean step.
    assert sum(part.before_ns for part in pair.waterfall) == pytest.approx(predicted.before_ns, rel=0.01)


def test_changes_are_sorted_by_importance() -> None:
    table = usp_prof.compare(run_with("slow_rank"), run_with("clean"))._answer.df
    assert list(table["metric"].head(2)) == ["job_step_time", "step_time"]


def test_a_baseline_may_follow_the_run(tmp_path: Path) -> None:
    with pytest.raises(UspProfError, match="cannot read baseline"):
        usp_prof.check(run_with("clean"), tmp_path)


def test_runs_are_compared_by_object_or_path() -> None:
    slow, clean = run_with("slow_rank"), run_with("clean")
    comparison = usp_prof.compare(slow, clean.path)
    before, after = comparison.metrics["step_time"]
    assert after < before
    assert (comparison.df.set_index("metric").loc["step_time", "direction"]) == "better"
    assert "step_time" in comparison.explain()
    assert comparison.plot().renderers
    assert "shorter than that of" in repr(comparison)
    first = comparison._answer.df.iloc[0]
    assert (first["direction"], "[" in first["metric"]) == ("better", False), "what changed comes first"
    with pytest.raises(UspProfError, match="no kind of difference"):
        usp_prof.compare(slow, clean, across=["hue"])


def test_a_check_has_a_verdict_and_its_reasons() -> None:
    run = run_with("slow_rank")
    passed = usp_prof.check(run, minimum={"overlap_fraction": 0.001})
    assert passed.passed
    assert passed.verdict == "pass"
    failed = usp_prof.check(run, minimum={"overlap_fraction": 0.999})
    assert not failed.passed
    assert "overlap_fraction" in failed.explain()
    assert list(failed.df["metric"]) == ["overlap_fraction >= 0.999"], "without a baseline there is only the bound"
    assert f"{run.name} compared with lower bounds only" in failed.explain()
    assert failed.verdict in failed._repr_html_()
    with pytest.raises(UspProfError, match="nothing to check"):
        usp_prof.check(run)


def test_a_plan_ranks_configurations_that_fit(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA))
    plans = usp_prof.plan(model=config, sequence=2048, device="H100", devices=8, batch=64)
    table = plans.df
    assert table["step_ns"].iloc[0] <= 1.005 * table["step_ns"].min()
    assert (table["memory_bytes"] > 0).all()
    assert plans.plot().renderers
    assert "legal configurations" in plans._repr_html_()
    with pytest.raises(UspProfError, match="a plan needs"):
        usp_prof.plan(model=config)


def test_a_plan_learns_from_a_recorded_run_that_it_predicts_closely() -> None:
    calibration = calibrate(run_with("clean").tables)
    if calibration.is_close:
        plans = usp_prof.plan(run_with("clean"))
        assert plans.error_fraction == calibration.error_fraction
        assert "error of" in repr(plans)
    else:
        with pytest.raises(UspProfError, match="nothing is ranked"):
            usp_prof.plan(run_with("clean"))


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("tp", "two", "tp is a whole number from 1 to"),
        ("tp", 2.5, "tp is a whole number from 1 to"),
        ("tp", 0, "tp is a whole number from 1 to"),
        ("zero", 7, "zero is a whole number from 0 to 3"),
        ("sequence_parallel", "sometimes", "sequence_parallel is True or False"),
        ("recompute", "all", "no recompute is named 'all'"),
        ("schedule", "zigzag", "no schedule is named 'zigzag'"),
        ("recompute_modules", "attention", "no module is named 'attention'"),
    ],
)
def test_impossible_settings_are_refused_by_plans_and_memory(setting: str, value: object, message: str) -> None:
    """Text used to end in an error of NumPy, and memory computed with half a rank."""
    with pytest.raises(UspProfError, match=message):
        usp_prof.plan(model="Llama-3-8B", device="H100", devices=16, batch=64, **{setting: value})
    with pytest.raises(UspProfError, match=message):
        usp_prof.memory(model="Llama-3-8B", **{setting: value})


def test_memory_takes_settings_as_they_are_typed() -> None:
    spread = usp_prof.memory(model="Llama-3-8B", tp=8, sequence_parallel=True)
    assert usp_prof.memory(model="Llama-3-8B", tp=np.int64(8), sequence_parallel="on").footprints == spread.footprints
    unsharded = usp_prof.memory(model="Llama-3-8B", tp=8, sequence_parallel="off").footprints
    assert unsharded[0].activation_bytes > spread.footprints[0].activation_bytes
    with pytest.raises(UspProfError, match="no dtype is named 'int8'"):
        usp_prof.memory(model="Llama-3-8B", dtype="int8")


def test_models_are_found_by_name_and_pinned_settings_stay() -> None:
    plans = usp_prof.plan(model="Llama-3-8B", sequence=4096, device="H100", devices=16, batch=64, tp=8)
    assert set(plans.df["tp"]) == {8}
    with pytest.raises(UspProfError, match="no knob is named 'hue'"):
        usp_prof.plan(model="Llama-3-8B", sequence=4096, device="H100", devices=16, batch=64, hue=1)
    with pytest.raises(UspProfError, match="no trainer is named"):
        usp_prof.plan(model="Llama-3-8B", sequence=4096, device="H100", devices=16, batch=64, habits="unknown")
    with pytest.raises(UspProfError, match="devices is 1 to 1048576"):
        usp_prof.plan(model="Llama-3-8B", sequence=4096, device="H100", devices=-16, batch=64)
