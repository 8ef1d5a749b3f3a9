"""Explanation of the choice: what rules others out, close runners-up, and what changes the order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planned import LLAMA_8B

from usp_prof.extras.planner.choice import runners_up
from usp_prof.extras.planner.cluster import cluster_of
from usp_prof.extras.planner.predict import predict
from usp_prof.extras.planner.question import Question
from usp_prof.extras.planner.search import search
from usp_prof.model.configuration import Configuration

FIRST = replace(
    predict(LLAMA_8B, Configuration(dp=8, zero=1), cluster_of("H100")),
    step_ns=100.0, compute_ns=50.0, exposed_ns={"dp": 50.0}, bubble_ns=0.0, optimizer_ns=0.0, fixed_ns=0.0,
    step_high_ns=130.0,
)  # fmt: skip
SECOND = replace(
    FIRST, configuration=Configuration(dp=4, tp=2, zero=1), step_ns=120.0, compute_ns=80.0,
    exposed_ns={"dp": 10.0, "tp": 30.0},
)  # fmt: skip


def test_the_part_that_would_reverse_the_order_is_named_with_its_factor() -> None:
    (runner_up,) = runners_up([FIRST, SECOND])
    assert runner_up.longer_fraction == pytest.approx(0.2)
    # 100 + (f - 1) 50 = 120 + (f - 1) 10 at f = 1.5
    assert (runner_up.turned_by, runner_up.turned_at) == ("exposed dp", pytest.approx(1.5))
    assert runner_up.within(FIRST)


def test_no_part_reverses_an_order_if_the_first_plan_is_faster_in_all() -> None:
    slower = replace(SECOND, exposed_ns={"dp": 60.0, "tp": 10.0}, step_ns=150.0)
    (runner_up,) = runners_up([FIRST, slower])
    assert runner_up.turned_by == ""
    assert not runner_up.within(FIRST)


def test_plans_with_equal_degrees_are_not_runners_up() -> None:
    same = replace(FIRST, configuration=Configuration(dp=8, zero=1, micro_batch=2), step_ns=101.0)
    assert [runner_up.plan for runner_up in runners_up([FIRST, same, SECOND])] == [SECOND]


def test_values_with_which_nothing_fits_are_listed() -> None:
    plans = search(Question(replace(LLAMA_8B, layers=80), cluster_of("H100"), 8, 32, pinned={"cp": 1, "pp": 1}))
    unsharded = [value for value in plans.barred if (value.knob, value.value) == ("zero", 0)]
    fitting = {plan.configuration.zero for plan in plans.best}
    assert bool(unsharded) == (0 not in fitting)
    assert all(value.leanest_bytes > plans.question.cluster.room_bytes for value in plans.barred)
    assert plans.barred
