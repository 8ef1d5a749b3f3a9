"""Patterns: unmarked steps, from repetition in a rank's kernels, ops or annotations.

Steps are accepted only if the work clearly repeats (`columns.repetition`); `health` reports steps found this way. A
step starts after the optimizer if there is one, else at the host's longest pause.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.repetition import Repetition, find_repetition, repetition_at
from usp_prof.columns.rows import distinct
from usp_prof.contract import parse_mark
from usp_prof.tables.events.classification import PHASES, phase_finder
from usp_prof.tables.events.frame import HOST_OPS, MARKS, EventFrame
from usp_prof.tables.events.links import Links
from usp_prof.tables.step_cuts.device_work import OPTIMIZER

Marks = tuple[Ints, Ints, Ints]

_COMMUNICATION = ("nccl:", "gloo:", "c10d::", "record_param_comms", "rccl:", "hccl:")
_NOTHING = np.zeros(0, np.int64)
_BACKWARD, _STEP = PHASES.index("backward"), PHASES.index("optimizer")


@dataclass(frozen=True, slots=True, eq=False)
class _WorkInOrder:
    """Work of a rank, in the order in which its host started it."""

    codes: Ints
    host: Ints
    """Host start time of each piece of work."""
    phase: Ints
    latest: int
    """End of all work."""
    least: int
    """Minimum number of repeats; without signs of training, two could be any two halves."""

    @property
    def needed(self) -> list[Flags]:
        """Masks of work that every step must contain if any step does."""
        return [self.phase == _STEP, self.phase == _BACKWARD]

    def marks(self, periods: Repetition | None) -> Marks:
        """Return the numbers, host start times and host end times of the repeated periods."""
        if periods is None:
            return _NOTHING, _NOTHING, _NOTHING
        start = self.host[periods.start]
        return np.arange(len(start)), start, np.append(self.host, self.latest + 1)[periods.end]


def by_annotations(frame: EventFrame, links: Links) -> Marks:
    """Cut at an annotation that recurs with the same work after it each time."""
    work, rows = _work(frame, links), frame.rows(*MARKS)
    # Marks of parts of steps, and communication, cannot mark a step.
    is_candidate = frame.by_name(rows, lambda name: parse_mark(name) is None and not name.startswith(_COMMUNICATION))
    rows = _outermost(frame, rows[is_candidate])
    codes, _ = frame.codes("name")
    own = codes[rows]
    best: Repetition | None = None
    for code in distinct(own).tolist():
        places = np.searchsorted(work.host, frame.start[rows[own == code]])
        periods = repetition_at(work.codes, places, work.needed, least=work.least)
        if periods is not None and (best is None or (len(periods), -periods.start[0]) > (len(best), -best.start[0])):
            best = periods
    return work.marks(best)


def by_work(frame: EventFrame, links: Links) -> Marks:
    """Cut where the kernels of the busiest stream repeat, or the host's ops if the trace has no device work."""
    work = _work(frame, links)
    periods = find_repetition(work.codes, _begin(work.host, work.phase), work.needed, least=work.least)
    return work.marks(periods)


def _work(frame: EventFrame, links: Links) -> _WorkInOrder:
    kernels = np.isin(links.work, frame.rows("kernel"))
    linked = kernels & (links.call >= 0)
    if len(links.work):
        rows, begun = links.work[linked], links.call[linked]
        lane = frame.ints("device", rows) * (1 << 20) + frame.ints("stream", rows)
        busiest = _most(lane)
        rows, begun = rows[busiest], begun[busiest]
    else:
        rows = frame.rows(*HOST_OPS)
        rows = rows[(links.op_depth == 0) & ~frame.by_name(rows, lambda name: name.startswith(_COMMUNICATION))]
        begun = rows
    order = np.lexsort((rows, frame.start[begun]))
    rows, begun = rows[order], begun[order]
    phase = phase_finder(frame)(frame.track[begun], frame.start[begun])
    updates = frame.by_name(rows, lambda name: OPTIMIZER.search(name) is not None)
    phase = np.where(updates & (phase != _BACKWARD), _STEP, phase)
    trains = bool(np.isin(phase, (_STEP, _BACKWARD)).any())
    latest = int(max(frame.end[begun].max(), frame.end[rows].max())) if len(rows) else 0
    codes, _ = frame.codes("name")
    return _WorkInOrder(codes[rows].astype(np.int64), frame.start[begun], phase, latest, 2 if trains else 3)


def _most(keys: Ints) -> Flags:
    """Mark the rows with the most frequent key."""
    distinct, place = np.unique(keys, return_inverse=True)
    frequent = int(np.argmax(np.bincount(place, minlength=max(len(distinct), 1))))
    return np.asarray(place == frequent, dtype=bool)


def _begin(host: Ints, phase: Ints) -> Floats:
    """Return the likelihood of a step start at each event: after the optimizer or a pause, never inside backward."""
    pause = np.r_[0, np.maximum(np.diff(host), 0)]
    rank = np.argsort(np.argsort(pause, kind="stable"), kind="stable") / max(len(pause), 1)
    before = np.r_[0, phase[:-1]]
    rank = np.where((before == _BACKWARD) | (phase == _BACKWARD), 0.0, 0.5 * rank)
    return np.where((before == _STEP) & (phase != _STEP), 1.0, rank)


def _outermost(frame: EventFrame, rows: Ints) -> Ints:
    """Return the outermost annotations of the thread with the most of them, in order of time."""
    if not len(rows):
        return rows
    top = rows[frame.nested(rows).depth == 0]
    top = top[_most(frame.track[top])]
    return frame.in_order_of_time(top)
