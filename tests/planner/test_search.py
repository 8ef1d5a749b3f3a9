"""Search: it tries legal configurations, keeps those that fit, and ranks them."""

from collections import Counter
from dataclasses import replace
from math import log
from pathlib import Path

import pytest
from planned import EXPERTS, LLAMA_8B, MACHINE, PLAIN

from usp_prof.extras.planner.calibration import calibrate
from usp_prof.extras.planner.cluster import cluster_of
from usp_prof.extras.planner.launch import refusal
from usp_prof.extras.planner.memory import SAFE_PROBABILITY
from usp_prof.extras.planner.model_rules import broken_rule
from usp_prof.extras.planner.predict import predict_all
from usp_prof.extras.planner.profiles import PROFILES
from usp_prof.extras.planner.question import Question
from usp_prof.extras.planner.search import EQUAL, configurations, search, search_both
from usp_prof.model.configuration import Recompute
from usp_prof.model.errors import UsageError
from usp_prof.model.known_models import model_named
from usp_prof.run import open_run

TRACES = Path(__file__).parents[2] / "traces"


def test_a_fixed_zero_stage_is_legal_if_nothing_is_sharded() -> None:
    plans = search(Question(LLAMA_8B, MACHINE, devices=8, batch=8, pinned={"tp": 8, "zero": 1, "pp": 1, "cp": 1}))
    assert {plan.configuration.zero for plan in plans.best} == {1}


def test_all_plans_are_legal_distinct_and_use_all_devices() -> None:
    question = Question(EXPERTS, MACHINE, devices=8, batch=32)
    plans = list(configurations(question))
    assert len(set(plans)) == len(plans) > 100
    assert {plan.devices for plan in plans} == {8}
    assert {plan.batch for plan in plans} == {32}
    assert not any(broken_rule(EXPERTS, plan) for plan in plans)
    assert {plan.ep for plan in plans} == {1, 2, 4, 8}


def test_no_plan_with_the_habits_of_nanotron_leaves_a_rank_without_layers() -> None:
    """The table refuses such rows, so plans do not list them."""
    model = model_named("Llama-3.2-1B", 4096)
    question = Question(model, cluster_of("H100"), devices=32, batch=64)
    depths = {plan.pp for plan in configurations(question)}
    depths_of_nanotron = {plan.pp for plan in configurations(replace(question, profile=PROFILES["nanotron"]))}
    assert depths - depths_of_nanotron == {16}


def test_plans_that_do_not_fit_are_excluded() -> None:
    plans = search(Question(LLAMA_8B, MACHINE, devices=8, batch=32))
    assert plans.best
    assert all(plan.footprint.total_bytes <= MACHINE.room_bytes for plan in plans.best)
    tight = search(Question(LLAMA_8B, replace(MACHINE, memory_bytes=1e9), devices=8, batch=32))
    assert not tight.best
    assert tight.leanest_bytes > 1e9


def test_no_plan_recomputes_more_than_needed() -> None:
    plans = search(Question(PLAIN, MACHINE, devices=4, batch=16))
    assert {plan.configuration.recompute for plan in plans.best} == {Recompute.NONE}


def test_each_plan_is_listed_once() -> None:
    pinned = {"dp": 32, "tp": 8, "pp": 64, "zero": 1}
    question = Question(model_named("Llama-3-405B", 8192), cluster_of("H100"), devices=16384, batch=2048, pinned=pinned)
    counts = Counter(str(plan.configuration) for plan in search(question).best)
    assert max(counts.values()) == 1


def test_the_simpler_of_equally_fast_plans_is_first() -> None:
    """For four paced ranks, ZeRO-3 used to be ranked above an equally fast ZeRO-0, because it needs less memory."""
    calibration = calibrate(open_run(str(TRACES / "recorded-1f1b")).tables)
    question = Question(
        calibration.model, calibration.cluster, devices=8, batch=32, dtype="fp32", profile=calibration.profile
    )
    plans = [plan for plan in search(question).best if plan.configuration.tp == 4 and plan.configuration.dp == 2]
    same_but_zero = [plan for plan in plans if plan.configuration.sequence_parallel][:4]
    assert [plan.configuration.zero for plan in same_but_zero] == [0, 1, 2, 3]
    memory_bytes = [plan.footprint.total_bytes for plan in same_but_zero]
    assert memory_bytes == sorted(memory_bytes, reverse=True)


def test_a_tight_plan_follows_an_equally_fast_one_that_is_not_tight() -> None:
    plans = search(Question(LLAMA_8B, cluster_of("H100"), devices=64, batch=512)).best
    speed = [round(log(plan.expected_step_ns) / log(EQUAL)) for plan in plans]
    is_tight = [plan.fit_probability < SAFE_PROBABILITY for plan in plans]
    assert any(is_tight)
    assert list(zip(speed, is_tight, strict=True)) == sorted(zip(speed, is_tight, strict=True))


def test_no_plan_of_the_front_is_beaten_in_both() -> None:
    plans = search(Question(LLAMA_8B, MACHINE, devices=16, batch=64))
    front = plans.pareto()
    for plan in front:
        for other in plans.best:
            faster = other.step_ns < plan.step_ns * 0.99
            assert not (faster and other.footprint.total_bytes < plan.footprint.total_bytes)


NAMED = replace(LLAMA_8B, name="Llama-3-8B")
"""torchtitan knows models by name."""


@pytest.mark.parametrize("trainer", ["megatron", "torchtitan"])
def test_only_plans_that_the_trainer_can_run_are_listed(trainer: str) -> None:
    """On eight devices, torchtitan's first plan used to take 8.58 s, as a plan of 8.22 s was excluded too early."""
    question = Question(NAMED, MACHINE, devices=8, batch=64, trainer=trainer)
    plans, legal = search(question), configurations(question)
    assert plans.best
    assert not any(refusal(trainer, NAMED, plan.configuration) for plan in plans.best)
    refused = [refusal(trainer, NAMED, configuration) for configuration in legal]
    able = [configuration for configuration, reason in zip(legal, refused, strict=True) if not reason]
    fitting = [prediction for prediction in predict_all(NAMED, able, MACHINE) if prediction.fits]
    assert plans.best[0].step_ns <= EQUAL * min(prediction.step_ns for prediction in fitting)
    assert {refused_plans.reason: refused_plans.count for refused_plans in plans.refused} == Counter(
        filter(None, refused)
    )


def test_a_model_that_the_trainer_cannot_run_is_planned_anyway() -> None:
    question = Question(PLAIN, MACHINE, devices=4, batch=16, pinned={"zero": 3}, trainer="nanotron")
    plans, everything = search(question), search(replace(question, trainer=""))
    assert plans.best == everything.best
    assert sum(refused.count for refused in plans.refused) == len(configurations(question))


def test_searches_with_and_without_a_trainer_find_their_fastest_plan() -> None:
    question = Question(NAMED, MACHINE, devices=8, batch=64, trainer="torchtitan")
    both = search_both(question)
    assert both.best[0] == search(replace(question, trainer="")).best[0]
    first = next(plan for plan in both.best if not refusal("torchtitan", NAMED, plan.configuration))
    assert first == search(question).best[0]


def test_an_impossible_batch_is_refused() -> None:
    with pytest.raises(UsageError, match="no legal configuration"):
        search(Question(PLAIN, MACHINE, devices=7, batch=5))


def test_hybrid_sharding_shards_over_more_than_one_rank_and_fewer_than_all() -> None:
    legal = configurations(Question(LLAMA_8B, MACHINE, devices=32, batch=64))
    hybrid = [plan for plan in legal if plan.replicas > 1]
    assert hybrid
    assert all(1 < plan.shards < plan.dp * plan.cp for plan in hybrid)
    alone = configurations(Question(LLAMA_8B, replace(MACHINE, devices_per_node=1), devices=8, batch=64))
    assert not any(plan.replicas > 1 for plan in alone)


@pytest.mark.parametrize(
    "pinned",
    [
        {"tp": 4}, {"zero": 2, "pp": 2}, {"schedule": "zb-h1"}, {"recompute": "full"}, {"replicas": 2, "zero": 3},
        {"micro_batch": 2, "micro_batches": 8}, {"sequence_parallel": False}, {"loss_chunks": 4},
    ],
)  # fmt: skip
def test_only_pinned_values_are_tried(pinned: dict[str, object]) -> None:
    machine = replace(MACHINE, devices_per_node=2)
    legal = configurations(Question(PLAIN, machine, devices=8, batch=32, pinned=pinned))
    assert legal
    assert all(getattr(plan, name) == value for plan in legal for name, value in pinned.items())


@pytest.mark.parametrize(
    ("batch", "pinned", "nearest"),
    [
        (32, {"tp": 3}, "tp 2 or 4"),
        (32, {"pp": 5}, "pp 4 or 8"),
        (32, {"ep": 3}, "ep 2 or 4"),
        (32, {"tp": 2, "pp": 2, "dp": 8}, "dp 2"),
        (33, {"dp": 8}, "batch 32 or 40"),
        (6, {"dp": 4, "micro_batch": 2}, "batch 8"),
        (32, {"tp": 3, "pp": 3}, ""),
    ],
)
def test_an_impossible_question_suggests_the_nearest_legal_one(
    batch: int, pinned: dict[str, int], nearest: str
) -> None:
    question = Question(EXPERTS, MACHINE, devices=8, batch=batch, pinned=pinned)
    with pytest.raises(UsageError) as raised:
        search(question)
    assert raised.value.hint == (
        f"use {nearest}" if nearest else "choose another number of devices, or set fewer options"
    )
    name, *values = nearest.replace("or", "").split() or [""]
    for value in map(int, values):
        other_pins = {other: pin for other, pin in pinned.items() if other != name}
        legal = (
            replace(question, batch=value) if name == "batch" else replace(question, pinned=other_pins | {name: value})
        )
        assert configurations(legal)
