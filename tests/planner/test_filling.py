"""Pipeline filling: the wait in the schedule's own order, with uneven stages and actual F, I and W."""

from dataclasses import replace

import numpy as np
import pytest
from planned import LLAMA_8B, MACHINE, PLAIN_TRAINER, cases

from usp_prof.extras.planner import filling
from usp_prof.extras.planner.predict import Prediction, predict
from usp_prof.extras.planner.stages import layers_of_each_stage, stages_of
from usp_prof.extras.planner.table import predict_table
from usp_prof.model.configuration import Configuration
from usp_prof.schedule import Schedule, Shape
from usp_prof.schedule_orders import Kind, order, simulate

LAYERS = 10
"""Over 4 or 8 stages these are uneven."""
MODEL = replace(LLAMA_8B, layers=LAYERS)
OF_LAYER = {Kind.FORWARD: 3.0, Kind.INPUT_GRADIENT: 4.0, Kind.WEIGHT_GRADIENT: 2.0}
OF_HEAD = {Kind.FORWARD: 2.0, Kind.INPUT_GRADIENT: 1.0, Kind.WEIGHT_GRADIENT: 1.0}
WORK = filling.Work(OF_LAYER, OF_HEAD)
EACH = {
    "gpipe": 1, "1f1b": 1, "interleaved": 2, "zb-h1": 1, "interleaved-zb": 2, "zbv": 2, "dualpipev": 2,
}  # fmt: skip


def by_hand(schedule: str, micro_batches: int) -> tuple[float, float]:
    """Return the wait of the busiest of four ranks, by simulating each action, and its work per micro-batch."""
    kind, shape = Schedule(schedule), Shape(4, micro_batches, EACH[schedule])
    held = layers_of_each_stage(LAYERS, 4 * shape.chunks, uneven=False, head=0.0)

    def duration(stage: int, letter: Kind) -> int:
        parts = [Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT] if letter is Kind.BACKWARD else [letter]
        last = stage == len(held) - 1
        return int(sum(held[stage] * OF_LAYER[part] + last * OF_HEAD[part] for part in parts))

    actions = order(kind, shape)
    window = simulate(actions, lambda action: duration(action.stage, action.kind)).window
    busiest = max(sum(duration(action.stage, action.kind) for action in of_rank) for of_rank in actions)
    return window - busiest, busiest / micro_batches


def planned(schedule: str, micro_batches: int, *, simulates: bool) -> float:
    """Return the same values from the planner."""
    configuration = Configuration(pp=4, micro_batches=micro_batches, schedule=schedule, chunks=EACH[schedule])
    c = cases(configuration, model=MODEL)
    _, most = by_hand(schedule, micro_batches)
    model_ns = LAYERS * sum(OF_LAYER.values()) + sum(OF_HEAD.values())
    closed = filling.closed(c, WORK, most, model_ns)
    return float(np.ravel(filling.simulated(c, WORK, most, closed) if simulates else closed)[0])


@pytest.mark.parametrize("schedule", ["zb-h1", "interleaved-zb", "zbv", "dualpipev"])
@pytest.mark.parametrize("micro_batches", [8, 40])
def test_a_schedule_that_splits_backward_is_simulated(schedule: str, micro_batches: int) -> None:
    waits, most = by_hand(schedule, micro_batches)
    # With enough micro-batches, each further one takes as long as on the busiest rank.
    assert planned(schedule, micro_batches, simulates=True) == pytest.approx(waits, abs=0.5 * most)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
@pytest.mark.parametrize("micro_batches", [8, 40])
def test_the_closed_form_equals_the_simulated_window(schedule: str, micro_batches: int) -> None:
    waits, most = by_hand(schedule, micro_batches)
    window = waits + most * micro_batches
    closed = planned(schedule, micro_batches, simulates=False) + most * micro_batches
    assert closed == pytest.approx(window, rel=0.03)
    assert planned(schedule, micro_batches, simulates=True) == planned(schedule, micro_batches, simulates=False)


def test_weight_gradients_that_are_short_fill_less_of_the_bubble() -> None:
    """Long sequences make the core of attention long, which has no weights."""

    def bubble(sequence: int) -> float:
        configuration = Configuration(pp=4, micro_batches=8, schedule="zb-h1")
        prediction = predict(replace(LLAMA_8B, sequence=sequence), configuration, MACHINE, profile=PLAIN_TRAINER)
        return prediction.bubble_fraction

    assert bubble(65536) > 1.2 * bubble(2048)


def test_the_last_stage_of_a_v_schedule_is_on_the_first_rank() -> None:
    """It has both embedding and head; the other ranks have neither."""
    stages = stages_of(cases(Configuration(pp=4, micro_batches=8, schedule="zbv", chunks=2), model=MODEL))
    assert (stages.embedding[:, 0].tolist(), stages.head[:, 0].tolist()) == ([True, False, False], [True, False, False])


def test_messages_sent_once_per_step_do_not_repeat_while_stages_fill() -> None:
    """Twice the micro-batches used to be 7% faster: gradients that are summed once were part of each filling stage."""
    row = {
        "model": "DeepSeek-V3", "sequence": "2048", "device": "H800", "trainer": "usp-prof", "dp": "8", "tp": "8",
        "pp": "16", "zero": "2", "dtype": "fp8", "schedule": "zb-h1",
    }  # fmt: skip
    few, many = predict_table([row | {"micro_batches": number} for number in ("32", "64")])
    assert isinstance(few, Prediction)
    assert isinstance(many, Prediction)
    assert few.step_ns < many.step_ns
    assert few.exposed_ns["dp"] == pytest.approx(many.exposed_ns["dp"])
