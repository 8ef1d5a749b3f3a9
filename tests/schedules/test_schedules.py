"""Schedules: orders equal those of torch, and simulated bubbles equal those of textbooks."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.model.errors import UsageError
from usp_prof.schedule import TRAITS, Schedule, Shape, schedule_by_name
from usp_prof.schedule_orders import ORDERS, Action, Kind, order, simulate, stage_ranks

TWO = (Schedule.ZBV, Schedule.DUALPIPE_V)
LOOPED = (Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB)


def even(action: Action) -> int:
    return 40 if action.kind is Kind.BACKWARD else 20


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Schedule, Shape]:
    schedule = draw(st.sampled_from(list(Schedule)))
    ranks = draw(st.integers(1, 6))
    count = ranks * draw(st.integers(2, 4)) if schedule in (*LOOPED, *TWO) else draw(st.integers(1, 9))
    chunks = 2 if schedule in TWO else draw(st.integers(1, 3)) if schedule in LOOPED else 1
    return schedule, Shape(ranks, count, chunks)


@given(pipelines())
def test_every_action_is_taken_once_by_the_rank_that_holds_the_stage(drawn: tuple[Schedule, Shape]) -> None:
    schedule, shape = drawn
    homes = stage_ranks(schedule, shape)
    rank_actions = [(rank, action) for rank, actions in enumerate(order(schedule, shape)) for action in actions]
    assert len(rank_actions) == len({action for _, action in rank_actions})
    for rank, action in rank_actions:
        assert homes[action.stage] == rank
    for stage in range(shape.ranks * shape.chunks):
        for number in range(shape.micro_batches):
            kinds = sorted(str(a.kind) for _, a in rank_actions if (a.stage, a.micro_batch) == (stage, number))
            assert kinds in (["B", "F"], ["F", "I", "W"])


@given(pipelines(), st.integers(0, 3), st.randoms(use_true_random=False))
def test_a_simulated_timeline_keeps_orders_and_hand_overs(
    drawn: tuple[Schedule, Shape], transfer: int, random: object
) -> None:
    schedule, shape = drawn
    plan = order(schedule, shape)
    lengths = {action: random.randint(1, 9) for actions in plan for action in actions}  # type: ignore[attr-defined]
    line = simulate(plan, lengths.__getitem__, transfer_ns=transfer)
    when = {a: (int(s), int(e)) for a, s, e in zip(line.actions, line.start, line.end, strict=True)}
    homes = stage_ranks(schedule, shape)
    for actions in plan:
        for before, after in pairwise(actions):
            assert when[after][0] >= when[before][1]
    for action, (start, end) in when.items():
        assert end - start == lengths[action]
        if action.kind is Kind.FORWARD and action.stage:
            far = transfer if homes[action.stage] != homes[action.stage - 1] else 0
            assert start >= when[Action(action.stage - 1, Kind.FORWARD, action.micro_batch)][1] + far
    # Nothing starts later than necessary: one bound is tight.
    for action, (start, _) in when.items():
        assert start == 0 or any(end <= start <= end + transfer for _, end in when.values()), action


@pytest.mark.parametrize(("schedule", "chunks"), [
    (Schedule.GPIPE, 1), (Schedule.ONE_F_ONE_B, 1), (Schedule.INTERLEAVED, 2), (Schedule.INTERLEAVED, 3),
    (Schedule.ZB_H1, 1), (Schedule.INTERLEAVED_ZB, 2), (Schedule.ZBV, 2),
])  # fmt: skip
@pytest.mark.parametrize(("ranks", "count"), [(2, 8), (4, 8), (4, 16), (8, 16)])
def test_simulated_bubbles_equal_the_textbook(schedule: Schedule, chunks: int, ranks: int, count: int) -> None:
    shape = Shape(ranks, count, chunks)
    measured = simulate(order(schedule, shape), even).bubble_fraction
    if schedule is Schedule.ZBV:  # the published zero refers to each rank's own window
        assert measured <= (ranks - 1) / (3 * count + ranks - 1)
        assert schedule.traits.bubble(shape) == 0
    else:
        assert measured == pytest.approx(schedule.traits.bubble(shape), abs=1e-12)


def test_bubbles_have_their_known_values() -> None:
    assert Schedule.ONE_F_ONE_B.traits.bubble(Shape(4, 8)) == pytest.approx(3 / 11)
    assert Schedule.INTERLEAVED.traits.bubble(Shape(4, 8, 2)) == pytest.approx(3 / 19)
    assert Schedule.DUALPIPE_V.traits.bubble(Shape(4, 8, 2)) == pytest.approx(3 / 27)


def test_a_step_of_one_rank_has_no_bubble() -> None:
    assert simulate(order(Schedule.ONE_F_ONE_B, Shape(1, 3)), even).bubble_fraction == 0
    assert simulate((), even).bubble_fraction == 0


@pytest.mark.parametrize(("schedule", "shape"), [
    (Schedule.ZBV, Shape(4, 8, 1)), (Schedule.GPIPE, Shape(4, 8, 2)),
    (Schedule.INTERLEAVED, Shape(4, 9, 2)), (Schedule.DUALPIPE_V, Shape(4, 7, 2)),
])  # fmt: skip
def test_impossible_pipelines_are_refused(schedule: Schedule, shape: Shape) -> None:
    with pytest.raises(UsageError) as caught:
        order(schedule, shape)
    assert caught.value.hint


def test_an_order_that_deadlocks_is_an_error() -> None:
    stuck = ((Action(0, Kind.BACKWARD, 0), Action(0, Kind.FORWARD, 0)), (Action(1, Kind.FORWARD, 0),))
    with pytest.raises(UsageError, match="can never end: 0B0, 1F0"):
        simulate(stuck, even)


def test_schedules_are_found_by_their_usual_spellings() -> None:
    assert schedule_by_name("Schedule1F1B") is Schedule.ONE_F_ONE_B
    assert schedule_by_name("InterleavedZeroBubble") is Schedule.INTERLEAVED_ZB
    assert schedule_by_name("interleaved-zb") is Schedule.INTERLEAVED_ZB
    assert schedule_by_name("ScheduleDualPipeV") is Schedule.DUALPIPE_V
    assert schedule_by_name("mine") is None


def _of_torch(schedule: Schedule, shape: Shape) -> tuple[tuple[Action, ...], ...]:
    """Compute the orders with torch's classes, without a process group."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    single = {Schedule.ZBV: "ScheduleZBVZeroBubble", Schedule.DUALPIPE_V: "ScheduleDualPipeV",
              Schedule.INTERLEAVED: "ScheduleInterleaved1F1B"}  # fmt: skip
    cls = getattr(schedules, single.get(schedule, "ScheduleInterleavedZeroBubble"))
    rounds = max(1, shape.micro_batches // shape.ranks)
    made = SimpleNamespace(
        pp_group_size=shape.ranks, _n_microbatches=shape.micro_batches, n_local_stages=shape.chunks,
        num_stages=shape.ranks * shape.chunks, number_of_rounds=rounds, rank=0,
        microbatches_per_round=shape.micro_batches // rounds,
    )  # fmt: skip
    return tuple(tuple(_flat(cls._calculate_single_rank_operations(made, rank))) for rank in range(shape.ranks))


def _flat(actions: list) -> list[Action]:
    scheduled = [a for a in actions if a is not None]
    flat = [sub for a in scheduled for sub in (a.sub_actions or (a,))]
    letters = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
    return [Action(a.stage_index, Kind(letters[a.computation_type.name]), a.microbatch_index) for a in flat]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [
    Schedule.INTERLEAVED, Schedule.ZB_H1, Schedule.INTERLEAVED_ZB, Schedule.ZBV, Schedule.DUALPIPE_V,
])  # fmt: skip
@pytest.mark.parametrize(("ranks", "count"), [(1, 4), (2, 4), (3, 9), (4, 8), (4, 16), (8, 16)])
def test_orders_equal_those_of_torch(schedule: Schedule, ranks: int, count: int) -> None:
    shape = Shape(ranks, count, 1 if schedule is Schedule.ZB_H1 else 2)
    assert order(schedule, shape) == _of_torch(schedule, shape)


def test_every_schedule_has_a_record_an_order_and_unique_spellings() -> None:
    assert set(TRAITS) == set(ORDERS) == set(Schedule)
    spellings = [word for traits in TRAITS.values() for word in traits.spellings]
    assert len(spellings) == len(set(spellings))
    assert all(schedule_by_name(str(schedule)) is schedule for schedule in Schedule)


@pytest.mark.parametrize("schedule", list(Schedule))
def test_a_schedules_record_agrees_with_its_order(schedule: Schedule) -> None:
    traits = schedule.traits
    shape = Shape(4, 8, traits.usual_stages_per_rank)
    kinds = {action.kind for actions in order(schedule, shape) for action in actions}
    assert (Kind.WEIGHT_GRADIENT in kinds) == traits.splits_backward
    home = stage_ranks(schedule, shape)
    assert (home[0] == home[-1]) == traits.is_v_shaped
    with_another_count = Shape(4, 8, traits.usual_stages_per_rank + 1)
    if traits.is_looped:
        assert order(schedule, with_another_count)
    else:
        with pytest.raises(UsageError, match="stages on each rank"):
            order(schedule, with_another_count)


@pytest.mark.parametrize("schedule", [schedule for schedule in Schedule if schedule.traits.pytorch_name])
def test_pytorch_has_a_class_of_the_recorded_name(schedule: Schedule) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    assert hasattr(schedules, f"Schedule{schedule.traits.pytorch_name}")


def test_a_schedule_that_ends_after_every_valid_time_is_refused() -> None:
    """Damaged clocks gave actions of a year each, whose sum does not fit in 64 bits."""
    with pytest.raises(UsageError, match="more than a century") as refused:
        simulate(order(Schedule.ONE_F_ONE_B, Shape(2, 8)), lambda _: 1 << 60)
    assert "clock" in refused.value.hint
