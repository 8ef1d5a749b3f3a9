"""Pipeline schedules: the order of each rank's actions, and a simulation of the times that result from an order.

The orders are those of PyTorch's pipelining; Megatron's 1F1B and interleaved orders are the same. They follow Huang et
al. (GPipe), Narayanan et al. (1F1B, interleaved), Qi et al. (zero bubble H1, ZBV) and DeepSeek (DualPipeV).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from usp_prof import limits
from usp_prof.model.errors import UsageError
from usp_prof.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from numpy.typing import NDArray

    from usp_prof.schedule import Shape


class Kind(StrEnum):
    """PyTorch's letters: forward, full backward, and its two halves (input gradient, weight gradient)."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_GRADIENT = "I"
    WEIGHT_GRADIENT = "W"


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One action; stages count through all virtual stages."""

    stage: int
    kind: Kind
    micro_batch: int

    def __str__(self) -> str:
        """Format the action as PyTorch does: 1F0."""
        return f"{self.stage}{self.kind}{self.micro_batch}"


Order = tuple[tuple[Action, ...], ...]
"""The actions of each pipeline rank, in order."""


F, B, I, W = Kind  # noqa: E741 - the usual letters


def order(schedule: Schedule, shape: Shape) -> Order:
    """Return each rank's actions in order; raise if the schedule does not support this pipeline shape."""
    actions = 2 * shape.ranks * shape.chunks * shape.micro_batches
    if actions > limits.MAX_ACTIONS:
        raise UsageError(
            f"{shape.ranks} ranks x {shape.chunks} stages x {shape.micro_batches} micro-batches are {actions} actions, "
            f"more than the limit of {limits.MAX_ACTIONS}",
            hint="choose fewer micro-batches or stages on each rank",
        )
    stages_per_rank = schedule.traits.stages_per_rank
    if stages_per_rank is not None and shape.chunks != stages_per_rank:
        raise UsageError(
            f"schedule {schedule} has {stages_per_rank} stages on each rank, not {shape.chunks}",
            hint="set the number of stages on each rank, or choose interleaved or interleaved-zb",
        )
    return tuple(tuple(ORDERS[schedule](rank, shape)) for rank in range(shape.ranks))


def stage_ranks(schedule: Schedule, shape: Shape) -> tuple[int, ...]:
    """Return the rank of each stage: in loops over the ranks, or down and up again for V-shaped schedules."""
    if schedule.traits.is_v_shaped:
        return (*range(shape.ranks), *reversed(range(shape.ranks)))
    return tuple(range(shape.ranks)) * shape.chunks


def _gpipe(rank: int, shape: Shape) -> Iterator[Action]:
    for kind in (F, B):
        yield from (Action(rank, kind, number) for number in range(shape.micro_batches))


def _one_f_one_b(rank: int, shape: Shape) -> Iterator[Action]:
    ahead = min(shape.ranks - rank, shape.micro_batches)
    yield from (Action(rank, F, number) for number in range(ahead))
    for number in range(shape.micro_batches):
        yield Action(rank, B, number)
        if ahead + number < shape.micro_batches:
            yield Action(rank, F, ahead + number)


@dataclass(slots=True)
class _Counter:
    """Counter that returns the next micro-batch of each stage and kind."""

    given: dict[tuple[int, Kind], int] = field(default_factory=dict)

    def next(self, stage: int, kind: Kind) -> Action:
        number = self.given.get((stage, kind), 0)
        self.given[stage, kind] = number + 1
        return Action(stage, kind, number)


def _looped(rank: int, shape: Shape, *, split: bool) -> Iterator[Action]:
    """Interleave chunks round by round; if `split`, the weight halves of backwards fill the cool-down."""
    rounds = max(1, shape.micro_batches // shape.ranks) if shape.chunks > 1 else 1
    if shape.micro_batches % rounds:
        raise UsageError(
            f"{shape.micro_batches} micro-batches do not divide into {rounds} rounds over {shape.ranks} ranks",
            hint=f"use a multiple of {shape.ranks} micro-batches",
        )
    per_round, total = shape.micro_batches // rounds, shape.micro_batches * shape.chunks
    away = (1 if split else 2) * (shape.ranks - 1 - rank)
    ahead = min((shape.chunks - 1) * per_round + away, total)
    counter = _Counter()
    owed: list[int] = []

    def stage(step: int, *, backward: bool) -> int:
        chunk = (step // per_round) % shape.chunks
        return (shape.chunks - 1 - chunk if backward else chunk) * shape.ranks + rank

    for step in range(ahead):
        yield counter.next(stage(step, backward=False), F)
    for step in range(total):
        if ahead + step < total:
            yield counter.next(stage(ahead + step, backward=False), F)
        stage_of_step = stage(step, backward=True)
        yield counter.next(stage_of_step, I if split else B)
        if split:
            owed.append(stage_of_step)
            if step >= rank:
                yield counter.next(owed.pop(0), W)
    yield from (counter.next(stage_of_step, W) for stage_of_step in owed)


def _zbv(rank: int, shape: Shape) -> Iterator[Action]:
    """Fill the V as if there were enough micro-batches, then drop actions of micro-batches that do not exist."""
    wanted = max(2 * shape.ranks - 1, shape.micro_batches)
    down, up = rank, 2 * shape.ranks - 1 - rank
    counter = _Counter()
    plan = [(down, F)] * (2 * (shape.ranks - rank) - 1)
    plan += [(up, F), (down, F)] * rank
    plan += [(up, F), (up, I), (up, W)] * (shape.ranks - rank)
    first, second = 2 * shape.ranks - rank - 1, shape.ranks
    while second < first or first < wanted:
        if first < wanted:
            plan.append((down, F))
            first += 1
        plan += [(down, I), (down, W), (up, F), (up, I), (up, W)]
        second += 1
    plan += [(down, I), (up, I)] * rank + [(down, I), (down, W)] * (shape.ranks - rank)
    plan += [(up, W)] * rank + [(down, W)] * rank
    actions = (counter.next(*step) for step in plan)
    return (action for action in actions if action.micro_batch < shape.micro_batches)


def _dualpipe_v(rank: int, shape: Shape) -> Iterator[Action]:
    """Yield DeepSeek's eight phases; a forward that overlaps a backward directly precedes it."""
    least = Schedule.DUALPIPE_V.traits.least_micro_batches(shape.ranks)
    if shape.micro_batches < least:
        raise UsageError(
            f"DualPipeV needs at least {least} micro-batches on {shape.ranks} ranks",
            hint="use more micro-batches, or zbv",
        )
    down, up, after = rank, 2 * shape.ranks - 1 - rank, shape.ranks - rank - 1
    forward_and_backward = [(up, F), (down, B)]
    plan = [(down, F)] * (2 * after) + [(down, F), (up, F)] * (rank + 1) + [(up, I), (up, W), (up, F)] * after
    plan += [(down, F), (up, B), *forward_and_backward] * (shape.micro_batches - 2 * shape.ranks + rank + 1)
    plan += [(up, B), *forward_and_backward] * after
    late = False
    for turn in range(rank + 1):
        half = turn == (rank + 1) // 2
        late = late or (half and rank % 2 == 1)
        plan.append((up, I if late else B))
        late = late or (half and rank % 2 == 0)
        plan.append((down, I if late else B))
    plan += [(down, W), (down, I if late else B)] * after + [(down, W)] * (rank + 1)
    return _with_owed_weights(plan)


def _with_owed_weights(plan: list[tuple[int, Kind]]) -> Iterator[Action]:
    """Assign micro-batches: a full backward counts as both halves, and a W completes the oldest open I of any stage."""
    counter = _Counter()
    owed: list[Action] = []
    for stage, kind in plan:
        if kind is W:
            if owed:
                oldest = owed.pop(0)
                yield Action(oldest.stage, W, oldest.micro_batch)
        elif kind is F:
            yield counter.next(stage, F)
        else:
            action = Action(stage, kind, counter.next(stage, B).micro_batch)
            if kind is I:
                owed.append(action)
            yield action


ORDERS: dict[Schedule, Callable[[int, Shape], Iterator[Action]]] = {
    Schedule.GPIPE: _gpipe,
    Schedule.ONE_F_ONE_B: _one_f_one_b,
    Schedule.INTERLEAVED: partial(_looped, split=False),
    Schedule.ZB_H1: partial(_looped, split=True),
    Schedule.INTERLEAVED_ZB: partial(_looped, split=True),
    Schedule.ZBV: _zbv,
    Schedule.DUALPIPE_V: _dualpipe_v,
}


# Simulation: the longest path through the ranks' orders and the transfers between stages.


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Start and end of each action as parallel arrays, in the order in which the actions were scheduled."""

    ranks: int
    actions: tuple[Action, ...]
    rank: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    @property
    def window(self) -> int:
        """Time from the first start to the last end."""
        return int(self.end.max() - self.start.min()) if len(self.actions) else 0

    @property
    def bubble_fraction(self) -> float:
        """Idle share of ranks times window."""
        busy = int((self.end - self.start).sum())
        return 1.0 - busy / (self.ranks * self.window) if self.window else 0.0


def simulate(order: Order, duration: Callable[[Action], int], *, transfer_ns: int = 0) -> Timeline:
    """Simulate an order: an action starts when its rank is free and its inputs have arrived.

    An input from another rank arrives `transfer_ns` later. Raises if the order deadlocks or takes longer than a
    century.
    """
    turns = _turns(order)
    free, starts, ends = [0] * len(order), [0] * len(turns), [0] * len(turns)
    for place, (action, rank, needs) in enumerate(turns):
        start = free[rank]
        for need, is_remote in needs:
            start = max(start, ends[need] + transfer_ns if is_remote else ends[need])
        starts[place] = start
        free[rank] = ends[place] = start + duration(action)
    if max(ends, default=0) > limits.NUMBER.high:
        raise UsageError(
            "the simulated schedule would take more than a century",
            hint="check the clocks: usp-prof analyze RUN --section clock --section health",
        )
    actions, ranks = tuple(action for action, _, _ in turns), [rank for _, rank, _ in turns]
    return Timeline(len(order), actions, *(np.array(column, np.int64) for column in (ranks, starts, ends)))


_Turn = tuple[Action, int, tuple[tuple[int, bool], ...]]
"""An action, its rank, and its dependencies: the index of each among the turns, and whether it runs on another rank."""


@lru_cache(maxsize=64)
def _turns(order: Order) -> tuple[_Turn, ...]:
    """Sort the actions of all ranks topologically; memoized, because one order is simulated many times."""
    home = {action.stage: rank for rank, actions in enumerate(order) for action in actions}
    stages = max(home, default=-1) + 1
    turn_of: dict[Action, int] = {}
    waiting: dict[Action, list[int]] = defaultdict(list)
    place = [0] * len(order)
    turns: list[_Turn] = []
    runnable = list(range(len(order)))
    while runnable:
        rank = runnable.pop()
        while place[rank] < len(order[rank]):
            action = order[rank][place[rank]]
            needs = needs_of(action, stages, turn_of)
            missing = [need for need in needs if need not in turn_of]
            if missing:
                waiting[missing[0]].append(rank)
                break
            turn_of[action] = len(turns)
            turns.append((action, rank, tuple((turn_of[need], home[need.stage] != rank) for need in needs)))
            place[rank] += 1
            runnable += waiting.pop(action, [])
            if action.kind is Kind.INPUT_GRADIENT:  # also releases actions that wait for the full backward
                runnable += waiting.pop(Action(action.stage, Kind.BACKWARD, action.micro_batch), [])
    _finished(order, place)
    return tuple(turns)


def needs_of(action: Action, stages: int, ended: Collection[Action]) -> list[Action]:
    """Return dependencies: F needs the previous stage, B and I need the next stage and their own F, W needs its I."""
    stage, number = action.stage, action.micro_batch
    if action.kind is Kind.FORWARD:
        return [Action(stage - 1, Kind.FORWARD, number)] if stage else []
    if action.kind is Kind.WEIGHT_GRADIENT:
        return [Action(stage, Kind.INPUT_GRADIENT, number)]
    own = [Action(stage, Kind.FORWARD, number)]
    if stage == stages - 1:
        return own
    halves = Action(stage + 1, Kind.INPUT_GRADIENT, number)
    return [*own, halves if halves in ended else Action(stage + 1, Kind.BACKWARD, number)]


def _finished(order: Order, place: list[int]) -> None:
    stuck = [str(actions[at]) for actions, at in zip(order, place, strict=True) if at < len(actions)]
    if stuck:
        raise UsageError(
            f"the schedule can never end: {', '.join(stuck[:4])} wait for each other",
            hint="check that each action's counterparts on the neighboring stages are in the order",
        )
