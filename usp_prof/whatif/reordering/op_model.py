"""Order of operations in a pipelined step of an operation table: their streams, and who meets whom.

After the dependency model of the straggler study: compute, four streams of transfers between stages, and the
data-parallel collectives around them; the optimizer's norm brings all stages together.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from usp_prof.inputs.op_table import Op
from usp_prof.model.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.inputs.op_table import OpTable

FORWARD, BACKWARD = "forward-compute", "backward-compute"
GATHER, SCATTER, EMBEDDING = "params-all-gather", "grads-reduce-scatter", "embedding-grads-all-reduce"
NORM, LAYER_NORM, OPTIMIZER, COLLECTION = "optimizer-clip-main-grad", "layernorm-grads-all-reduce", "optimizer", "gc"
_AHEAD = {"forward": 1, "backward": -1}


@dataclass(slots=True)
class Model:
    """Which operations each one follows, which it meets (itself among them), and which meet over data parallelism."""

    after: dict[Op, list[Op]] = field(default_factory=lambda: defaultdict(list))
    meets: dict[Op, tuple[Op, ...]] = field(default_factory=dict)
    over_replicas: set[Op] = field(default_factory=set)

    def chain(self, ops: Iterable[Op]) -> None:
        """Let each follow the one before."""
        for before, after in pairwise(ops):
            self.after[after].append(before)

    def join(self, ops: Iterable[Op], *, over_replicas: bool = False) -> None:
        """Let operations meet: none ends before the last has begun."""
        members = tuple(ops)
        for op in members:
            self.meets[op] = members
        if over_replicas:
            self.over_replicas |= set(members)


def build_model(table: OpTable) -> Model:
    """Work out what waits for what, from the order in the first step of the first replica."""
    model, place = Model(), {op: row for row, op in enumerate(table.ops)}
    start = {op: int(table.start_ns[row, 0, 0]) for op, row in place.items()}
    for stage in range(table.stages):
        mine = sorted((op for op in table.ops if op.stage == stage), key=lambda op: (start[op], op.number, op.kind))
        of_kind: dict[str, list[Op]] = defaultdict(list)
        for op in mine:
            of_kind[op.kind].append(op)
        compute = [op for op in mine if op.kind in (FORWARD, BACKWARD)]
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
    compute, sends, receives = (of_kind[f"{way}-{what}"] for what in ("compute", "send", "recv"))
    for transfers in (sends, receives):
        if transfers and len(transfers) != len(compute):
            raise InputError(
                f"stage {compute[0].stage} has {len(transfers)} {transfers[0].kind} to {len(compute)} computations",
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
    """Transfers of gradients begin only when the warm-up's last but one forward is done."""
    turn = next((place for place, op in enumerate(compute) if op.kind == BACKWARD), 0)
    if turn < 2:
        return
    for kind in ("backward-recv", "backward-send"):
        if of_kind[kind]:
            model.after[of_kind[kind][0]].append(compute[turn - 2])


def _around(model: Model, compute: list[Op], of_kind: dict[str, list[Op]]) -> None:
    """Parameters are gathered before the first forward; gradients are reduced after the last backward."""
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
