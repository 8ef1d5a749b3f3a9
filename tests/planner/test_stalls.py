"""Pipelines between nodes: the cost in nanotron's sweep, and only there."""

from dataclasses import replace

import numpy as np
import pytest
from planned import LLAMA_8B, MACHINE, PLAIN, cases

from usp_prof.contract import ModelEntry
from usp_prof.extras.planner import stalls
from usp_prof.extras.planner.cluster import Cluster
from usp_prof.extras.planner.predict import predict
from usp_prof.extras.planner.profiles import NANOTRON, PROFILES, Profile
from usp_prof.extras.planner.question import Question
from usp_prof.extras.planner.search import search
from usp_prof.extras.planner.step import step
from usp_prof.model.configuration import Configuration

H100 = replace(MACHINE, peak_flops=989e12, memory_rate=3.35e12, memory_bytes=80e9)
MANY = {"micro_batches": 64, "zero": 1}


def seconds_of(
    *configurations: Configuration, model: ModelEntry = PLAIN, cluster: Cluster = H100, profile: Profile = NANOTRON
) -> list[float]:
    """Predict steps with nanotron's habits."""
    return step(cases(*configurations, model=model, cluster=cluster, profile=profile)).seconds.tolist()


def test_a_layer_is_delayed_if_the_pipeline_crosses_nodes() -> None:
    one_node, two_nodes = Configuration(tp=2, pp=4, **MANY), Configuration(dp=2, tp=2, pp=4, **MANY)
    inside, across = seconds_of(one_node, two_nodes)
    assert across > 1.5 * inside


def test_a_delayed_layer_takes_longer_with_more_tp_ranks() -> None:
    """8 layers in 2 stages and 64 micro-batches: about 24 ms each with tp 8, for any model (sweep: 22 to 29)."""
    seconds = seconds_of(*(Configuration(dp=16 // tp, tp=tp, pp=2, **MANY) for tp in (2, 4, 8)))
    assert seconds == sorted(seconds)
    assert 20e-3 < seconds[-1] / (64 + 1) / 4 < 30e-3


def test_a_layer_longer_than_its_launches_is_not_delayed() -> None:
    long = Configuration(dp=8, pp=2, micro_batch=32, **MANY)
    free = replace(NANOTRON, host_pipeline=0.0, host_pipeline_tensor=0.0)
    held, unheld = seconds_of(long, model=LLAMA_8B), seconds_of(long, model=LLAMA_8B, profile=free)
    assert held[0] == pytest.approx(unheld[0], rel=0.01)


@pytest.mark.parametrize("trainer", sorted({*PROFILES} - {"nanotron"}))
def test_nothing_stalls_without_measured_stalls(trainer: str) -> None:
    prediction = predict(PLAIN, Configuration(dp=16, pp=8, zero=0, micro_batches=64), H100, profile=PROFILES[trainer])
    assert prediction.stall_fraction == 0
    assert prediction.expected_step_ns == pytest.approx(prediction.step_ns)


def test_nothing_stalls_on_devices_outside_the_sweep_and_the_interval_is_wider() -> None:
    likely = Configuration(dp=16, pp=4, zero=0, micro_batches=16)
    on_h100 = predict(PLAIN, likely, H100, profile=NANOTRON)
    on_other = predict(PLAIN, likely, replace(H100, peak_flops=2250e12), profile=NANOTRON)
    assert on_h100.stall_fraction > 0.5 > on_other.stall_fraction == 0
    assert on_other.step_high_ns / on_other.step_ns > on_h100.step_high_ns / on_h100.step_ns


def test_more_links_make_a_stall_more_likely() -> None:
    few, many = Configuration(dp=8, pp=2, zero=1, micro_batches=8), Configuration(dp=64, pp=2, zero=1, micro_batches=8)
    chances = step(cases(few, many, cluster=H100, profile=NANOTRON)).stall_chance
    assert 0 < chances[0] < chances[1] < 0.5


def test_a_likely_stall_is_part_of_the_step() -> None:
    likely, unlikely = (Configuration(dp=16, pp=4, zero=zero, micro_batches=16) for zero in (0, 1))
    times = step(cases(likely, unlikely, cluster=H100, profile=NANOTRON))
    running = np.asarray(stalls.running(times.seconds, times.stall, times.stall_chance))
    assert times.seconds[0] - running[0] == pytest.approx(times.stall[0])
    assert times.seconds[1] == running[1]
    assert times.seconds[1] < times.expected[1] < times.seconds[1] + times.stall[1]


def test_full_memory_makes_pipelines_stall() -> None:
    configuration = Configuration(dp=8, pp=2, zero=1, micro_batches=8)
    roomy, full = (
        step(
            cases(configuration, model=LLAMA_8B, cluster=replace(H100, memory_bytes=size), profile=NANOTRON)
        ).stall_chance
        for size in (1e12, 1e10)
    )
    assert float(roomy[0]) < 0.5 < float(full[0])


def test_with_stalls_the_parts_add_up() -> None:
    for zero in (0, 1):
        configuration = Configuration(dp=16, tp=2, pp=4, zero=zero, micro_batches=16)
        prediction = predict(PLAIN, configuration, H100, profile=NANOTRON)
        parts = (
            prediction.compute_ns,
            prediction.bubble_ns,
            prediction.optimizer_ns,
            prediction.fixed_ns,
            *prediction.exposed_ns.values(),
        )
        assert sum(parts) == pytest.approx(prediction.step_ns)


def test_plans_are_ranked_by_their_expected_step() -> None:
    """Plans are ranked by their expected speed, so a plan that stalls one time in three ranks lower."""
    plans = search(Question(LLAMA_8B, H100, devices=16, batch=64, profile=NANOTRON)).best
    expected = np.array([plan.expected_step_ns for plan in plans])
    assert (expected[1:] >= expected[:-1] * 0.99).all()
