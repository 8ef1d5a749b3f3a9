"""Pipeline schedules: the order of each rank's forwards and backwards, and the messages that they need.

The two basic ones with three ranks, one stage per rank, and four micro-batches. `F1` is the forward of micro-batch 1,
`B1` its backward, a dot is idle time:

    GPipe      rank 0   F0 F1 F2 F3  .  .  .  . B0 B1 B2 B3
               rank 1    . F0 F1 F2 F3  .  . B0 B1 B2 B3  .
               rank 2    .  . F0 F1 F2 F3 B0 B1 B2 B3  .  .

    1F1B       rank 0   F0 F1 F2  .  . B0 F3 B1  . B2  . B3
               rank 1    . F0 F1  . B0 F2 B1 F3 B2  . B3  .
               rank 2    .  . F0 B0 F1 B1 F2 B2 F3 B3  .  .

Both are idle for as long. But GPipe keeps the activations of all micro-batches, and 1F1B those of at most as many as
there are stages from the rank on. The other schedules shorten the idle time: with several stages per rank (interleaved,
arXiv:2104.04473), or by moving the gradients of weights into it (zero bubble, arXiv:2401.10241; ZBV, arXiv:2405.15362;
DualPipeV, after arXiv:2412.19437). Their orders are in `usp_prof/schedule_orders.py`, which the analysis uses too.

Playbook: all-forward-all-backward (AFAB, here `gpipe`), 1F1B, interleaving stages, Zero Bubble and DualPipe.
Messages: two per micro-batch and boundary between stages. With v stages per rank there are v times as many boundaries,
except where a V-shaped order has both stages on one rank.
Called by: `pipeline_parallel.py`, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from usp_prof.schedule import Schedule, Shape
from usp_prof.schedule_orders import Action, Kind, Order, order, simulate


def gpipe(rank: int, ranks: int, micro_batches: int) -> Iterator[Action]:  # noqa: ARG001 - all ranks do the same
    """Yield all forwards, then all backwards (Huang et al., arXiv:1811.06965)."""
    for kind in (Kind.FORWARD, Kind.BACKWARD):
        for number in range(micro_batches):
            yield Action(rank, kind, number)


def one_forward_one_backward(rank: int, ranks: int, micro_batches: int) -> Iterator[Action]:
    """Yield a forward for each stage from this rank on, then one backward and one forward in turn.

    Narayanan et al. (arXiv:2006.09503) call it PipeDream-Flush.
    """
    warmup = min(ranks - rank, micro_batches)
    for number in range(warmup):
        yield Action(rank, Kind.FORWARD, number)
    for number in range(micro_batches):
        yield Action(rank, Kind.BACKWARD, number)
        if warmup + number < micro_batches:
            yield Action(rank, Kind.FORWARD, warmup + number)


GENERATORS = {Schedule.GPIPE: gpipe, Schedule.ONE_F_ONE_B: one_forward_one_backward}


def orders_of_ranks(schedule: Schedule, shape: Shape) -> Order:
    """Return the actions of each rank."""
    if schedule not in GENERATORS:
        return order(schedule, shape)
    generate = GENERATORS[schedule]
    return tuple(tuple(generate(rank, shape.ranks, shape.micro_batches)) for rank in range(shape.ranks))


# Transfers: the sends and receives that a schedule's actions need, in an order that cannot deadlock.
#
# A rank's messages with one neighbor must be posted in the same order at both ends, because NCCL runs them one after
# another. So all ranks' lists are walked together, one action per rank in each round. As soon as an action has produced
# what another rank needs, its send is appended to the one list and the receive to the other:
#
#     rank 0   0F0 send_f0  0F1 send_f1             recv_b0  0B0             recv_b1  0B1
#     rank 1       recv_f0      recv_f1  1F0   1B0  send_b0         1F1 1B1  send_b1
#
# A receive is thus posted before its action, which waits for it only when it begins.


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
