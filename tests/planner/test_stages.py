"""Layers per stage: split as each trainer does it."""

from dataclasses import replace

import pytest
from planned import EXPERTS, cases

from usp_prof.extras.planner.stages import ENOUGH, by_cost, head_cost, leaves_rank_empty, stages_of
from usp_prof.model.configuration import Configuration
from usp_prof.model.known_models import model_named
from usp_prof.model.shape import shape_of
from usp_prof.schedule import Schedule, Shape
from usp_prof.whatif.layout import in_flight


def test_by_cost_the_stage_with_the_head_has_fewer_layers() -> None:
    # 8 layers and a head that costs 4 of them: 12 in all, and 6 per stage.
    assert by_cost(8, 2, 4.0) == (6, 2)
    assert by_cost(8, 2, 3.9) == (6, 2)
    assert by_cost(8, 2, 4.1) == (7, 1)
    assert by_cost(16, 4, 4.0) == (5, 5, 5, 1)
    assert sum(by_cost(32, 16, 2.5)) == 32


def test_a_split_by_cost_may_leave_the_last_stage_without_a_block() -> None:
    """The sweep's 1B model: after the head, casts and the loss fill at most two more stages."""
    assert by_cost(16, 16, 4.0)[-3:] == (0, 0, 0)
    small, medium = (shape_of(model_named(f"Llama-3.2-{size}", 4096)) for size in ("1B", "3B"))
    assert leaves_rank_empty(small, 16)
    assert not leaves_rank_empty(small, 8)
    assert not leaves_rank_empty(medium, 16)


def test_the_cost_of_the_head_is_relative_to_the_active_experts() -> None:
    """Each token uses 2 x 2,048 inner channels. Without them, the head counted as many layers."""
    dense = replace(EXPERTS, experts=0, experts_per_token=0, expert_ffn_hidden=0, ffn_hidden=2 * 2048)
    assert head_cost(shape_of(EXPERTS)) == pytest.approx(float(head_cost(shape_of(dense))), rel=1e-2)


def test_the_first_rank_keeps_as_many_micro_batches_as_there_are_stages() -> None:
    stages = stages_of(cases(Configuration(pp=4, micro_batches=16), Configuration(pp=4, micro_batches=2)))
    assert stages.in_flight.tolist() == [[4, 2], [3, 2], [1, 1]]
    assert stages.layers.tolist() == [[2, 2], [2, 2], [2, 2]]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev"])
def test_micro_batches_in_flight_match_the_order_of_the_schedule(schedule: str) -> None:
    traits = Schedule(schedule).traits
    chunks = 2 if traits.usual_stages_per_rank == 2 else 1
    stages = stages_of(cases(Configuration(pp=4, micro_batches=16, schedule=schedule, chunks=chunks)))
    micro_batches = in_flight(Schedule(schedule), Shape(4, 16, chunks))
    assert stages.in_flight[0, 0] == pytest.approx(micro_batches[0] / chunks, rel=0.15)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-h1", "zbv", "dualpipev"])
def test_micro_batches_in_flight_do_not_grow_after_twice_the_depth(schedule: str) -> None:
    """So that longer pipelines need not be laid out action by action."""
    chunks = 2 if Schedule(schedule).traits.usual_stages_per_rank == 2 else 1
    for ranks in (2, 3, 8, 16):
        few, many = (in_flight(Schedule(schedule), Shape(ranks, times * ranks, chunks)) for times in (ENOUGH, 5))
        assert few == many
