"""Schedule edits: pairs of simulated runs, with one predicted from the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from later_steps import measured_ns, predicted_ns
from made_faults import run_of

from usp_prof.model.edit import parse_edit
from usp_prof.model.errors import UsageError
from usp_prof.replay.step_times import unedited
from usp_prof.run import open_run
from usp_prof.schedule import Schedule, Shape
from usp_prof.schedule_orders import Kind, order
from usp_prof.whatif.layout import Layout, layout_of
from usp_prof.whatif.predict import predict
from usp_prof.whatif.recorded_pipeline import Pipeline, pipeline_of
from usp_prof.whatif.rescheduled import of_steps, reschedule

if TYPE_CHECKING:
    from usp_prof.tables.table_set import TableSet

BAR = 0.03


def made(schedule: str, chunks: int = 1, **more: int) -> TableSet:
    work = {"schedule": schedule, "virtual_stages": chunks, "steps": 3, "micro_batches": 6, **more}
    side = {"mesh": {"pp": 3}, "shape": {"layers": 6}, "work": work}
    return run_of(json.dumps(side)).tables


@pytest.mark.parametrize("before", ["GPipe", "1F1B"])
@pytest.mark.parametrize(
    ("after", "chunks", "edit"),
    [
        ("GPipe", 1, "schedule=gpipe"),
        ("1F1B", 1, "schedule=1f1b"),
        ("interleaved", 2, "schedule=interleaved,v=2"),
        ("zb-h1", 1, "schedule=zb-h1"),
        ("zbv", 2, "schedule=zbv"),
    ],
)
def test_the_schedule_of_a_synthetic_pipeline_can_be_changed(before: str, after: str, chunks: int, edit: str) -> None:
    predicted = predict(made(before), [parse_edit(edit)])
    truth = measured_ns(made(after, chunks))
    assert predicted_ns(predicted) == pytest.approx(truth, rel=BAR)


def test_more_micro_batches_of_the_same_batch_shrink_the_bubble() -> None:
    predictions = [predict(made("1F1B"), [parse_edit(f"schedule=1f1b,m={m}")]) for m in (6, 12, 24)]
    assert predictions[0].gain_fraction == pytest.approx(0, abs=0.01)
    assert predictions[0].after_ns > predictions[1].after_ns > predictions[2].after_ns
    assert predictions[1].layout_after.tokens_per_step == predictions[0].layout_after.tokens_per_step


def test_a_batch_of_more_micro_batches_takes_longer() -> None:
    run = made("1F1B")
    twice = predict(run, [parse_edit("micro_batches=12")])
    truth = unedited(made("1F1B", micro_batches=12)).mean_measured_ns
    assert twice.after_ns == pytest.approx(truth, rel=BAR)
    assert twice.layout_after.tokens_per_step == 2 * twice.layout_before.tokens_per_step


@pytest.mark.parametrize("edits", [("schedule=zbv", "micro_batches=12"), ("micro_batches=12", "schedule=zbv")])
def test_a_schedule_and_a_larger_batch_are_one_pipeline(edits: tuple[str, ...]) -> None:
    predicted = predict(made("1F1B"), [parse_edit(edit) for edit in edits])
    truth = measured_ns(made("zbv", 2, micro_batches=12))
    assert predicted_ns(predicted) == pytest.approx(truth, rel=BAR)


@pytest.mark.parametrize(
    ("several", "edits_alone"),
    [
        ("schedule=zbv schedule=zbv", "schedule=zbv"),
        ("schedule=zbv schedule=gpipe", "schedule=gpipe"),
        ("schedule=zbv schedule=same,m=12", "schedule=zbv,m=12"),
        ("schedule=same,m=12 schedule=zbv", "schedule=zbv,m=12"),
        ("schedule=same,m=12", "schedule=1f1b,m=12"),
        ("balance_stages schedule=zbv balance_stages", "schedule=zbv balance_stages"),
    ],
)
def test_gains_of_pipeline_edits_do_not_add_up(several: str, edits_alone: str) -> None:
    """Each edit was once compared with the recorded order, so that the same schedule twice saved twice as much."""
    together, alone = (
        predict(made("1F1B"), [parse_edit(edit) for edit in edits.split()]) for edits in (several, edits_alone)
    )
    assert together.after_ns == pytest.approx(alone.after_ns, rel=1e-9)
    for field in ("chunks", "micro_batches", "micro_batch_tokens", "tokens_per_step"):
        assert getattr(together.layout_after, field) == getattr(alone.layout_after, field)


def test_moving_no_layer_saves_nothing() -> None:
    """Single actions that took longer than others of their stage stay longer."""
    run = open_run(Path(__file__).parents[2] / "traces" / "recorded-1f1b").tables
    assert predict(run, [parse_edit("move_layers=1,source=0,target=0")]).gain_fraction == 0


def test_the_recorded_schedule_keeps_its_length() -> None:
    run = made("1F1B")
    same = reschedule(run, (parse_edit("schedule=1f1b"),), layout_of(run))
    assert same.simulated_ns == pytest.approx(same.measured_ns, rel=0.005)
    assert same.saved_ns == pytest.approx(0, abs=0.005 * same.measured_ns)


def test_interleaved_stages_can_be_merged_for_1f1b() -> None:
    predicted = predict(made("interleaved", 2), [parse_edit("schedule=1f1b")])
    truth = unedited(made("1F1B")).mean_measured_ns
    assert predicted.after_ns == pytest.approx(truth, rel=BAR)


def test_actions_keep_their_measured_times() -> None:
    pipeline = pipeline_of(made("1F1B"))
    (stage, kind, number), time = next(iter(pipeline.own.items()))
    assert pipeline.work(stage, kind, number) == time
    assert pipeline.work(stage, kind, number + pipeline.micro_batches) == time
    assert pipeline.scaled(2.0).work(stage, kind, number) == 2 * time
    assert pipeline.work(99, kind, 0) is None


def two_stages(forward: tuple[int, int], window: float, pauses: dict[tuple[int, Kind, int], int]) -> Pipeline:
    """Make a pipeline of two stages and four micro-batches; `pauses` is what single actions take besides."""
    duration = {(stage, kind): forward[stage] for stage in (0, 1) for kind in (Kind.FORWARD, Kind.BACKWARD)}
    own = {(*of_stage, number): time for of_stage, time in duration.items() for number in range(4)}
    own |= {key: own[key] + pause for key, pause in pauses.items()}
    return Pipeline(duration, order(Schedule.ONE_F_ONE_B, Shape(2, 4, 1)), 4, window, own=own)


def test_steps_that_save_the_same_share_agree_however_long_they_take() -> None:
    """On shared cores, step times differ by half, and each is 1.5 times as long as with even stages."""
    steps = [two_stages((100 * load, 300 * load), 2600 * load, {}) for load in (1, 2)]
    even = of_steps(steps[0], steps, [parse_edit("balance_stages")], Layout())
    assert even.saved_ns / even.measured_ns == pytest.approx(600 / 2600)
    assert even.error_ns == 0


def test_steps_with_different_savings_increase_the_error() -> None:
    steps = [two_stages((100, 300), 2600, {}), two_stages((300, 300), 3000, {})]
    even = of_steps(steps[0], steps, [parse_edit("balance_stages")], Layout())
    assert even.saved_ns == pytest.approx(300)
    assert even.error_ns == pytest.approx(300, rel=0.1)


def test_a_pause_does_not_grow_with_the_layers_of_its_stage() -> None:
    """A pause used to be scaled with the stage's work: 100 ms in a stage of 10 ms became 1.5 s."""
    step = two_stages((10, 290), 2340, {(0, Kind.FORWARD, 3): 100})
    even = of_steps(step, [step], [parse_edit("balance_stages")], Layout())
    assert even.other_ns <= 1500 + 100


@pytest.mark.parametrize("edit", ["schedule=zbv,v=1", "schedule=none"])
def test_unknown_schedules_are_refused(edit: str) -> None:
    with pytest.raises(UsageError) as caught:
        predict(made("1F1B"), [parse_edit(edit)])
    assert caught.value.hint


SHARED = Path(__file__).parents[2].parent / "shared" / "traces" / "gloo"
PACED = {
    "gpipe": "pp4-paced-GPipe-4r", "1f1b": "pp4-paced-1F1B-4r", "interleaved-zb": "pp4-paced-InterleavedZeroBubble-4r",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.skipif(not SHARED.is_dir(), reason="the corpus of real traces is not available next to the project")
@pytest.mark.parametrize("before", ["gpipe", "1f1b"])
def test_the_schedule_of_recorded_pipelines_can_be_changed(before: str, tmp_path: Path) -> None:
    run = open_run(SHARED / PACED[before], cache_dir=tmp_path).tables
    for after, folder in PACED.items():
        truth = unedited(open_run(SHARED / folder, cache_dir=tmp_path).tables).mean_measured_ns
        assert predict(run, [parse_edit(f"schedule={after}")]).after_ns == pytest.approx(truth, rel=BAR), after
