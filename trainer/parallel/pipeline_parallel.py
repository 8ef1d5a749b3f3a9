"""Pipeline parallelism: one rank's actions, the transfers between them, and the executor that runs both.

    F   forward of a stage for one micro-batch; the last stage computes its loss here
    B   its whole backward
    I   its backward without the weight gradients, which are left for
    W   the weight gradients

`usp_prof/schedule_orders.py`, which the analysis uses too, has the order of actions under each schedule. The two basic
schedules, with three ranks, one stage per rank and four micro-batches (a dot is idle time):

    GPipe      rank 0   F0 F1 F2 F3  .  .  .  . B0 B1 B2 B3
               rank 1    . F0 F1 F2 F3  .  . B0 B1 B2 B3  .
               rank 2    .  . F0 F1 F2 F3 B0 B1 B2 B3  .  .

    1F1B       rank 0   F0 F1 F2  .  . B0 F3 B1  . B2  . B3
               rank 1    . F0 F1  . B0 F2 B1 F3 B2  . B3  .
               rank 2    .  . F0 B0 F1 B1 F2 B2 F3 B3  .  .

Both have the same idle time. But GPipe (arXiv:1811.06965) stores the activations of all micro-batches. 1F1B
(PipeDream-Flush, arXiv:2006.09503) stores at most those of as many micro-batches as there are stages from the rank on.
Other schedules shorten the idle time: with several stages per rank (interleaved, arXiv:2104.04473), or by filling it
with weight gradients (zero bubble, arXiv:2401.10241; ZBV, arXiv:2405.15362; DualPipeV, after arXiv:2412.19437).

Transfers are posted without waiting; an action waits for its input when it begins. The trace marks each action around
its arithmetic alone, and each transfer where it is posted.

Playbook: Pipeline Parallelism: AFAB (here `gpipe`), 1F1B, interleaving stages, Zero Bubble and DualPipe.
Messages: two per micro-batch and boundary between stages, an activation and its gradient. With v stages per rank there
are v times as many boundaries, except where a V-shaped order has both stages on one rank.
Called by: `step.py` runs it in place of one forward and one backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from usp_prof import record
from usp_prof.schedule import Schedule, Shape
from usp_prof.schedule_orders import Action, Kind, Order, order, simulate, stage_ranks

if TYPE_CHECKING:
    from trainer.configuration.config import Config
    from trainer.foundation.weight_gradients import Job
    from trainer.parallel.collectives import Group
    from trainer.parallel.data_parallel import Buckets


TakeLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Place = tuple[int, int]
"""A stage and a micro-batch."""


class Pipeline:
    """The stages of this rank under one schedule."""

    def __init__(
        self, config: Config, groups: tuple[Group, Group], chunks: dict[int, nn.Module], data: Buckets, loss: TakeLoss
    ) -> None:
        """Send activations in the first group and gradients in the second one, so that neither waits for the other."""
        self.groups, self.chunks, self.data, self.take_loss = dict(zip("fb", groups, strict=True)), chunks, data, loss
        group = groups[0]
        self.micro_batches = config.options.micro_batches
        schedule, shape = Schedule(config.schedule), Shape(group.size, self.micro_batches, len(chunks))
        orders = order(schedule, shape)
        self.steps = with_transfers(orders, stage_ranks(schedule, shape))[group.rank]
        complete = [action for action in orders[group.rank] if action.kind in (Kind.BACKWARD, Kind.WEIGHT_GRADIENT)]
        self.last_of_stage = {action.stage: action for action in complete}
        """The action after which a stage's gradients are complete."""
        slices = config.layout.tp if config.options.sequence_parallel else 1
        local_sequence = config.shape.sequence // (config.layout.cp * slices)
        self.message = (local_sequence, config.micro_batch, config.shape.hidden)
        self.dtype = config.compute

    def run(
        self, tokens: torch.Tensor, targets: torch.Tensor, lengths: list[tuple[int, ...]], *, last_round: bool
    ) -> torch.Tensor:
        """Run all micro-batches forward and backward; return the summed loss (zero on ranks without the last stage)."""
        self.lengths = lengths
        self.tokens, self.targets = tokens.chunk(self.micro_batches), targets.chunk(self.micro_batches)
        self.last_round = last_round
        self.losses: list[torch.Tensor] = []
        self.arrived: dict[tuple[str, int, int], tuple[torch.Tensor, dist.Work | None]] = {}
        """By way, stage and micro-batch: activations that a stage takes (`f`) or gradients of its output (`b`), and the
        message that brings them."""
        self.leaving: dict[tuple[str, int, int], torch.Tensor] = {}
        """By way, stage and micro-batch: what a stage made for another rank."""
        self.sending: dict[tuple[str, int, int], dist.Work] = {}
        """By way, stage and micro-batch: messages that hold what they send."""
        self.alive: dict[Place, tuple[torch.Tensor, torch.Tensor]] = {}
        """Input and output of each forward whose backward is to come."""
        self.deferred: dict[Place, list[Job]] = {}
        """What each I left for its W."""
        act = {"F": self._forward, "B": self._backward, "I": self._backward, "W": self._weight_gradients}
        for step in self.steps:
            if isinstance(step, Transfer):
                self._post(step)
            else:
                act[step.kind](step)
        for work in self.sending.values():
            work.wait()
        return torch.stack(self.losses).sum() if self.losses else tokens.new_zeros((), dtype=torch.float32)

    def _forward(self, action: Action) -> None:
        module, place = self.chunks[action.stage], (action.stage, action.micro_batch)
        x = self.tokens[action.micro_batch] if module.first else self._take("f", place).requires_grad_()
        with record.pipeline_action("F", stage=action.stage, micro_batch=action.micro_batch):
            output = module(x, self.lengths[action.micro_batch])
            if module.last:
                output = self.take_loss(output, self.targets[action.micro_batch])
                self.losses.append(output.detach())
        self.alive[place] = x, output
        if not module.last:
            self._hand_over("f", action, action.stage + 1, output.detach())

    def _backward(self, action: Action) -> None:
        module, place = self.chunks[action.stage], (action.stage, action.micro_batch)
        gradient = None if module.last else self._take("b", place)
        if work := self.sending.pop(("f", *place), None):
            work.wait()  # at once: the next stage has sent the gradient of what it received
        x, output = self.alive.pop(place)
        self.data.begin(action.stage, last=self._completes(action))
        with record.pipeline_action(action.kind, stage=action.stage, micro_batch=action.micro_batch):
            if action.kind is Kind.BACKWARD:
                output.backward(gradient)
            else:
                with module.grad_store.collect() as self.deferred[place]:
                    output.backward(gradient)
        if not module.first:
            self._hand_over("b", action, action.stage - 1, x.grad)

    def _weight_gradients(self, action: Action) -> None:
        with record.pipeline_action("W", stage=action.stage, micro_batch=action.micro_batch):
            for job in self.deferred.pop((action.stage, action.micro_batch)):
                job()
        self.data.take(action.stage, last=self._completes(action))

    def _completes(self, action: Action) -> bool:
        """Return whether a stage's gradients of this update are complete after an action."""
        return self.last_round and self.last_of_stage[action.stage] == action

    def _hand_over(self, way: str, action: Action, to: int, tensor: torch.Tensor) -> None:
        """Pass a result to another stage of this rank, or keep it for the next send."""
        if to in self.chunks:
            self.arrived[way, to, action.micro_batch] = tensor, None
        else:
            self.leaving[way, action.stage, action.micro_batch] = tensor

    def _take(self, way: str, place: Place) -> torch.Tensor:
        """Wait for another stage's result."""
        tensor, work = self.arrived.pop((way, *place))
        if work is not None:
            work.wait()
        return tensor

    def _post(self, transfer: Transfer) -> None:
        """Start a send or a receive."""
        key = (transfer.name[-1], transfer.stage, transfer.micro_batch)
        group = self.groups[transfer.name[-1]]
        peer = group.ranks[transfer.peer]
        mark = record.pipeline_transfer(
            transfer.name, stage=transfer.stage, micro_batch=transfer.micro_batch, peer=peer
        )
        if transfer.name.startswith("send"):
            group.before_message()
            with mark:
                self.sending[key] = dist.isend(self.leaving.pop(key), group=group.handle, group_dst=transfer.peer)
        else:
            tensor = torch.empty(self.message, dtype=self.dtype, device=self.tokens[0].device)
            with mark:
                self.arrived[key] = tensor, dist.irecv(tensor, group=group.handle, group_src=transfer.peer)


# Transfers: the sends and receives that a schedule's actions need, in an order that cannot deadlock.
#
# A rank's messages with one neighbor must be posted in the same order at both ends, because NCCL runs them one after
# another. So the actions of all ranks are visited in the order of a simulation. As soon as an action has produced what
# another rank needs, its send is appended to one rank's list and the receive to the other's:
#
#     rank 0   0F0 send_f0  0F1 send_f1             recv_b0  0B0             recv_b1  0B1
#     rank 1       recv_f0      recv_f1  1F0   1B0  send_b0         1F1 1B1  send_b1


@dataclass(frozen=True, slots=True)
class Transfer:
    """One end of a message between stages: an activation (`f`) or a gradient (`b`)."""

    name: str
    """`send_f`, `recv_f`, `send_b` or `recv_b`, as the trace has it."""
    stage: int
    """The stage at this end."""
    micro_batch: int
    peer: int
    """Rank of the other end within the pipeline."""


def with_transfers(orders: Order, home: Sequence[int]) -> tuple[tuple[Action | Transfer, ...], ...]:
    """Insert each rank's transfers between its actions; `home` is the rank of each stage."""
    steps: list[list[Action | Transfer]] = [[] for _ in orders]
    rounds = simulate(orders, lambda _: 1)
    for _, rank, action in sorted(zip(rounds.start, rounds.rank, rounds.actions, strict=True)):
        steps[rank].append(action)
        if action.kind is Kind.WEIGHT_GRADIENT:
            continue
        way, onward = ("f", 1) if action.kind is Kind.FORWARD else ("b", -1)
        to = action.stage + onward
        if 0 <= to < len(home) and home[to] != rank:
            steps[rank].append(Transfer(f"send_{way}", action.stage, action.micro_batch, home[to]))
            steps[home[to]].append(Transfer(f"recv_{way}", to, action.micro_batch, int(rank)))
    return tuple(map(tuple, steps))
