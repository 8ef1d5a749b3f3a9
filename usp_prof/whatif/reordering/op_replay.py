"""Slowdown of a published job: its operations made as its peers' are, or those of one stage.

S = T / T_ideal, with compute at the mean and transfers at the median of their kind over all ranks and steps. M_S is
the share of the loss that goes away when only the last stage is made ideal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.model.errors import InputError
from usp_prof.whatif.reordering.op_model import EMBEDDING, GATHER, LAYER_NORM, NORM, SCATTER, Model, build_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from usp_prof.inputs.op_table import Op, OpTable

    Lengths = Mapping[Op, NDArray[np.int64]]

_TALK = (GATHER, SCATTER, EMBEDDING, NORM, LAYER_NORM)
_CLOCKS_OPEN_NS = 10_000_000  # members that seem to end before the last begins by more than clocks allow: no transfer


@dataclass(frozen=True, slots=True)
class JobSlowdown:
    """A job's mean step, replayed as it ran and at its ideal, and the same with the last stage alone made ideal."""

    step_ns: float
    ideal_ns: float
    last_stage_ideal_ns: float

    @property
    def slowdown(self) -> float:
        """S: how many times its ideal the job takes."""
        return self.step_ns / self.ideal_ns

    @property
    def last_stage_share(self) -> float:
        """M_S: the share of the loss that the last stage explains."""
        lost = self.step_ns - self.ideal_ns
        return (self.step_ns - self.last_stage_ideal_ns) / lost if lost else 0.0


def job_slowdown(table: OpTable) -> JobSlowdown:
    """Replay a job as it ran, at its ideal, and with the last stage made ideal."""
    model = build_model(table)
    real = lengths(table, model)
    best = ideal(real)
    last = table.stages - 1
    mixed = {op: best[op] if op.stage == last else real[op] for op in real}
    return JobSlowdown(*(float(replay(model, chosen).mean()) for chosen in (real, best, mixed)))


def lengths(table: OpTable, model: Model) -> dict[Op, NDArray[np.int64]]:
    """Give each operation's own time: its duration, or for those that meet others the time after the last began."""
    row = {op: place for place, op in enumerate(table.ops)}
    found = {}
    for op, place in row.items():
        begun = table.start_ns[place]
        if op in model.meets:
            begun = np.max([table.start_ns[row[other]] for other in model.meets[op]], axis=0)
            if op in model.over_replicas:
                begun = np.broadcast_to(begun.max(axis=0), begun.shape)
        own = table.end_ns[place] - begun
        found[op] = np.where(own <= -_CLOCKS_OPEN_NS, 0, own) if op in model.meets else own
    return found


def ideal(real: Lengths) -> dict[Op, NDArray[np.int64]]:
    """Give every operation what its kind takes over all stages, replicas and steps: mean compute, median transfer."""
    kinds = {op.kind for op in real}
    typical = {}
    for kind in sorted(kinds):
        sample = np.concatenate([own.ravel() for op, own in real.items() if op.kind == kind])
        talks = kind in _TALK or kind.endswith(("-send", "-recv"))
        typical[kind] = round(float(np.median(sample) if talks else sample.mean()))
    return {op: np.full_like(own, typical[op.kind]) for op, own in real.items()}


def replay(model: Model, own: Lengths) -> NDArray[np.int64]:
    """Give the length of each step: the longest path, for all replicas and steps at once."""
    shape = next(iter(own.values())).shape
    nothing = np.zeros(shape, np.int64)
    start: dict[Op, NDArray[np.int64]] = {}
    end: dict[Op, NDArray[np.int64]] = {}
    waiting = list(own)
    while waiting:
        left = []
        for op in waiting:
            if op not in start and all(before in end for before in model.after[op]):
                start[op] = np.max([nothing, *(end[before] for before in model.after[op])], axis=0)
            members = model.meets.get(op, (op,))
            if all(member in start for member in members):
                met = np.max([start[member] for member in members], axis=0)
                if op in model.over_replicas:
                    met = np.broadcast_to(met.max(axis=0), shape)
                end[op] = met + own[op]
            else:
                left.append(op)
        if len(left) == len(waiting):
            names = ", ".join(f"{op.kind} {op.number} of stage {op.stage}" for op in left[:3])
            raise InputError(f"these operations wait for each other: {names}", hint="the table's order cannot have run")
        waiting = left
    return np.asarray(np.max(list(end.values()), axis=0).max(axis=0))
