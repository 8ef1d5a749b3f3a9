"""Phases of host moments: forward, backward or optimizer, by marks and by autograd."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.contract import parse_mark
from usp_prof.tables.events.frame import HOST_OPS, MARKS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.columns.lanes import Tracks
    from usp_prof.tables.events.frame import EventFrame

    Ints = NDArray[np.int64]

PHASES = ["", "forward", "backward", "optimizer"]
_OPTIMIZER = re.compile(r"Optimizer\.step#|\W*optimi[sz]er(?:[ _-]?step)?\W*\Z", re.IGNORECASE)
_FORWARD = re.compile(r"\W*forward\W*\Z|\w*\.forward\Z|Forward \d+\Z", re.IGNORECASE)
_BACKWARD = re.compile(r"\W*backward\W*\Z|Backward \d+\Z", re.IGNORECASE)
ENGINE = "autograd::engine::evaluate_function"
"""How the ops of the autograd engine begin, one a node that it evaluates."""


def phase_of_mark(name: str) -> int:
    """Say which phase an annotation stands for (place in the list of phases); 0 for none."""
    mark = parse_mark(name)
    if mark is not None:
        if mark.area == "pp":
            return {"F": 1, "B": 2, "I": 2, "W": 2}.get(mark.what, 0)
        return {"forward": 1, "backward": 2, "optimizer": 3}.get(mark.what, 0) if mark.area == "train" else 0
    for place, pattern in ((3, _OPTIMIZER), (2, _BACKWARD), (1, _FORWARD)):
        if pattern.match(name):
            return place
    return 0


@dataclass(frozen=True, slots=True, eq=False)
class PhaseFinder:
    """Says for moments on threads in which phase they lie: inside the autograd engine, else by the marks around."""

    _marks: Tracks
    _meaning: Ints
    _engine: Tracks

    def at(self, track: Ints, start: Ints) -> Ints:
        """Give the phases of moments (places in `PHASES`)."""
        inner = self._marks.innermost(track, start)
        phase = np.where(inner >= 0, np.r_[self._meaning, 0][inner], 0)
        inside = self._engine.innermost(track, start) >= 0
        return np.where(inside & (phase != PHASES.index("optimizer")), PHASES.index("backward"), phase)


def phases_of(frame: EventFrame) -> PhaseFinder:
    """Gather what tells phases in a trace."""
    marks = frame.rows(*MARKS)
    meaning = frame.by_name(marks, phase_of_mark, np.int64)
    marks, meaning = marks[meaning > 0], meaning[meaning > 0]
    ops = frame.rows(*HOST_OPS)
    engine = ops[frame.by_name(ops, lambda name: name.startswith(ENGINE))]
    return PhaseFinder(frame.nested(marks), meaning, frame.nested(engine))


def phases(frame: EventFrame, track: Ints, start: Ints) -> Ints:
    """Say for moments on threads in which phase they lie (places in `PHASES`)."""
    return phases_of(frame).at(track, start)
