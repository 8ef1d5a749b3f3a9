"""Shortfall: changes that make a question fit if every configuration needs more memory than available.

One fixed setting is released at a time, and then the number of devices is increased. The first change that fits is the
smallest. A change counts only if the question's trainer can run a configuration that then fits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from usp_prof import limits
from usp_prof.extras.planner.candidates import legal, needs, refined
from usp_prof.extras.planner.cases import concatenated, rows_of
from usp_prof.extras.planner.question import Question
from usp_prof.extras.planner.ranges import option
from usp_prof.extras.planner.search import startable
from usp_prof.extras.planner.stages import stages_of
from usp_prof.model.configuration import RECOMPUTES, Columns, Offload

RELEASED = ("recompute", "offload", "zero", "micro_batch", "sequence_parallel", "tp", "pp", "cp", "ep")
"""Fixed settings in the order in which releasing them is tried: those that keep the layout first."""
FOLLOWS = {"micro_batch": ("micro_batches",), "tp": ("dp",), "pp": ("dp",), "cp": ("dp",)}
"""Settings that follow from a released one, because the number of devices or the batch is kept."""
TIMES = (2, 3, 4, 6, 8, 12, 16, 32, 64)
"""Multiples of the devices that are tried."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Missing memory, and the changes that would each be sufficient."""

    missing_bytes: float
    changes: tuple[str, ...]
    """Command-line options, such as `--recompute full`; the last ones may be larger numbers of devices."""


def shortfall_of(question: Question, leanest_bytes: float) -> Shortfall:
    """Search for the smallest changes with which a configuration fits."""
    changes = []
    for name in [name for name in RELEASED if name in question.pinned]:
        names = [name, *(follower for follower in FOLLOWS.get(name, ()) if follower in question.pinned)]
        released = _without(question, names)
        if name == "offload":
            released = _with_offload(released)
        fitting = _fitting(released)
        if len(fitting.dp):
            changes.append(_options(fitting, names))
    return Shortfall(leanest_bytes - question.cluster.room_bytes, (*changes, *_devices_that_fit(question)))


def _without(question: Question, names: Collection[str]) -> Question:
    """Return the question without some of its fixed settings."""
    pinned = {name: value for name, value in question.pinned.items() if name not in names}
    return replace(question, pinned=pinned)


def _with_offload(question: Question) -> Question:
    return replace(question, pinned={**question.pinned, "offload": Offload.OPTIMIZER})


def _devices_that_fit(question: Question) -> Iterator[str]:
    """Yield the smallest number of devices tried that is sufficient, also the one with an offloaded optimizer."""
    tries_offload = "offload" not in question.pinned
    followers = [name for name in ("dp", "micro_batches") if name in question.pinned]
    for devices in [question.devices * times for times in TIMES if question.devices * times <= limits.MAX_RANKS]:
        larger = replace(_without(question, followers), devices=devices)
        if len((fitting := _fitting(larger)).dp):
            yield f"--devices {devices} {_options(fitting, followers)}".strip()
            return
        if tries_offload and len((fitting := _fitting(_with_offload(larger))).dp):
            yield f"--devices {devices} {_options(fitting, [*followers, 'offload'])}"
            tries_offload = False


def _options(fitting: Columns, names: Iterable[str]) -> str:
    """Return the options for the released settings, with the highest memory use that still fits."""
    return " ".join(f"{option(name)} {_value(fitting, name)}" for name in names)


def _value(fitting: Columns, name: str) -> str:
    value: Any = np.asarray(getattr(fitting, name))[0]
    if name == "recompute":
        return str(RECOMPUTES[int(value)])
    if name == "sequence_parallel":
        return "on" if value else "off"
    return str(Offload.OPTIMIZER if name == "offload" else int(value))


def _fitting(question: Question) -> Columns:
    """Return the configurations that fit, and that the question's trainer can run."""
    columns = legal(question)
    if not len(columns.dp):
        return columns
    cases, room = question.cases(columns), question.cluster.room_bytes
    stages = stages_of(cases)
    need = needs(cases, stages)
    further, _ = refined(cases, stages, need, room)
    fitting = concatenated(rows_of(columns, np.flatnonzero(need <= room)), further)
    if question.trainer and len(fitting.dp):
        fitting = rows_of(fitting, np.flatnonzero(startable(question, fitting)[0]))
    return fitting
