"""Partial recomputation: as many layers as memory requires, with memory and time per layer."""

from dataclasses import replace

import numpy as np
import pytest
from planned import LLAMA_8B, MACHINE, PLAIN, cases

from usp_prof.extras.planner import memory
from usp_prof.extras.planner.model_rules import broken_rule
from usp_prof.extras.planner.question import Question
from usp_prof.extras.planner.search import search
from usp_prof.extras.planner.step import step
from usp_prof.model.configuration import Configuration, Recompute

FULL = Configuration(pp=2, micro_batches=8, recompute=Recompute.FULL)
"""PLAIN has 8 layers, so that each of the two stages has 4."""


def activations(*configurations: Configuration) -> list[float]:
    """Return the activation bytes of the first rank, which stores two micro-batches."""
    first, *_ = memory.stage_parts(cases(*configurations))
    return first["activation_bytes"].tolist()  # type: ignore[no-any-return]


def test_a_recomputed_layer_stores_only_its_input() -> None:
    none, one_layer, two, three, all_of_them = activations(
        replace(FULL, recompute=Recompute.NONE), *(replace(FULL, recompute_layers=count) for count in (1, 2, 3)), FULL
    )
    whole_layer = none / 4 / 2  # of one micro-batch
    its_input = 512 * 2 * 1024  # tokens, bytes, hidden
    saved = 2 * (whole_layer - its_input)
    # In addition to the stored inputs, one layer is recomputed in backward.
    assert [one_layer, two, three, all_of_them] == pytest.approx(
        [none + whole_layer - count * saved for count in (1, 2, 3, 4)]
    )


def test_a_group_of_layers_stores_one_input_and_is_recomputed_together() -> None:
    one_by_one, pairs, threes = activations(FULL, *(replace(FULL, recompute_group=size) for size in (2, 3)))
    its_input = 512 * 2 * 1024
    unfolded = one_by_one - 2 * 4 * its_input
    assert pairs == pytest.approx(2 * 2 * its_input + 2 * unfolded)
    assert threes == pytest.approx(2 * 2 * its_input + 3 * unfolded)  # a group of 3 and one of 1


def test_recomputation_time_is_per_layer_and_independent_of_groups() -> None:
    none, two, all_of_them, grouped = step(
        cases(
            replace(FULL, recompute=Recompute.NONE), replace(FULL, recompute_layers=2), FULL,
            replace(FULL, recompute_group=4),
        )
    ).compute  # fmt: skip
    assert two == pytest.approx((none + all_of_them) / 2)
    assert grouped == pytest.approx(all_of_them)


def test_recomputed_layers_count_per_stage() -> None:
    looped = replace(FULL, schedule="interleaved", chunks=2, recompute_layers=1)
    one_chunk, every = step(cases(looped, replace(looped, recompute_layers=2))).compute
    assert one_chunk < every == pytest.approx(step(cases(replace(looped, recompute_layers=0))).compute[0])


@pytest.mark.parametrize(
    ("configuration", "reason"),
    [
        (Configuration(recompute_layers=2), "need full recomputation"),
        (replace(FULL, recompute_layers=5), "fewer layers than recompute-layers=5"),
        (replace(FULL, recompute_group=5), "fewer layers than recompute-group=5"),
        (replace(FULL, recompute_group=2, recompute_layers=2), "exclude each other"),
    ],
)
def test_impossible_numbers_of_layers_are_refused(configuration: Configuration, reason: str) -> None:
    assert reason in broken_rule(PLAIN, configuration)


PINNED = {"tp": 1, "pp": 1, "dp": 8, "zero": 1, "micro_batch": 1, "cp": 1}


def cheapest(room: float, **more: object) -> dict[tuple[str, int, int], float]:
    """Return the recomputation and the step time of the plans that fit."""
    question = Question(LLAMA_8B, replace(MACHINE, memory_bytes=room), 8, 32, pinned={**PINNED, **more})
    return {
        (str(plan.configuration.recompute), plan.configuration.recompute_layers, plan.configuration.recompute_group):
        plan.step_ns for plan in search(question).best
    }  # fmt: skip


def needed(layers: int = 0, group: int = 1, **more: object) -> float:
    """Return the memory of the same plan with this number of recomputed layers per stage, or these groups."""
    pinned = {**PINNED, **more}
    configuration = Configuration(
        **pinned, micro_batches=32 // pinned["dp"], recompute=Recompute.FULL, recompute_layers=layers,
        recompute_group=group,
    )  # type: ignore[arg-type]  # fmt: skip
    return float(
        np.ravel(memory.total(memory.fullest(memory.stage_parts(cases(configuration, model=LLAMA_8B, **HABITS)))))[0]
    )


HABITS = {"profile": Question(LLAMA_8B, MACHINE, 8, 32).profile}


def test_the_search_finds_the_fewest_layers_that_fit() -> None:
    plans = cheapest(needed(13) * 1.0001)
    assert ("full", 13, 1) in plans
    assert plans["full", 13, 1] == min(plans.values())
    assert plans["full", 13, 1] < plans["full", 0, 1]
    assert not any(recompute == "none" for recompute, _, _ in plans)


def test_groups_may_fit_if_recomputing_single_layers_does_not() -> None:
    keeps_all = {"pp": 4, "dp": 2, "schedule": "gpipe"}
    assert needed(group=2, **keeps_all) < needed(**keeps_all)
    assert set(cheapest(needed(group=2, **keeps_all) * 1.0001, **keeps_all)) == {("full", 0, 2)}


def test_pinned_layers_are_kept() -> None:
    assert set(cheapest(200e9, recompute_layers=3)) == {("full", 3, 1)}
