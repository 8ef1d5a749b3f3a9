"""Expert parallelism: all-to-all of tokens to the ranks of their experts, and back.

Each rank has some of the experts. For every layer and micro-batch:
    1  `Route.plan`   ranks exchange the number of tokens for each expert (all-to-all of counts)
    2  `dispatch`     tokens are sent to the ranks of their experts (all-to-all with uneven lengths)
    3                 each rank multiplies with its own experts (`model/experts`)
    4  `combine`      results are sent back (the same all-to-all in the other direction)
The host needs the counts, because the lengths of an uneven all-to-all are host integers. So the host waits for the
device here, once per layer and micro-batch. With a capacity (`Slots`, below) it does not wait, but tokens are dropped.
In the trace: `ep::` marks around each of the messages.

Playbook: Expert Parallelism.
Messages per layer and micro-batch: three all-to-alls in forward (counts, tokens, results) and two in backward; with a
capacity there are no counts.
Called by: `experts.py`, in place of a feed-forward network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from trainer.parallel.collectives import Group, all_to_all, exchange_rows
from usp_prof.record import expert_combine, expert_dispatch, mark


@dataclass(frozen=True, slots=True)
class Route:
    """Destination of each pair of a token and a selected expert; a pair is a row."""

    order: torch.Tensor
    """Sorts this rank's pairs by expert, and therefore by destination rank."""
    sends: list[int]
    """Rows for each rank of the group."""
    receives: list[int]
    """Rows from each rank of the group."""
    by_expert: torch.Tensor
    """Sorts received rows, which are ordered by source rank, by local expert."""
    counts: torch.Tensor
    """Rows for each local expert."""
    experts: list[int]
    """The same numbers on the host."""

    @classmethod
    def plan(cls, chosen: torch.Tensor, load: torch.Tensor, group: Group) -> Route:
        """Exchange counts with the group and compute the route."""
        sent = received = load.view(group.size, -1)
        if group.size > 1:
            with mark("ep", "counts"):
                received = exchange_rows(sent, None, None, group)
        on_host = torch.stack([sent, received]).tolist()
        sends, receives = ([sum(run) for run in runs] for runs in on_host)
        source_by_source = torch.arange(received.shape[1], device=load.device).repeat(group.size)
        expert_of_row = source_by_source.repeat_interleave(received.flatten(), output_size=sum(receives))
        experts = [sum(column) for column in zip(*on_host[1], strict=True)]
        order, by_expert = chosen.flatten().argsort(stable=True), expert_of_row.argsort(stable=True)
        return cls(order, sends, receives, by_expert, received.sum(0), experts)


def dispatch(tokens: torch.Tensor, top_k: int, route: Route, group: Group) -> torch.Tensor:
    """Send each token to the ranks of its `top_k` experts; return the received rows, by source rank."""
    with expert_dispatch():
        return all_to_all(tokens[route.order // top_k], group, route.sends, route.receives)


def combine(results: torch.Tensor, route: Route, group: Group) -> torch.Tensor:
    """Send results back; return one row per pair, in the order of the tokens."""
    with expert_combine():
        returned = all_to_all(results, group, route.receives, route.sends)
    return returned[route.order.argsort()]


# Capacity: each expert accepts a fixed number of pairs from each rank; further pairs are dropped.
#
# The lengths of the exchange then do not depend on the router: no counts are exchanged, the all-to-all is even, and the
# host does not wait. This costs empty slots, which are sent and multiplied too, and dropped pairs, whose tokens keep
# only the residual. With 2 experts, a capacity of 2 and five pairs on a rank:
#     pairs by token     e0 e1 e0 e0 e1
#     place in expert    0  0  1  2  1     the third pair of e0 is dropped
#     slot               0  2  1  -  3
# The dropped pairs depend on the rank's other pairs, so layouts train equally only if none is dropped.


def capacity(factor: float, pairs: int, experts: int) -> int:
    """Return the number of pairs that an expert accepts from a rank: `factor` times an even share, rounded up."""
    return math.ceil(factor * pairs / experts)


@dataclass(frozen=True, slots=True)
class Slots:
    """The slot of each pair, in the order of the tokens; dropped pairs have the slot after the last one."""

    slot: torch.Tensor
    experts: int
    capacity: int
    """Slots of an expert on each rank."""
    group: Group

    @classmethod
    def plan(cls, chosen: torch.Tensor, load: torch.Tensor, size: int, group: Group) -> Slots:
        """Assign each pair the next of the `size` slots of its expert; `load` counts pairs per expert."""
        expert, experts = chosen.flatten(), len(load)
        order = expert.argsort(stable=True)
        sorted_expert = expert[order]
        first_of_expert = load.cumsum(0) - load
        place = torch.arange(len(expert), device=expert.device) - first_of_expert[sorted_expert]
        sorted_slot = torch.where(place < size, sorted_expert * size + place, experts * size)
        return cls(torch.empty_like(expert).index_copy(0, order, sorted_slot), experts, size, group)

    def dispatch(self, tokens: torch.Tensor, top_k: int) -> torch.Tensor:
        """Send each token to its experts; return ``[local experts, slots of all ranks, hidden]``."""
        pairs = tokens.unsqueeze(1).expand(-1, top_k, -1).flatten(0, 1)
        slots = tokens.new_zeros(self.experts * self.capacity + 1, tokens.shape[1]).index_copy(0, self.slot, pairs)
        with expert_dispatch():
            arrived = all_to_all(slots[:-1], self.group)
        return arrived.unflatten(0, (self.group.size, -1, self.capacity)).transpose(0, 1).flatten(1, 2)

    def combine(self, results: torch.Tensor) -> torch.Tensor:
        """Send results back; return one row per pair, zeros for dropped pairs."""
        by_rank = results.unflatten(1, (self.group.size, self.capacity)).transpose(0, 1).flatten(0, 2)
        with expert_combine():
            returned = all_to_all(by_rank, self.group)
        return torch.cat([returned, returned.new_zeros(1, returned.shape[1])])[self.slot]
