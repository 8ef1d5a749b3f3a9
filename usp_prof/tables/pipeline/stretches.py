"""Stretches: uninterrupted forward or backward work between pipeline messages.

A rank runs one action after the other, and posts messages between them. So a stretch of work in one phase without a
pipeline message inside is one action, or several that send nothing in between.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.rows import first_of_run, group_codes, last_of_run, lookup, per_code, rows_of
from usp_prof.columns.table import Columns
from usp_prof.contract import parse_mark
from usp_prof.model.topology import Axis
from usp_prof.tables.communication.posts import P2P
from usp_prof.tables.events.classification import WorkKind
from usp_prof.tables.table_set import Source

FORWARD, BACKWARD = 0, 1
_INSIDE = (str(Axis.TP), str(Axis.CP), str(Axis.EP))
_PHASES = {"forward": FORWARD, "backward": BACKWARD, "optimizer": -1}
_UNKNOWN = 2
_NEAR = 0.3
"""Maximum distance of a pause from an equal share, in shares, at which it can separate actions."""
_PREPARES = 0.1
"""Maximum share of an action's work that may run before the receive it waits for."""
_ALLOCATES = re.compile(r"aten::(new_)?(empty|zeros|ones)(_like|_strided)?\Z")


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Sends and receives of a rank on the pipeline axis, in the order in which the host posted them."""

    posted: Ints
    ended: Ints
    """End of each message on the device."""
    sends: Flags
    peer: Ints
    step: Ints


@dataclass(frozen=True, slots=True, eq=False)
class ActionWork:
    """Work that belongs to actions, in the host's launch order.

    `begun` and `ended` are host times, `start` and `end` device times; on a CPU both are the same.
    """

    event: Ints
    begun: Ints
    ended: Ints
    start: Ints
    end: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Stretches of one phase, in order; each covers `work` from its `first` row up to that of the next stretch."""

    work: ActionWork
    first: Ints
    step: Ints
    kind: Ints
    busy: Ints
    """Compute time of each stretch."""

    def heavy(self, share: float) -> Ints:
        """Return the stretches with at least this share of their kind's usual work; lighter ones are between actions.

        Usual is the weighted median: half of all work is in stretches at least this long, however many light ones
        exist.
        """
        is_heavy = np.zeros(len(self.step), bool)
        for kind in (FORWARD, BACKWARD):
            of_kind = self.kind == kind
            if of_kind.any():
                heaviest_first = np.sort(self.busy[of_kind])[::-1]
                half = np.searchsorted(np.cumsum(heaviest_first), heaviest_first.sum() / 2)
                is_heavy |= of_kind & (self.busy >= share * heaviest_first[half]) & (self.busy > 0)
        return np.flatnonzero(is_heavy)

    def sends(self, rows: Ints, passed: Messages) -> Flags:
        """Return whether a send follows each row, before the next row starts or the step's last message is posted."""
        sent, step_sent = passed.posted[passed.sends], passed.step[passed.sends]
        start, step = self.work.begun[self.first[rows]], self.step[rows]
        until = np.r_[start[1:], np.iinfo(np.int64).max] if len(rows) else start
        sends = np.searchsorted(sent, until, side="right") > np.searchsorted(sent, start, side="right")
        last = last_of_run(step)
        # A step's last messages belong to it even if the next step's work starts before they are posted.
        for row in np.flatnonzero(last).tolist():
            sends[row] = bool(np.any((sent > start[row]) & (step_sent == step[row])))
        return np.asarray(sends)

    def pieces(self, rows: list[int], count: int) -> list[tuple[int, int]]:
        """Cut stretches into `count` ranges of work: at messages, else at the pause next to each equal share.

        Example: two stretches with 3 and 1 equally long activities hold 3 actions. The message between them comes after
        2.25 of 3 shares and becomes cut 2. Cut 1 is the longest pause near the end of share 1.
        """
        bounds = [*self.first.tolist(), len(self.work.start)]
        places = np.concatenate([np.arange(bounds[row], bounds[row + 1]) for row in rows])
        done = np.cumsum(self.work.end[places] - self.work.start[places])
        # Indexed by pairs of adjacent `places`: how many of the `count` equal shares are done, and the pause between
        # the two.
        share = done[:-1] * count / max(1, int(done[-1]))
        pause = self.work.start[places[1:]] - np.maximum.accumulate(self.work.end[places])[:-1]
        cuts = _at_messages(share, np.flatnonzero(np.isin(places[1:], self.first[rows])), count)
        for number in range(1, count):
            if number not in cuts:
                _cut_at_pause(cuts, number, share, pause)
        edges = [0, *(place + 1 for place in sorted(cuts.values())), len(places)]
        return [(int(places[begin]), int(places[end - 1]) + 1) for begin, end in pairwise(edges)]

    def after_receiving(self, low: int, high: int, arrived: Ints) -> int:
        """Return the first row of a range after the receive it waited for; earlier rows only prepared for it."""
        start, end = self.work.start[low:high], self.work.end[low:high]
        since = arrived[(arrived > start[0]) & (arrived <= start[-1])]
        if not len(since):
            return low
        begin = int(np.searchsorted(start, since.max()))
        before = int((end - start)[:begin].sum())
        waited = int(start[begin] - end[:begin].max())
        return low + begin if waited > before and before < _PREPARES * int((end - start).sum()) else low


def messages(source: Source) -> Messages:
    """Return the pipeline messages of a rank."""
    activities, collectives = Columns(source.view("activities")), Columns(source.view("collectives"))
    part = activities["collective"]
    rows = np.flatnonzero(activities.matches("axis", str(Axis.PP)) & (part >= 0) & (part < len(collectives)))
    is_p2p = collectives.matches("op", *P2P)
    rows = rows[is_p2p[part[rows]]]
    posted = _posted(source, activities)[rows]
    rows = rows[np.lexsort((activities["start_ns"][rows], posted))]
    part = part[rows]
    sends = collectives.matches("op", "send", "send_recv")[part]
    ended = activities["start_ns"][rows] + activities["dur_ns"][rows]
    return Messages(np.sort(posted), ended, sends, collectives["peer"][part], activities["step"][rows])


def stretches(source: Source, passed: Messages) -> Stretches:
    """Cut a rank's work at messages, and at changes between forward and backward.

    - Select compute inside steps, and communication on axes inside actions, in host order.
    - Classify each as forward or backward by its op or pace mark. Communication has the kind of the work before it.
      Unknown work between backward work is attributed to a hook; other unknown work counts as forward.
    - Drop work that cannot be part of an action: everything before a step's first receive, and work without a phase
      after its last message.
    """
    activities = Columns(source.view("activities"))
    begun, ended = _host_times(source, activities)
    # Receive buffers are allocated between actions, which can take long if the thread is preempted.
    allocates = activities.satisfies("name", _ALLOCATES.match)
    compute = activities.matches("kind", str(WorkKind.COMPUTE)) & ~allocates
    kind = _kinds(source, activities, compute)
    inside = activities.matches("kind", str(WorkKind.COMMUNICATION)) & activities.matches("axis", *_INSIDE)
    rows = np.flatnonzero((compute | inside) & (activities["step"] >= 0))
    rows = rows[np.lexsort((rows, begun[rows]))]
    kind = _filled(kind[rows], compute[rows])
    step = activities["step"][rows]
    cut = np.searchsorted(passed.posted, begun[rows], side="right")
    kind = _within_backward(kind, group_codes(step, cut))
    is_unsure = (kind == _UNKNOWN) | ~compute[rows]
    last = _last_of_step(passed, step, begun[rows], (kind == BACKWARD) & compute[rows])
    acts = (kind >= 0) & ~(is_unsure & (begun[rows] >= last)) & (begun[rows] >= _first_of_step(passed, step))
    rows, kind, step, cut = rows[acts], kind[acts], step[acts], cut[acts]
    kind = np.where(kind == _UNKNOWN, FORWARD, kind)
    first = np.flatnonzero(first_of_run(cut, kind, step))
    start = activities["start_ns"][rows]
    end = start + activities["dur_ns"][rows]
    busy = np.add.reduceat(np.where(compute[rows], end - start, 0), first) if len(rows) else first
    work = ActionWork(activities["event"][rows], begun[rows], ended[rows], start, end)
    return Stretches(work, first, step[first], kind[first], busy)


def _posted(source: Source, activities: Columns) -> Ints:
    """Return when the host posted each message: its launch, or on a CPU the op that passed it to a worker."""
    begun, _ = _host_times(source, activities)
    ops = Columns(source.view("ops"))
    if len(Columns(source.view("launches"))) or not len(ops):
        return begun
    op = rows_of(ops["event"], activities["op_event"])  # -1: the op is unknown
    return np.where(op >= 0, ops["start_ns"][op], begun)


def _host_times(source: Source, activities: Columns) -> tuple[Ints, Ints]:
    """Return the start and end of each activity's launch on the host; on a CPU, of the activity itself."""
    launches = Columns(source.view("launches"))
    start = activities["start_ns"]
    if not len(launches):
        return start, start + activities["dur_ns"]
    launch = rows_of(launches["event"], activities["launch_event"])  # -1: not launched in the window
    begun = np.where(launch >= 0, launches["start_ns"][launch], start)
    return begun, np.where(launch >= 0, begun + launches["dur_ns"][launch], begun)


def _kinds(source: Source, activities: Columns, compute: Flags) -> Ints:
    """Return whether each activity is forward or backward work, by its pace mark or its op."""
    ops = Columns(source.view("ops"))
    by_op = np.full(len(activities), _UNKNOWN, np.int64)
    if len(ops):
        kind_of_op = ops.by_text("phase", lambda phase: _PHASES.get(phase, _UNKNOWN), missing=_UNKNOWN)
        by_op = lookup(kind_of_op, rows_of(ops["event"], activities["op_event"]), missing=_UNKNOWN)
    by_pace = activities.by_text("name", _paced, missing=_UNKNOWN)
    return np.where(compute & (by_pace != _UNKNOWN), by_pace, by_op)


def _paced(name: str) -> int:
    mark = parse_mark(name)
    if mark is None or mark.area != "pace":
        return _UNKNOWN
    return FORWARD if mark.what.startswith("f") else BACKWARD


def _filled(kind: Ints, compute: Flags) -> Ints:
    """Assign communication inside actions the kind of the work before it."""
    place = np.maximum.accumulate(np.where(compute, np.arange(len(kind)), 0)) if len(kind) else kind
    return np.asarray(kind[place])


def _within_backward(kind: Ints, code: Ints) -> Ints:
    """Assign unknown work to backward if it is between backward work without a message in between; it is a hook's."""
    if not len(kind):
        return kind
    place, count = np.arange(len(kind)), int(code.max()) + 1
    first = per_code(code, np.where(kind == BACKWARD, place, len(kind)), np.minimum, count)[code]
    last = per_code(code, np.where(kind == BACKWARD, place, -1), np.maximum, count)[code]
    return np.where((kind == _UNKNOWN) & (place > first) & (place < last), BACKWARD, kind)


def _first_of_step(passed: Messages, step: Ints) -> Ints:
    """Return when the first message of each row's step was posted, if it is a receive; no action can start earlier."""
    first = np.full(len(step), np.iinfo(np.int64).min)
    steps, place = np.unique(passed.step, return_index=True)
    waits = ~passed.sends[place]
    for number, at in zip(steps[waits].tolist(), passed.posted[place[waits]].tolist(), strict=True):
        first[step == number] = at
    return first


def _last_of_step(passed: Messages, step: Ints, begun: Ints, backward: Flags) -> Ints:
    """Return when the last message was posted or backward work started in each row's step.

    Later work without a phase is not part of an action.
    """
    steps = np.r_[step, passed.step]
    times = np.r_[np.where(backward, begun, 0), passed.posted]
    codes = group_codes(steps)
    if not len(codes):
        return codes
    return np.asarray(per_code(codes, times, np.maximum, int(codes.max()) + 1)[codes[: len(step)]])


def _at_messages(share: Floats, bounds: Ints, count: int) -> dict[int, int]:
    """Return the cuts at messages, by cut number; if several messages are near one share, the nearest is used."""
    cuts: dict[int, int] = {}
    for bound in bounds.tolist() if count > 1 else ():
        number = max(1, min(count - 1, round(float(share[bound]))))
        if number not in cuts or abs(share[bound] - number) < abs(share[cuts[number]] - number):
            cuts[number] = bound
    return cuts


def _cut_at_pause(cuts: dict[int, int], number: int, share: Floats, pause: Ints) -> None:
    """Add cut `number` between its neighbors: at the longest pause near its share, else at the nearest position."""
    low = max((place for other, place in cuts.items() if other < number), default=-1) + 1
    high = min((place for other, place in cuts.items() if other > number), default=len(share))
    if low >= high:
        return
    away = np.abs(share[low:high] - number)
    is_near = away <= _NEAR
    nearest = np.argmax(np.where(is_near, pause[low:high], -1)) if is_near.any() else away.argmin()
    cuts[number] = low + int(nearest)
