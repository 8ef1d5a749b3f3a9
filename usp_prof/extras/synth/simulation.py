"""Simulation: the programs of all ranks, and the truth of every metric."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from usp_prof.extras.synth.declaration import Declaration, Fault
from usp_prof.extras.synth.history import RankLog
from usp_prof.extras.synth.program import Program, Setting
from usp_prof.extras.synth.step_truth import StepTruth, partition
from usp_prof.model.errors import UsageError


class Simulation(Setting):
    """The simulated run: every rank's log and every call."""

    def __init__(self, run: Declaration) -> None:
        super().__init__(run)
        self.logs = self._advance()

    def _advance(self) -> tuple[RankLog, ...]:
        """Advance every rank until it waits for an incomplete call; stop when none can advance."""
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
            raise UsageError(
                "the declared order of actions deadlocks", hint="a stage waits for a transfer that is never sent"
            )
        return tuple(program.log for program in programs)


# Truth: the value of every metric, from a plain sweep over the simulation's intervals.


_SETTLED = 3


@dataclass(frozen=True, slots=True)
class Culprit:
    """A declared fault and its cost: the job's mean step with all faults minus the mean without this one."""

    rank: int
    cause: str
    step: int
    axis: str
    cost_ns: int
    gain_fraction: float
    """Gain of removing it, as a share of the settled step (see `settled_step_ns`)."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The true value of every metric."""

    step_time_ns: dict[int, int]
    steps: tuple[StepTruth, ...]
    bubble_fraction: dict[int, float]
    wait_ns: dict[str, int]
    transfer_ns: dict[str, int]
    flop: dict[int, float]
    culprits: tuple[Culprit, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the truth as plain data."""
        return asdict(self)


def ground_truth(simulation: Simulation) -> Truth:
    """Compute the ground truth of a simulated run."""
    steps = tuple(part for log in simulation.logs for part in partition(log))
    wait, transfer = _communication(simulation)
    flop = {log.rank: sum(op.flop for block in log.blocks for op in block.ops) for log in simulation.logs}
    return Truth(_step_times(steps), steps, _bubble(simulation), wait, transfer, flop, _culprits(simulation))


def _step_times(steps: tuple[StepTruth, ...]) -> dict[int, int]:
    """Return the job's step times: first start to last end over ranks."""
    times = {}
    for number in sorted({part.step for part in steps}):
        of_step = [part for part in steps if part.step == number]
        times[number] = max(part.end_ns for part in of_step) - min(part.start_ns for part in of_step)
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
    """Sum each axis' waiting over participants and its transfers over calls."""
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
        repaired = Simulation(_without(simulation.run, fault))
        cost = _mean(simulation) - _mean(repaired)
        gain = 1 - settled_step_ns(repaired) / settled_step_ns(simulation)
        culprits.append(Culprit(fault.rank, str(fault.kind), fault.step, fault.axis, cost, gain))
    return tuple(sorted(culprits, key=lambda culprit: -culprit.cost_ns))


def _without(run: Declaration, fault: Fault) -> Declaration:
    return replace(run, faults=tuple(other for other in run.faults if other is not fault))


def _mean(simulation: Simulation) -> int:
    ends = [log.steps[-1][2] for log in simulation.logs]
    return round(float(np.max(ends)) / simulation.run.work.steps)


def settled_step_ns(simulation: Simulation) -> float:
    """Return the mean device step over ranks and steps without the first.

    The first step's input arrived before the device started. With fewer than three steps, all count.
    """
    steps = [part for log in simulation.logs for part in partition(log)]
    first = simulation.run.work.first_step if simulation.run.work.steps >= _SETTLED else -1
    return float(np.mean([part.end_ns - part.start_ns for part in steps if part.step != first]))
