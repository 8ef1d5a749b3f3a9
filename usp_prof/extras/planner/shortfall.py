"""Shortfall: changes that make a question fit if every configuration needs more memory than available.

One fixed setting is released at a time, and then the number of devices is increased. The first change that fits is the
smallest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from usp_prof import limits
from usp_prof.extras.planner.candidates import legal, needs
from usp_prof.extras.planner.question import Question
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
    """Command-line options, such as `--recompute full`; the last one may be a larger number of devices."""


def shortfall_of(question: Question, leanest_bytes: float) -> Shortfall:
    """Search for the smallest changes with which a configuration fits."""
    changes = []
    for name in [name for name in RELEASED if name in question.pinned or name == "offload"]:
        pinned = {
            other: value for other, value in question.pinned.items() if other not in (name, *FOLLOWS.get(name, ()))
        }
        if name == "offload":
            pinned["offload"] = Offload.OPTIMIZER
        if value := _value_that_fits(replace(question, pinned=pinned), name):
            changes.append(f"--{name.replace('_', '-')} {value}")
    if devices := _devices_that_fit(question):
        changes.append(f"--devices {devices}")
    return Shortfall(leanest_bytes - question.cluster.room_bytes, tuple(changes))


def _devices_that_fit(question: Question) -> int:
    """Return the smallest number of devices tried that is sufficient; 0 if none is."""
    pinned = {name: value for name, value in question.pinned.items() if name not in ("dp", "micro_batches")}
    for times in TIMES:
        devices = question.devices * times
        if devices <= limits.MAX_RANKS and _fitting(replace(question, devices=devices, pinned=pinned))[1].any():
            return devices
    return 0


def _value_that_fits(question: Question, name: str) -> str:
    """Return the value of a released setting with the highest memory use that still fits, or an empty string."""
    columns, fits = _fitting(question)
    if not fits.any():
        return ""
    row = int(np.flatnonzero(fits)[0])
    value: Any = np.asarray(getattr(columns, name))[row]
    if name == "recompute":
        return str(RECOMPUTES[int(value)])
    if name == "sequence_parallel":
        return "on" if value else "off"
    return str(Offload.OPTIMIZER if name == "offload" else int(value))


def _fitting(question: Question) -> tuple[Columns, NDArray[np.bool_]]:
    columns = legal(question)
    if not len(columns.dp):
        return columns, np.zeros(0, bool)
    cases = question.cases(columns)
    return columns, needs(cases, stages_of(cases)) <= question.cluster.room_bytes
