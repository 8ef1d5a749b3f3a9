"""Simulation of an order of actions: the longest path through ranks' orders and stages' hand-overs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.errors import UsageError
from usp_prof.schedules.orders import Action, Kind, Order

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Duration = Callable[[Action], int]


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """When each action runs; parallel arrays, `actions` in the order in which they were scheduled."""

    ranks: int
    actions: tuple[Action, ...]
    rank: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    @property
    def window(self) -> int:
        """First start to last end."""
        return int(self.end.max() - self.start.min()) if len(self.actions) else 0

    @property
    def bubble_fraction(self) -> float:
        """One less the share of ranks times window that is spent in actions."""
        busy = int((self.end - self.start).sum())
        return 1.0 - busy / (self.ranks * self.window) if self.window else 0.0


def simulate(order: Order, duration: Duration, *, transfer_ns: int = 0) -> Timeline:
    """Run an order: an action starts when its rank is free and what it needs has arrived.

    `transfer_ns` is added where what it needs comes from another rank. An order that can never end raises.
    """
    home = {action.stage: rank for rank, actions in enumerate(order) for action in actions}
    stages = max(home, default=-1) + 1
    ended: dict[Action, int] = {}
    waiting: dict[Action, list[int]] = defaultdict(list)
    place, free = [0] * len(order), [0] * len(order)
    rows: list[tuple[Action, int, int, int]] = []
    runnable = list(range(len(order)))
    while runnable:
        rank = runnable.pop()
        while place[rank] < len(order[rank]):
            action = order[rank][place[rank]]
            needs = _needs(action, stages, ended)
            missing = [need for need in needs if need not in ended]
            if missing:
                waiting[missing[0]].append(rank)
                break
            arrived = [ended[need] + (transfer_ns if home[need.stage] != rank else 0) for need in needs]
            start = max([free[rank], *arrived])
            free[rank] = ended[action] = start + duration(action)
            rows.append((action, rank, start, free[rank]))
            place[rank] += 1
            for alias in _also(action):
                runnable += waiting.pop(alias, [])
    _finished(order, place)
    columns = zip(*rows, strict=True) if rows else ((), (), (), ())
    actions, ranks, starts, ends = (tuple(column) for column in columns)
    return Timeline(len(order), actions, *(np.array(c, np.int64) for c in (ranks, starts, ends)))


def _needs(action: Action, stages: int, ended: dict[Action, int]) -> list[Action]:
    """List what must have ended: the stage before for F, the stage after for B and I, the own forward, I for W."""
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


def _also(action: Action) -> tuple[Action, ...]:
    """Give the names by which others may wait for an action: whoever waits for a B is served by an I as well."""
    if action.kind is Kind.INPUT_GRADIENT:
        return (action, Action(action.stage, Kind.BACKWARD, action.micro_batch))
    return (action,)


def _finished(order: Order, place: list[int]) -> None:
    stuck = [str(actions[at]) for actions, at in zip(order, place, strict=True) if at < len(actions)]
    if stuck:
        raise UsageError(
            f"the schedule can never end: {', '.join(stuck[:4])} wait for each other",
            hint="check that each action's counterparts on the neighbouring stages are in the order",
        )
