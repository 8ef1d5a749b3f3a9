"""Which schedule does a pipeline look like, and how large would its bubble be at best? From orders and durations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.algebra.schedules.action import Action, Kind, Order
from usp_prof.algebra.schedules.orders import Schedule, Shape, named, order
from usp_prof.algebra.schedules.simulation import simulate
from usp_prof.algebra.schedules.textbook import bubble_fraction
from usp_prof.model.errors import UsageError

if TYPE_CHECKING:
    from usp_prof.algebra.schedules.simulation import Timeline
    from usp_prof.analyses._pipeline_actions import Actions

_LIKE_ENOUGH = 0.8


@dataclass(frozen=True, slots=True)
class Guess:
    """The schedule that the orders look like, and how much: the share of places with the same action."""

    schedule: Schedule | None
    likeness: float
    declared: str = ""


@dataclass(frozen=True, slots=True)
class Ideal:
    """Bubbles of the order that ran, simulated without any loss; NaN when the order cannot be simulated.

    `measured` takes each stage's own median durations, `balanced` the mean over stages: their difference is what
    uneven stages cost.
    """

    measured: float
    balanced: float
    textbook: float
    line: Timeline | None = None
    """When each action would run at best, with the measured durations; ranks are places in the pipeline."""


def shape_of(observed: Order) -> Shape:
    """Read ranks, micro-batches and stages on each rank off an order."""
    stages = {action.stage for actions in observed for action in actions}
    numbers = {action.micro_batch for actions in observed for action in actions}
    return Shape(len(observed), len(numbers), max(1, round(len(stages) / max(1, len(observed)))))


def guess(observed: Order, declared: str) -> Guess:
    """Find the schedule whose order is most like the observed one."""
    shape, best = shape_of(observed), Guess(None, 0.0, declared)
    for schedule in Schedule:
        try:
            candidate = order(schedule, shape)
        except UsageError:
            continue
        alike = _likeness(observed, candidate)
        if alike > best.likeness:
            best = Guess(schedule, alike, declared)
    return best if best.likeness >= _LIKE_ENOUGH else Guess(named(declared), best.likeness, declared)


def _likeness(observed: Order, candidate: Order) -> float:
    same = sum(a == b for one, two in zip(observed, candidate, strict=True) for a, b in zip(one, two, strict=False))
    return same / max(1, *(sum(map(len, each)) for each in (observed, candidate)))


def ideal(observed: Order, actions: Actions, found: Guess) -> Ideal:
    """Simulate the observed order with the measured durations."""
    by_stage = _durations(actions)
    shape = shape_of(observed)
    textbook = bubble_fraction(found.schedule, shape) if found.schedule else float("nan")
    by_kind: dict[Kind, list[int]] = {}
    for (_, kind), ns in by_stage.items():
        by_kind.setdefault(kind, []).append(ns)
    even = {kind: round(sum(found_ns) / len(found_ns)) for kind, found_ns in by_kind.items()}

    def own(action: Action) -> int:
        return by_stage[action.stage, action.kind]

    def mean(action: Action) -> int:
        return even[action.kind]

    try:
        line = simulate(observed, own)
        return Ideal(line.bubble_fraction, simulate(observed, mean).bubble_fraction, textbook, line)
    except UsageError:  # actions are missing: ranks not read, or a step cut by the window
        return Ideal(float("nan"), float("nan"), textbook)


def _durations(actions: Actions) -> dict[tuple[int, Kind], int]:
    found = {}
    for stage in np.unique(actions.stage).tolist():
        for kind in Kind:
            rows = (actions.stage == stage) & (actions.kind == str(kind))
            if rows.any():
                found[stage, kind] = int(np.median(actions.busy_ns[rows]))
    return found
