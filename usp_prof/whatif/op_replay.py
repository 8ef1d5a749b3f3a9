"""Replay of operation tables: dependencies of the operations in a pipelined step.

Follows the dependency model of the straggler study: compute, four streams of transfers between stages, and the
data-parallel collectives around them. The gradient norm in the optimizer synchronizes all stages.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.inputs.op_table import Op
from usp_prof.model.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from usp_prof.columns.arrays import Ints
    from usp_prof.inputs.op_table import OpTable

    Lengths = Mapping[Op, Ints]


FORWARD, BACKWARD = "forward-compute", "backward-compute"
GATHER, SCATTER, EMBEDDING = "params-all-gather", "grads-reduce-scatter", "embedding-grads-all-reduce"
NORM, LAYER_NORM, OPTIMIZER, COLLECTION = "optimizer-clip-main-grad", "layernorm-grads-all-reduce", "optimizer", "gc"
_AHEAD = {"forward": 1, "backward": -1}


@dataclass(slots=True)
class Model:
    """Dependency model: predecessors of each operation, its participants (itself included), and data-parallel calls."""

    after: dict[Op, list[Op]] = field(default_factory=lambda: defaultdict(list))
    meets: dict[Op, tuple[Op, ...]] = field(default_factory=dict)
    over_replicas: set[Op] = field(default_factory=set)

    def chain(self, ops: Iterable[Op]) -> None:
        """Make each operation depend on the one before it."""
        for before, after in pairwise(ops):
            self.after[after].append(before)

    def join(self, ops: Iterable[Op], *, over_replicas: bool = False) -> None:
        """Make operations participants of one call: none ends before the last one starts."""
        members = tuple(ops)
        for op in members:
            self.meets[op] = members
        if over_replicas:
            self.over_replicas |= set(members)


def build_model(table: OpTable) -> Model:
    """Build the dependency model from the order of operations in the first step of the first replica."""
    model, place = Model(), {op: row for row, op in enumerate(table.ops)}
    start = {op: int(table.start_ns[row, 0, 0]) for op, row in place.items()}
    for stage in range(table.stages):
        ops_of_stage = sorted(
            (op for op in table.ops if op.stage == stage), key=lambda op: (start[op], op.number, op.kind)
        )
        of_kind: dict[str, list[Op]] = defaultdict(list)
        for op in ops_of_stage:
            of_kind[op.kind].append(op)
        compute = [op for op in ops_of_stage if op.kind in (FORWARD, BACKWARD)]
        if not of_kind[FORWARD]:
            raise InputError(f"stage {stage} has no {FORWARD}", hint="read all stages")
        model.chain(compute)
        for way, ahead in _AHEAD.items():
            _transfers(model, of_kind, way)
            for number, send in enumerate(of_kind[f"{way}-send"]):
                receive = Op(f"{way}-recv", number, stage + ahead)
                if receive not in place:
                    raise InputError(f"{send.kind} {number} of stage {stage} has no receive", hint="read all stages")
                model.join((send, receive))
        _first_backward(model, compute, of_kind)
        _around(model, compute, of_kind)
    _meetings(model, table)
    return model


def _transfers(model: Model, of_kind: dict[str, list[Op]], way: str) -> None:
    compute, sends, receives = (of_kind[f"{way}-{role}"] for role in ("compute", "send", "recv"))
    for transfers in (sends, receives):
        if transfers and len(transfers) != len(compute):
            raise InputError(
                f"stage {transfers[0].stage} has {len(transfers)} {transfers[0].kind} to {len(compute)} computations",
                hint="only plain pipelines can be replayed",
            )
        model.chain(transfers)
    for send, done in zip(sends, compute, strict=False):
        model.after[send].append(done)
    for number, receive in enumerate(receives):
        model.after[compute[number]].append(receive)
        if number:
            model.after[receive].append(compute[number - 1])


def _first_backward(model: Model, compute: list[Op], of_kind: dict[str, list[Op]]) -> None:
    """Make gradient transfers wait for the second-to-last forward of the warm-up."""
    turn = next((place for place, op in enumerate(compute) if op.kind == BACKWARD), 0)
    if turn < 2:
        return
    for kind in ("backward-recv", "backward-send"):
        if of_kind[kind]:
            model.after[of_kind[kind][0]].append(compute[turn - 2])


def _around(model: Model, compute: list[Op], of_kind: dict[str, list[Op]]) -> None:
    """Gather parameters before the first forward, and reduce gradients after the last backward."""
    for gather in of_kind[GATHER][-1:]:
        first = next(op for op in compute if op.kind == FORWARD)
        model.after[first].append(gather)
    model.chain(sorted([*of_kind[GATHER], *of_kind[SCATTER]], key=lambda op: (op.kind != GATHER, op.number)))
    tail = [compute[-1]]
    for kind in (COLLECTION, LAYER_NORM, EMBEDDING, SCATTER, NORM, OPTIMIZER):
        tail += of_kind[kind]
    model.chain(tail)


def _meetings(model: Model, table: OpTable) -> None:
    for op in table.ops:
        if op.kind in (GATHER, SCATTER):
            model.join((op,), over_replicas=True)
    for kind, over_replicas in ((EMBEDDING, False), (NORM, True)):
        members = [op for op in table.ops if op.kind == kind]
        if members:
            model.join(members, over_replicas=over_replicas)


# Slowdown of a published job, with all operations made ideal, or only those of the last stage or of one worker.
#
# S = T / T_ideal, with compute at the mean and transfers at the median of their kind over all ranks and steps. M_S is
# the share of the loss that disappears when only the last stage is made ideal; M_W the same for the worst worker. A
# worker is one stage of one replica.

_TALK = (GATHER, SCATTER, EMBEDDING, NORM, LAYER_NORM)
_CLOCKS_OPEN_NS = 10_000_000  # members that end earlier before the last start than clock errors allow have no transfer


@dataclass(frozen=True, slots=True)
class Worker:
    """One stage of one replica, and the job's mean step with only this worker made ideal."""

    stage: int
    replica: int
    step_ns: float


@dataclass(frozen=True, slots=True)
class JobSlowdown:
    """A job's mean step as it ran, ideal, and with only a part made ideal, all replayed."""

    step_ns: float
    ideal_ns: float
    last_stage_ideal_ns: float
    worst_worker: Worker
    """The worker that explains most of the loss."""

    @property
    def slowdown(self) -> float:
        """S: the job's step divided by its ideal."""
        return self.step_ns / self.ideal_ns

    @property
    def last_stage_share(self) -> float:
        """M_S: the share of the loss that the last stage explains."""
        return self._share(self.last_stage_ideal_ns)

    @property
    def worst_worker_share(self) -> float:
        """M_W: the share of the loss that the worst worker explains."""
        return self._share(self.worst_worker.step_ns)

    def _share(self, step_ns: float) -> float:
        lost = self.step_ns - self.ideal_ns
        return (self.step_ns - step_ns) / lost if lost else 0.0


def job_slowdown(table: OpTable) -> JobSlowdown:
    """Return a job's slowdown from replays: as it ran, ideal, and with the last stage or one worker ideal."""
    model = build_model(table)
    real = lengths(table, model)
    best = ideal(real)
    last = table.stages - 1

    def mean_step_ns(chosen: Lengths) -> float:
        return float(replay(model, chosen).mean())

    def with_worker_ideal(stage: int, replica: int) -> Lengths:
        is_replica = np.arange(table.replicas)[:, np.newaxis] == replica
        return {op: np.where(is_replica, best[op], real[op]) if op.stage == stage else real[op] for op in real}

    workers = [
        Worker(stage, replica, mean_step_ns(with_worker_ideal(stage, replica)))
        for stage in range(table.stages)
        for replica in range(table.replicas)
    ]
    slowdown = JobSlowdown(
        mean_step_ns(real),
        mean_step_ns(best),
        mean_step_ns({op: best[op] if op.stage == last else real[op] for op in real}),
        min(workers, key=lambda worker: worker.step_ns),
    )
    if not slowdown.ideal_ns:
        raise InputError("at its ideal the job takes no time", hint="the table's operations need their durations")
    return slowdown


def lengths(table: OpTable, model: Model) -> dict[Op, Ints]:
    """Return each operation's own time: its duration or, for calls, the time since the last participant started."""
    row = {op: place for place, op in enumerate(table.ops)}
    own_times = {}
    for op, place in row.items():
        begun = table.start_ns[place]
        if op in model.meets:
            begun = np.max([table.start_ns[row[other]] for other in model.meets[op]], axis=0)
            if op in model.over_replicas:
                begun = np.broadcast_to(begun.max(axis=0), begun.shape)
        own = table.end_ns[place] - begun
        own_times[op] = np.where(own <= -_CLOCKS_OPEN_NS, 0, own) if op in model.meets else own
    return own_times


def ideal(real: Lengths) -> dict[Op, Ints]:
    """Return ideal times: the mean (compute) or median (transfers) of each kind over all stages, replicas and steps."""
    kinds = {op.kind for op in real}
    typical = {}
    for kind in sorted(kinds):
        sample = np.concatenate([own.ravel() for op, own in real.items() if op.kind == kind])
        talks = kind in _TALK or kind.endswith(("-send", "-recv"))
        typical[kind] = round(float(np.median(sample) if talks else sample.mean()))
    return {op: np.full_like(own, typical[op.kind]) for op, own in real.items()}


def replay(model: Model, own: Lengths) -> Ints:
    """Return the length of each step: the longest path, computed for all replicas and steps at once."""
    shape = next(iter(own.values())).shape
    nothing = np.zeros(shape, np.int64)
    start: dict[Op, Ints] = {}
    end: dict[Op, Ints] = {}
    waiting = list(own)
    while waiting:
        left = []
        for op in waiting:
            if op not in start and all(before in end for before in model.after[op]):
                start[op] = np.max([nothing, *(end[before] for before in model.after[op])], axis=0)
            members = model.meets.get(op, (op,))
            if all(member in start for member in members):
                last_begin = np.max([start[member] for member in members], axis=0)
                if op in model.over_replicas:
                    last_begin = np.broadcast_to(last_begin.max(axis=0), shape)
                end[op] = last_begin + own[op]
            else:
                left.append(op)
        if len(left) == len(waiting):
            names = ", ".join(f"{op.kind} {op.number} of stage {op.stage}" for op in left[:3])
            raise InputError(f"these operations wait for each other: {names}", hint="the table's order cannot have run")
        waiting = left
    return np.asarray(np.max(list(end.values()), axis=0).max(axis=0))
