"""In which order does each pipeline rank act: as a named schedule says, or as declared action by action?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from usp_prof.algebra.schedules.action import Action, Kind
from usp_prof.algebra.schedules.orders import Schedule, Shape, named, order
from usp_prof.model.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from usp_prof.algebra.schedules.action import Order
    from usp_prof.synth.declaration import Work

_ACTION = re.compile(r"(?P<stage>\d*)(?P<kind>[FBIW])(?P<micro_batch>\d+)\Z")


def orders(work: Work, ranks: int) -> Order:
    """Give each pipeline rank's actions in order."""
    if work.order:
        return tuple(tuple(_action(word, rank) for word in text.split()) for rank, text in enumerate(work.order))
    schedule = named(work.schedule)
    if schedule is None:
        raise unknown_name("schedule", work.schedule, Schedule)
    return order(schedule, Shape(ranks, work.micro_batches, work.virtual_stages))


def _action(word: str, rank: int) -> Action:
    """Read an action; without a stage it is the rank's own."""
    match = _ACTION.match(word)
    if match is None:
        raise UsageError(f"{word!r} is no pipeline action", hint="write F0, B0, I0, W0, or 3F0 for stage 3")
    return Action(int(match["stage"] or rank), Kind(match["kind"]), int(match["micro_batch"]))
