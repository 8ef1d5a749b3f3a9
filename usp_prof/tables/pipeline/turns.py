"""Turns: stretches of a step named by the order of the schedule that fits, or counted through where none does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof.model.errors import UsageError
from usp_prof.schedule import Schedule, Shape
from usp_prof.schedules.orders import Action, Kind, Order, order
from usp_prof.tables.pipeline.stretches import BACKWARD, FORWARD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_MOST_CHUNKS = 8


@dataclass(frozen=True, slots=True)
class Turn:
    """One stretch as orders know it: forward or backward, and whether something is sent after it."""

    kind: int
    sends: bool


@dataclass(frozen=True, slots=True)
class Labelled:
    """Stretches (rows) that hold some actions, in order; stage and micro-batch are -1 where only the kind is known."""

    rows: tuple[int, ...]
    actions: tuple[tuple[str, int, int], ...]
    """Kind, stage and micro-batch of each."""


def by_named_order(turns: Sequence[Sequence[tuple[int, Turn]]]) -> list[list[Labelled]]:
    """Name the stretches (row and turn) of each rank by the first schedule that fits; nothing where none does."""
    observed = [_grouped(of_rank) for of_rank in turns]
    for candidate in _candidates(turns):
        expected = [_grouped(list(enumerate(_turns_of(candidate, rank)))) for rank in range(len(candidate))]
        if all(_same(*pair) for pair in zip(observed, expected, strict=True)):
            return [
                _by_order(one, theirs, candidate[rank])
                for rank, (one, theirs) in enumerate(zip(observed, expected, strict=True))
            ]
    return []


def _grouped(turns: Sequence[tuple[int, Turn]]) -> list[tuple[Turn, list[int]]]:
    """Join stretches of one kind up to where something is sent: what both observation and order can tell apart."""
    groups: list[tuple[Turn, list[int]]] = []
    for row, turn in turns:
        last = groups[-1][0] if groups else None
        if last is not None and last.kind == turn.kind and not last.sends:
            groups[-1] = (turn, [*groups[-1][1], row])
        else:
            groups.append((turn, [row]))
    return groups


def _same(one: list[tuple[Turn, list[int]]], other: list[tuple[Turn, list[int]]]) -> bool:
    return [turn for turn, _ in one] == [turn for turn, _ in other]


def _candidates(turns: Sequence[Sequence[tuple[int, Turn]]]) -> list[Order]:
    """List the orders of all schedules that have as many forwards on the first rank."""
    forwards = sum(turn.kind == FORWARD for _, turn in turns[0])
    found = []
    for chunks in range(1, _MOST_CHUNKS + 1):
        if forwards and forwards % chunks == 0:
            for schedule in Schedule:
                try:
                    found.append(order(schedule, Shape(len(turns), forwards // chunks, chunks)))
                except UsageError:
                    continue
    return found


def _turns_of(candidate: Order, rank: int) -> list[Turn]:
    home = {action.stage: place for place, acts in enumerate(candidate) for action in acts}
    return [Turn(FORWARD if a.kind is Kind.FORWARD else BACKWARD, _sends(a, home, rank)) for a in candidate[rank]]


def _sends(action: Action, home: Mapping[int, int], rank: int) -> bool:
    if action.kind is Kind.WEIGHT_GRADIENT:
        return False
    following = action.stage + (1 if action.kind is Kind.FORWARD else -1)
    return home.get(following, rank) != rank


def _by_order(
    observed: list[tuple[Turn, list[int]]], expected: list[tuple[Turn, list[int]]], acts: Sequence[Action]
) -> list[Labelled]:
    found = []
    for (_, rows), (_, places) in zip(observed, expected, strict=True):
        named = tuple((str(acts[place].kind), acts[place].stage, acts[place].micro_batch) for place in places)
        found.append(Labelled(tuple(rows), named))
    return found


def counted(turns: Sequence[Sequence[tuple[int, Turn]]]) -> list[list[Labelled]]:
    """Count micro-batches through where every rank has as many forwards as backwards; else tell the kinds only."""
    numbers = {sum(turn.kind == kind for _, turn in one) for one in turns for kind in (FORWARD, BACKWARD)}
    plain = len(numbers) == 1 and all(
        turn.sends == (place != (len(turns) - 1 if turn.kind == FORWARD else 0))
        for place, one in enumerate(turns)
        for _, turn in one
    )
    found: list[list[Labelled]] = []
    for stage, one in enumerate(turns):
        seen = {FORWARD: 0, BACKWARD: 0}
        mine = []
        for row, turn in one:
            kind = str(Kind.FORWARD if turn.kind == FORWARD else Kind.BACKWARD)
            mine.append(Labelled((row,), ((kind, stage, seen[turn.kind]) if plain else (kind, -1, -1),)))
            seen[turn.kind] += 1
        found.append(mine)
    return found
