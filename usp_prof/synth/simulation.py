"""Simulation: all ranks' programs run against each other, and the truth of every figure.

The truth of a step comes from one sweep over each rank: the step is cut wherever anything begins or ends, and every
piece goes to one owner by what runs in it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from usp_prof.model.errors import UsageError
from usp_prof.synth.program import Program, Setting

if TYPE_CHECKING:
    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.synth.declaration import Declaration, Fault
    from usp_prof.synth.history import Part, RankLog


@dataclass(frozen=True, slots=True)
class StepTruth:
    """One rank's step on its device, in true time, with the parts that add up to it."""

    rank: int
    step: int
    start_ns: int
    end_ns: int
    compute_ns: int
    exposed_comm_ns: dict[str, int]
    comm_ns: dict[str, int]
    hidden_comm_ns: dict[str, int]
    memcpy_ns: int
    idle_ns: dict[str, int]


@dataclass(frozen=True, slots=True)
class _TimedPart:
    """One part of a call on its rank, in true time."""

    axis: str
    start_ns: int
    end_ns: int
    sent_ns: int
    """When it begins to carry anything: before, a receive waits for a peer that has not sent, which is bubble."""


class _Pieces:
    """Elementary pieces of time: nothing begins or ends inside one.

    compute 0 to 4, a copy 3 to 6     edges 0, 3, 4, 6 and pieces of the lengths 3, 1 and 2
    """

    def __init__(self, log: RankLog) -> None:
        self.log = log
        starts = np.concatenate([block.start_ns for block in log.blocks])
        ends = np.concatenate([block.start_ns + block.dur_ns for block in log.blocks])
        self.compute = _merge(starts, ends)
        self.copies = [(copy.start_ns, copy.start_ns + copy.dur_ns) for copy in log.copies]
        self.comm = [_carrying(part, log) for part in log.parts]
        self.windows = _windows(log, self)
        ranges = (*self.compute, *self.copies, *self.windows, *log.inputs, *log.syncs)
        cuts = [edge for pair in ranges for edge in pair]
        cuts += [edge for part in self.comm for edge in (part.start_ns, part.end_ns, part.sent_ns)]
        self.edges = np.unique(np.array(cuts, dtype=np.int64))
        self.length = np.diff(self.edges)

    def mask(self, pairs: list[tuple[int, int]]) -> Flags:
        """Say which pieces lie inside any of the ranges: +1 at each begin, -1 at each end; above 0 is inside."""
        level = np.zeros(len(self.edges), dtype=np.int64)
        if pairs:
            ranges = np.array(pairs, dtype=np.int64)
            np.add.at(level, np.searchsorted(self.edges, ranges[:, 0]), 1)
            np.add.at(level, np.searchsorted(self.edges, ranges[:, 1]), -1)
        return np.cumsum(level)[:-1] > 0


def partition(log: RankLog) -> list[StepTruth]:
    """Divide every step of one rank: each piece of time goes to what runs in it, in this order.

    1. Compute; 2. the axis of the communication that ends last (exposed); 3. copies; 4. idle, by its cause: a receive
    without its peer (bubble), the input, a synchronisation, and the host for the rest.
    """
    pieces = _Pieces(log)
    is_compute, is_copy = pieces.mask(pieces.compute), pieces.mask(pieces.copies)
    is_input, is_sync = pieces.mask(log.inputs), pieces.mask(log.syncs)
    axes = sorted({part.axis for part in pieces.comm})
    axis_of_piece = _axis_that_ends_last(pieces, axes)
    is_exposed_copy = is_copy & ~is_compute & (axis_of_piece == -1)
    is_idle = ~is_compute & (axis_of_piece == -1) & ~is_copy
    is_bubble = is_idle & pieces.mask([(part.start_ns, part.sent_ns) for part in pieces.comm])
    is_rest = is_idle & ~is_bubble
    causes = {
        "bubble": is_bubble,
        "input": is_rest & is_input,
        "sync": is_rest & ~is_input & is_sync,
        "host": is_rest & ~is_input & ~is_sync,
    }
    active = {
        axis: pieces.mask([(part.sent_ns, part.end_ns) for part in pieces.comm if part.axis == axis]) for axis in axes
    }
    exposed = {axis: ~is_compute & (axis_of_piece == number) for number, axis in enumerate(axes)}
    truths = []
    for (step, *_), window in zip(log.steps, pieces.windows, strict=True):
        total = partial(_total, pieces.length, pieces.mask([window]))
        truths.append(
            StepTruth(
                rank=log.rank,
                step=step,
                start_ns=window[0],
                end_ns=window[1],
                compute_ns=total(is_compute),
                exposed_comm_ns={axis: total(mask) for axis, mask in exposed.items()},
                comm_ns={axis: total(mask) for axis, mask in active.items()},
                hidden_comm_ns={axis: total(mask & is_compute) for axis, mask in active.items()},
                memcpy_ns=total(is_exposed_copy),
                idle_ns={cause: total(mask) for cause, mask in sorted(causes.items())},
            )
        )
    return truths


def _total(length: Ints, inside: Flags, mask: Flags) -> int:
    return int(length[mask & inside].sum())


def _axis_that_ends_last(pieces: _Pieces, axes: list[str]) -> Ints:
    """Give each piece the place in `axes` of the communication that ends last; -1 where there is none."""
    axis_of_piece = np.full(len(pieces.length), -1, dtype=np.int64)
    latest_end = np.full(len(pieces.length), -1, dtype=np.int64)
    for part in pieces.comm:
        low, high = np.searchsorted(pieces.edges, (part.sent_ns, part.end_ns))
        ends_later = latest_end[low:high] < part.end_ns
        axis_of_piece[low:high][ends_later] = axes.index(part.axis)
        latest_end[low:high][ends_later] = part.end_ns
    return axis_of_piece


def _carrying(part: Part, log: RankLog) -> _TimedPart:
    """Give when a part begins, when it is over, and when it begins to carry anything.

    A receive waits for a peer that has not sent: that is bubble. So does a send over gloo for one that has not asked;
    there it is over when its receiver has it.
    """
    axis, starts, ends = part.call.group.axis, part.call.start, part.call.end
    start, end = starts[log.rank], ends[log.rank]
    is_send = part.direction == "send"
    over_gloo = not log.copies
    if part.direction == "recv" or (is_send and over_gloo):
        if is_send:
            end = min(end, ends[part.call.members[1]])
        return _TimedPart(axis, start, end, min(max(starts.values()), end))
    return _TimedPart(axis, start, end, start)


def _windows(log: RankLog, pieces: _Pieces) -> list[tuple[int, int]]:
    """Give the steps on the device: from the first activity launched inside a host mark to the first of the next."""
    if not log.copies:
        return [(begin, end) for _, begin, end in log.steps]
    # When the host launched each activity, and when it began.
    launched = [(copy.host_ns, copy.start_ns) for copy in log.copies]
    launched += [(int(block.host_ns[0]), int(block.start_ns[0])) for block in log.blocks]
    launched += [(part.host_ns, part.call.start[log.rank]) for part in log.parts]
    begins = [min(start for host, start in launched if begin <= host < end) for _, begin, end in log.steps]
    ends = [end for _, end in (*pieces.compute, *pieces.copies)] + [part.end_ns for part in pieces.comm]
    return list(zip(begins, [*begins[1:], max(ends)], strict=True))


def _merge(starts: Ints, ends: Ints) -> list[tuple[int, int]]:
    """Merge ranges that touch."""
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    is_first = np.concatenate(([True], starts[1:] > reach[:-1]))
    last = np.concatenate((np.flatnonzero(is_first)[1:] - 1, [len(starts) - 1]))
    return [(int(start), int(end)) for start, end in zip(starts[is_first], reach[last], strict=True)]


class Simulation(Setting):
    """The run, simulated: the log of every rank and every call."""

    def __init__(self, run: Declaration) -> None:
        super().__init__(run)
        self.logs = self._advance()

    def _advance(self) -> tuple[RankLog, ...]:
        """Let every rank go on until it waits for a call that is not done; stop when none can."""
        programs = [Program(self, rank) for rank in range(self.run.mesh.world)]
        running = {program.rank: program.steps() for program in programs}
        waiting = {rank: next(steps, None) for rank, steps in running.items()}
        moved = True
        while moved:
            moved = False
            for rank, steps in running.items():
                call = waiting[rank]
                while call is not None and call.done:
                    call = waiting[rank] = next(steps, None)
                    moved = True
        if any(call is not None for call in waiting.values()):
            raise UsageError("the declared order of actions deadlocks", hint="a stage waits for what is never sent")
        return tuple(program.log for program in programs)


def simulate(run: Declaration) -> Simulation:
    """Run the declared run."""
    return Simulation(run)


# Truth: what every figure should be, from a plain sweep over the simulation's intervals.


_SETTLED = 3


@dataclass(frozen=True, slots=True)
class Culprit:
    """A declared fault and what it costs the job: the mean step with all faults less that without this one."""

    rank: int
    cause: str
    step: int
    axis: str
    cost_ns: int
    gain_fraction: float
    """What mending it gains, as a share of the settled step (see `settled_step_ns`)."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What every figure should be."""

    step_time_ns: dict[int, int]
    steps: tuple[StepTruth, ...]
    bubble_fraction: dict[int, float]
    wait_ns: dict[str, int]
    transfer_ns: dict[str, int]
    flop: dict[int, float]
    culprits: tuple[Culprit, ...]

    def to_dict(self) -> dict[str, Any]:
        """Give the truth as plain data."""
        return asdict(self)


def tell(simulation: Simulation) -> Truth:
    """Work out the truth of a simulated run."""
    steps = tuple(part for log in simulation.logs for part in partition(log))
    wait, transfer = _communication(simulation)
    flop = {log.rank: sum(op.flop for block in log.blocks for op in block.ops) for log in simulation.logs}
    return Truth(_step_times(steps), steps, _bubble(simulation), wait, transfer, flop, _culprits(simulation))


def _step_times(steps: tuple[StepTruth, ...]) -> dict[int, int]:
    """Give the job's step times: first begin to last end over ranks."""
    times = {}
    for number in sorted({part.step for part in steps}):
        same = [part for part in steps if part.step == number]
        times[number] = max(part.end_ns for part in same) - min(part.start_ns for part in same)
    return times


def _bubble(simulation: Simulation) -> dict[int, float]:
    if simulation.run.mesh.pp == 1:
        return {}
    fractions = {}
    for number in sorted({action.step for log in simulation.logs for action in log.actions}):
        actions = [action for log in simulation.logs for action in log.actions if action.step == number]
        window = max(a.end_ns for a in actions) - min(a.start_ns for a in actions)
        busy = sum(a.end_ns - a.start_ns for a in actions)
        fractions[number] = 1.0 - busy / (len(simulation.logs) * window)
    return fractions


def _communication(simulation: Simulation) -> tuple[dict[str, int], dict[str, int]]:
    """Sum each axis' waiting over members and its transfers over calls."""
    wait: dict[str, int] = {}
    transfer: dict[str, int] = {}
    for call in simulation.exchange.calls:
        axis = call.group.axis
        wait[axis] = wait.get(axis, 0) + sum(call.last_ns - start for start in call.start.values())
        transfer[axis] = transfer.get(axis, 0) + max(call.end.values()) - call.last_ns
    return wait, transfer


def _culprits(simulation: Simulation) -> tuple[Culprit, ...]:
    culprits = []
    for fault in simulation.run.faults:
        mended = simulate(_without(simulation.run, fault))
        cost = _mean(simulation) - _mean(mended)
        gain = 1 - settled_step_ns(mended) / settled_step_ns(simulation)
        culprits.append(Culprit(fault.rank, str(fault.kind), fault.step, fault.axis, cost, gain))
    return tuple(sorted(culprits, key=lambda culprit: -culprit.cost_ns))


def _without(run: Declaration, fault: Fault) -> Declaration:
    return replace(run, faults=tuple(other for other in run.faults if other is not fault))


def _mean(simulation: Simulation) -> int:
    ends = [log.steps[-1][2] for log in simulation.logs]
    return round(float(np.max(ends)) / simulation.run.work.steps)


def settled_step_ns(simulation: Simulation) -> float:
    """Give the mean step on the device, over ranks and steps; not the first, whose input came before the device began.

    Of fewer than three steps, all count.
    """
    steps = [part for log in simulation.logs for part in partition(log)]
    first = simulation.run.work.first_step if simulation.run.work.steps >= _SETTLED else -1
    return float(np.mean([part.end_ns - part.start_ns for part in steps if part.step != first]))
