"""In which order does each pipeline rank act?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from usp_prof.model.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from usp_prof.synth.declaration import Work

_ACTION = re.compile(r"(?P<stage>\d*)(?P<kind>[FBIW])(?P<micro_batch>\d+)\Z")


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a pipeline rank."""

    kind: str
    stage: int
    micro_batch: int


def orders(work: Work, ranks: int) -> tuple[tuple[Action, ...], ...]:
    """Give each pipeline rank's actions in order."""
    if work.order:
        return tuple(_parse(text, rank) for rank, text in enumerate(work.order))
    if work.schedule not in _SCHEDULES:
        raise unknown_name("schedule", work.schedule, _SCHEDULES)
    return tuple(_SCHEDULES[work.schedule](rank, ranks, work.micro_batches) for rank in range(ranks))


def _gpipe(rank: int, ranks: int, count: int) -> tuple[Action, ...]:  # noqa: ARG001 - one shape for all schedules
    forward = [Action("F", rank, number) for number in range(count)]
    return (*forward, *(Action("B", rank, number) for number in range(count)))


def _one_forward_one_backward(rank: int, ranks: int, count: int) -> tuple[Action, ...]:
    warm_up = min(ranks - rank, count)
    actions = [Action("F", rank, number) for number in range(warm_up)]
    for number in range(count):
        actions.append(Action("B", rank, number))
        if warm_up + number < count:
            actions.append(Action("F", rank, warm_up + number))
    return tuple(actions)


_SCHEDULES = {"GPipe": _gpipe, "1F1B": _one_forward_one_backward}


def _parse(text: str, rank: int) -> tuple[Action, ...]:
    actions = []
    for word in text.split():
        match = _ACTION.match(word)
        if match is None:
            raise UsageError(f"{word!r} is no pipeline action", hint="write F0, B0, I0, W0, or 3F0 for stage 3")
        actions.append(Action(match["kind"], int(match["stage"] or rank), int(match["micro_batch"])))
    return tuple(actions)
