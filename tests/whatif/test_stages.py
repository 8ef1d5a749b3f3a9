"""Stages: each rank has those of its schedule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned import LLAMA_8B

from usp_prof.model.configuration import Configuration
from usp_prof.model.errors import UsageError
from usp_prof.schedule import Schedule, Shape
from usp_prof.whatif.layout import footprints, in_flight, layers_of_stages, stages_of, worst


@pytest.mark.parametrize(
    ("schedule", "shape", "in_flight_counts"),
    [
        (Schedule.GPIPE, Shape(4, 8), (8, 8, 8, 8)),
        (Schedule.ONE_F_ONE_B, Shape(4, 8), (4, 3, 2, 1)),
        (Schedule.ONE_F_ONE_B, Shape(4, 2), (2, 2, 2, 1)),
        (Schedule.ZBV, Shape(4, 8, 2), (8, 8, 8, 8)),
    ],
)
def test_schedules_determine_the_micro_batches_in_flight(
    schedule: Schedule, shape: Shape, in_flight_counts: tuple[int, ...]
) -> None:
    assert in_flight(schedule, shape) == in_flight_counts


def test_interleaving_stores_more_than_1f1b() -> None:
    """Narayanan et al.: (1 + (p - 1) / (p v)) times the activations of 1F1B on the first rank."""
    assert in_flight(Schedule.INTERLEAVED, Shape(4, 8, 2))[0] / 2 == 4 * (1 + 3 / 8)


@given(st.integers(1, 200), st.integers(1, 64))
def test_all_layers_are_distributed_evenly(layers: int, stages: int) -> None:
    dealt = layers_of_stages(layers, stages)
    assert sum(dealt) == layers
    assert max(dealt) - min(dealt) <= 1


def test_leftover_layers_go_to_the_middle() -> None:
    assert layers_of_stages(10, 4) == (2, 3, 3, 2)


def test_v_shaped_schedules_have_both_ends_on_the_first_rank() -> None:
    stages = stages_of(LLAMA_8B, Configuration(pp=4, micro_batches=8, schedule="zbv"))
    assert [(s.embedding, s.head) for s in stages] == [(True, True)] + [(False, False)] * 3


def test_the_fullest_rank_is_the_worst() -> None:
    configuration = Configuration(pp=4, micro_batches=8)
    assert worst(LLAMA_8B, configuration).total_bytes == max(f.total_bytes for f in footprints(LLAMA_8B, configuration))


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(UsageError, match="no schedule is named"):
        stages_of(LLAMA_8B, Configuration(pp=2, schedule="zigzag"))
