"""Plan and Sweep pages show the planner's predictions, and the What if controls produce the shown edits."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from drawn import SCRIPT_OF_PAGE, drawn, naming
from streamlit.testing.v1 import AppTest
from tiers import thinned

from dashboard import data
from dashboard.pages.plan import PUBLISHED_VARIABLE, SWEEPS_VARIABLE
from dashboard.report import Answer, recorded_question, written
from usp_prof.extras.planner.answers import one_plan, plan, plan_map
from usp_prof.extras.planner.launch import refusal
from usp_prof.extras.planner.sweep import rows as sweep_rows
from usp_prof.extras.planner.sweep import runner
from usp_prof.extras.planner.sweep.cells import Cell
from usp_prof.extras.synth.declaration import Declaration, Mesh
from usp_prof.extras.synth.write import write
from usp_prof.model.footprint import Footprint
from usp_prof.model.hardware import DEVICES
from usp_prof.model.metric import Unit
from usp_prof.report.format import quantity

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACES = Path(__file__).parents[2] / "traces"


@pytest.fixture(autouse=True)
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Name a recorded pipeline to the dashboard."""
    with naming([TRACES / "recorded-1f1b"], tmp_path, monkeypatch):
        yield


def test_a_plan_is_predicted_and_has_its_start_command() -> None:
    app = drawn("plan")
    assert [metric.label for metric in app.metric] == ["step", "tokens", "MFU (palm)", "bubble", "memory"]
    assert app.code[0].value.startswith("torchrun --nproc-per-node 4 trainer/run.py")
    assert "mean rank step of the recorded run" in app.caption[0].value


def test_the_trainer_can_start_the_first_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with naming([TRACES / "recorded-5d"], tmp_path, monkeypatch):
        calibration = data.ask_calibration(0).result()
        plans = data.ask_plans(recorded_question(calibration)).result()
        place, refusal = plan.startable(plans, "usp-prof")
        assert place > 0
        assert refusal == "experts with tp need sequence parallelism"
        text = plan.verdict(calibration, plans, "usp-prof")
        assert text.startswith(f"{plan.in_words(plans.best[place].configuration)}: ")
        assert ", the fastest that usp-prof can start. " in text
        remark = plan.not_startable(plans, "usp-prof")
        assert remark == f"usp-prof cannot start {place} faster plans (the fastest: {refusal})."
        assert plan.points(plans, calibration, place).labeled == place
        app = drawn("plan")
        assert app.code[0].value.startswith("torchrun ")
    assert plan.startable(plans, "torchtitan")[0] == -1
    none = plan.verdict(calibration, plans, "torchtitan")
    assert f"the fastest of {plans.fitting:,} plans. " in none
    remark = plan.not_startable(plans, "torchtitan")
    assert remark.startswith("torchtitan can start none of the plans: plans cover only its models")


def test_plans_in_doubt_are_listed_by_their_class_of_speed_and_counted() -> None:
    plans = data.ask_plans(recorded_question(data.ask_calibration(0).result())).result()
    table = plan.ordered(plans, 20)
    ratios = [row[2] for row in table.rows]
    assert ratios[0] == 1.0
    assert ratios == sorted(ratios)
    assert len(table.rows) + table.more == plans.fitting


def test_a_run_without_a_model_offers_models_to_choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "bare"
    write(Declaration(mesh=Mesh(dp=2)), bare, described=False)
    with naming([bare], tmp_path / "cache", monkeypatch):
        app = drawn("plan")
        assert "model and mesh are unknown" in app.info[0].value.replace("\\", "")
        assert app.number_input[0].value == 2
        assert app.selectbox[1].value == "H100 SXM"
        assert app.code[0].value


def test_the_page_never_opens_on_a_configuration_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with naming([], tmp_path, monkeypatch):
        for view in ("", "One configuration"):
            app = drawn("plan", **({"view": view} if view else {}), devices="8")
            text = next(text.proto.body for text in app.get("html") if "usp-verdict" in text.proto.body)
            assert " fits" in text
            assert "does not fit" not in text


def test_one_configuration_fits_by_the_same_rule_as_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory was compared with the whole device's 79.6 GiB, and that of plans with what tensors can fill."""
    address = {"model": "Llama-3-70B", "device": "H100 SXM", "devices": "64", "tp": "8", "pp": "4", "zero": "1"}
    with naming([], tmp_path, monkeypatch):
        app = drawn("plan", view="One configuration", **address)
    text = next(text.proto.body for text in app.get("html") if "usp-verdict" in text.proto.body)
    assert "of 73.3 GiB per device" in text.replace("\xa0", " ")
    assert any("73.3 GiB that tensors can fill" in caption.value for caption in app.caption)


def test_a_device_of_unknown_size_has_no_probability_of_fitting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with naming([TRACES / "recorded-5d"], tmp_path, monkeypatch):
        app = drawn("plan", view="One configuration")
    captions = [caption.value for caption in app.caption]
    assert "of a device of unknown size" in captions
    assert any("The memory of the device is unknown" in caption for caption in captions)
    assert not any("robability" in caption for caption in captions)


def test_one_configuration_shows_no_times_if_the_recorded_step_is_predicted_badly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "synthetic"
    write(Declaration(mesh=Mesh(dp=4, tp=4, pp=4)), folder)
    with naming([folder], tmp_path / "cache", monkeypatch):
        calibration = data.ask_calibration(0).result()
        assert plan.is_doubtful(calibration, recorded_question(calibration))
        app = drawn("plan", view="One configuration")
    assert "so only memory is shown" in app.error[0].value
    assert [metric.label for metric in app.metric] == ["memory", "data parallel (dp)"]
    text = next(text.proto.body for text in app.get("html") if "usp-verdict" in text.proto.body)
    assert "per step" not in text


def test_another_device_and_number_change_the_plan() -> None:
    app = drawn("plan", devices="8", batch="64", device="H100 SXM", dtype="bf16", trainer="megatron")
    assert app.number_input[0].value == 8
    assert "80.3% of the peak (products measured in bf16)" in app.caption[0].value
    assert "torchrun --nproc-per-node 8 pretrain_gpt.py" in app.code[0].value


def test_only_types_are_offered_for_which_the_device_has_a_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with naming([], tmp_path, monkeypatch):
        app = drawn("plan", device="V100 SXM2", dtype="bf16")
        offered = next(choice for choice in app.selectbox if choice.label == "Type")
        assert offered.value == "fp16"
        assert offered.options == ["fp16", "fp32"]
        for device in thinned(DEVICES, 10):
            drawn("plan", device=device.name)


def test_hostile_choices_in_the_address_are_dropped() -> None:
    app = drawn("plan", devices="-3", batch="9e9", device="<script>", dtype="../x", plan="no such plan")
    assert app.number_input[0].value == 4


def test_a_batch_that_cannot_be_spread_is_an_error_with_a_hint() -> None:
    app = AppTest.from_string(SCRIPT_OF_PAGE.format(page="plan"), default_timeout=120)
    app.query_params["devices"] = "7"
    app.query_params["batch"] = "5"
    app.run()
    assert "no legal configuration" in app.exception[0].message


def test_without_a_run_sliders_move_memory_and_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with naming([], tmp_path, monkeypatch):
        degrees = {"tp": "8", "pp": "4", "cp": "1", "zero": "1"}
        app = drawn("plan", view="One configuration", model="Llama-3-70B", devices="64", **degrees)
        before = {metric.label: metric.value for metric in app.metric}
        assert before["data parallel (dp)"] == "2"
        assert "pretrain_gpt.py" in app.code[0].value
        next(slider for slider in app.select_slider if "(pp)" in slider.label).set_value(8).run()
        after = {metric.label: metric.value for metric in app.metric}
        assert app.query_params["pp"] == "8"
        assert after["data parallel (dp)"] == "1"
        assert after["memory"] != before["memory"]
        assert after["step"] != before["step"]


def test_a_typed_shape_is_planned_or_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with naming([], tmp_path, monkeypatch):
        app = drawn("plan", view="One configuration", model="own shape", heads="6", tp="4", devices="8", batch="64")
        assert "tp=4 does not divide the 6 attention heads" in app.warning[0].value.replace("\\", "")
        app = drawn("plan", view="One configuration", model="/etc/passwd", devices="7", tp="2")
        assert app.selectbox[0].value == "Llama-3-8B"
        assert "does not divide 7 devices" in app.warning[0].value


def test_every_tab_is_drawn_without_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with naming([], tmp_path, monkeypatch):
        assert drawn("plan", view="Best plans", devices="8", batch="64", sequence="2048").metric
        sweep = drawn("plan", view="Sweep", devices="8", batch="64", sequence="2048", open="sweep-cells")
        assert len(sweep.dataframe[0].value) > 3


def test_a_planner_that_mispredicts_its_own_run_shows_only_the_order() -> None:
    calibration = data.ask_calibration(0).result()
    wrong = dataclasses.replace(calibration, measured_step_ns=calibration.measured_step_ns * 2)
    plans = data.ask_plans(recorded_question(calibration)).result()
    page = written(Answer(0, "plan", "Plan", "", lambda: plan.sections(wrong, plans, plans.best[0], "megatron")))
    assert "Predicted times cannot be trusted" in page
    assert "tokens/s" not in page
    assert plan.is_doubtful(wrong, plans.question)
    assert not plan.is_doubtful(calibration, plans.question)


@pytest.mark.parametrize("figure", ["MFU", "memory"])
def test_a_sweep_has_a_cell_for_each_pair(figure: str) -> None:
    app = drawn("sweep", down="tp", across="pp", figure=figure, open="sweep-cells")
    heads = {head.partition(" (")[0] for head in app.dataframe[0].value}
    assert heads == {"tp", "pp", "configuration", figure, "why usp-prof cannot start it"}
    assert len(app.dataframe[0].value) > 3


def test_a_sweep_opens_with_its_best_and_its_worst_cell() -> None:
    plans = data.ask_plans(recorded_question(data.ask_calibration(0).result())).result()
    text = plan_map.verdict(plans, "tp", "pp", "tokens/s", "usp-prof")
    cells = plan_map.cells_of(plans, "tp", "pp", "usp-prof")
    speeds = [cell.plan.tokens_per_second for cell in cells.values() if not cell.refusal]
    assert f"start: {_speed(max(speeds))} with tp " in text
    assert f". Worst cell: {_speed(min(speeds))} with tp " in text
    calibration = data.ask_calibration(0).result()
    of_run = plan_map.verdict(plans, "tp", "pp", "tokens/s", "usp-prof", calibration)
    ran = _speed(calibration.prediction.tokens_per_second)
    assert of_run == f"{text[:-1]}. The recorded configuration (tp 1, pp 4) is predicted at {ran}."
    (drawn_map, *_) = plan_map.section(plans, "tp", "pp", "tokens/s", "usp-prof", calibration).blocks
    assert sum(text.endswith(f" (recorded: {ran})") for text in drawn_map.data.texts) == 1  # type: ignore[union-attr]
    shortest = plan_map.verdict(plans, "tp", "pp", "step", "usp-prof")
    assert plan.in_words(plans.best[0].configuration) in shortest  # less is better
    app = drawn("sweep", figure="step", trainer="megatron")
    assert any("Best step of the plans that megatron can start" in text.proto.body for text in app.get("html"))


def _speed(tokens_per_second: float) -> str:
    return quantity(tokens_per_second, Unit.PER_SECOND).removesuffix("/s").replace(" ", "")


def test_the_best_cell_of_a_sweep_is_one_that_the_trainer_can_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with naming([TRACES / "recorded-5d"], tmp_path, monkeypatch):
        plans = data.ask_plans(recorded_question(data.ask_calibration(0).result())).result()
        place, _ = plan.startable(plans, "usp-prof")
        assert place > 0  # the fastest of all is refused
        cells = plan_map.cells_of(plans, "tp", "zero", "usp-prof")
        for (tp, zero), cell in cells.items():
            alike = [best for best in plans.best if (best.configuration.tp, best.configuration.zero) == (tp, zero)]
            able = [best for best in alike if not refusal("usp-prof", plans.question.model, best.configuration)]
            assert cell.plan == (able or alike)[0]
            assert bool(cell.refusal) == (not able)
        assert f"({plan.in_words(plans.best[place].configuration)})" in plan_map.verdict(
            plans, "tp", "zero", "step", "usp-prof"
        )


def test_a_sweep_that_no_trainer_can_start_says_so() -> None:
    plans = data.ask_plans(recorded_question(data.ask_calibration(0).result())).result()
    text = plan_map.verdict(plans, "tp", "pp", "step", "torchtitan")
    assert text.startswith(f"torchtitan can start none of the {plans.fitting:,} plans that fit: ")
    drawn_map, _, table = plan_map.section(plans, "tp", "pp", "step", "torchtitan").blocks
    assert set(drawn_map.data.texts) - {""} == {plan_map.REFUSED}  # type: ignore[union-attr]
    assert all(row[-1] for row in table.rows)  # type: ignore[union-attr]


def test_the_configuration_that_ran_is_marked_among_the_plans() -> None:
    calibration = data.ask_calibration(0).result()
    plans = data.ask_plans(recorded_question(calibration)).result()
    points = plan.points(plans, calibration)
    assert points.label[points.recorded] == str(calibration.configuration)
    assert plan.points(plans).recorded == -1


def test_swept_configurations_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = tuple(Cell(2, (("tp", str(tp)), ("zero", zero))) for tp in (1, 2) for zero in "01")
    sweep = runner.open_sweep(tmp_path / "swept", runner.Sweep("", (("batch", "8"),), cells))
    for place, cell in enumerate(sweep.cells[:3]):
        folder = runner.folder_of(tmp_path / "swept", cell)
        folder.mkdir(parents=True)
        figures = {"step_seconds": 0.1 + place, "tokens_per_second": 1000.0 - place, "mfu": 0.5}
        ended = sweep_rows.Outcome(cell.name, 2, dict(cell.options), sweep_rows.Status.OK, **figures)
        sweep_rows.write_outcome(ended, folder)
    monkeypatch.setenv(SWEEPS_VARIABLE, json.dumps([str(tmp_path / "swept")]))
    app = drawn("plan", view="What was run")
    assert "3 of 4 cells have ended" in app.caption[0].value
    assert "dp2, 1x4 on 2 devices, 1,000 tokens" in app.markdown[0].value
    assert len(app.dataframe[0].value) == 3


def test_the_sweep_of_the_playbook_is_drawn_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = "model,nodes,n_gpus,dp,pp,tp,zero,mbs,grad_acc,mfu_pct,tok_s,mem_gb,status"
    rows = [f"{model},1,8,{8 // tp},1,{tp},0,2,{16 * tp},40,{90000 // tp},50,success" for model in ("1B", "8B")
            for tp in (1, 2, 4)]  # fmt: skip
    (tmp_path / "playbook.csv").write_text("\n".join([columns, *rows]))
    monkeypatch.setenv(PUBLISHED_VARIABLE, json.dumps(["playbook", str(tmp_path / "playbook.csv")]))
    assert len(drawn("plan", view="Published sweep").dataframe[-1].value) == 6
    app = drawn("plan", view="Published sweep", rows="8B")
    assert len(app.dataframe[-1].value) == 3
    assert any("Planner's error" in heading.value for heading in app.subheader)


def test_choices_become_words_and_words_set_choices() -> None:
    app = drawn("whatif", edits="no_pauses comm_faster=2,axis=pp schedule=gpipe bandwidth=2,axis=pp")
    assert next(toggle for toggle in app.toggle if toggle.label == "No host pauses").value
    assert next(slider for slider in app.slider if "pp" in slider.label).value == 2
    assert app.selectbox[0].value == "gpipe"
    assert app.text_input[0].value == "bandwidth=2,axis=pp"


def test_a_switch_is_predicted() -> None:
    app = drawn("whatif")
    assert not app.metric
    next(toggle for toggle in app.toggle if toggle.label == "No host pauses").set_value(True).run()
    assert not app.exception, app.exception[0].value
    assert "no_pauses" in app.query_params["edits"]
    assert [metric.label for metric in app.metric] == ["mean rank step, measured", "predicted", "gain"]


def test_predicted_memory_is_shown_next_to_measured_memory() -> None:
    app = drawn("memory")
    assert "for 4-way pipeline parallel, 1f1b, 8 micro-batches of 2. Plan" in app.caption[0].value
    assert "record with `profile_memory=True`" in app.caption[-1].value


def test_every_part_of_a_footprint_is_shown() -> None:
    names = {field.name for field in dataclasses.fields(Footprint)}
    assert set(one_plan.FILLS) == names
