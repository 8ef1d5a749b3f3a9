"""Expert capacity: each expert takes a fixed number of pairs from each rank, and what comes beyond is dropped.

The lengths of the exchange are then the same whatever the router chose, so the host waits for nothing: no counts are
exchanged, and the all-to-all is even. It is paid for with empty slots, which travel and are multiplied too, and with
dropped pairs, of which a token keeps its residual alone. With 2 experts, a capacity of 2 and five pairs on a rank:
    pairs by token     e0 e1 e0 e0 e1
    place in expert    0  0  1  2  1     the third pair of e0 is one too many
    slot               0  2  1  -  3
Which pairs are dropped depends on what else is on the rank, so layouts learn alike only while nothing is dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from trainer.foundation.weight_gradients import Product
from trainer.parallel.collectives import Group, all_to_all
from usp_prof.record import expert_combine, expert_dispatch

EACH = Product(
    forward=torch.bmm,
    input_gradient=lambda grad, weights: torch.bmm(grad, weights.mT),
    weight_gradient=lambda grad, x: torch.bmm(x.mT, grad),
)
"""``[experts, slots, inputs]`` times ``[experts, inputs, outputs]``."""


def capacity(factor: float, pairs: int, experts: int) -> int:
    """Return the pairs that an expert takes from a rank: `factor` times an even share, rounded up."""
    return math.ceil(factor * pairs / experts)


@dataclass(frozen=True, slots=True)
class Slots:
    """The slot of each (token, choice) pair, in order of the tokens; behind the last slot for one that is dropped."""

    slot: torch.Tensor
    experts: int
    capacity: int
    """Slots of an expert on each rank."""
    group: Group

    @classmethod
    def plan(cls, chosen: torch.Tensor, load: torch.Tensor, size: int, group: Group) -> Slots:
        """Assign each pair the next of its expert's `size` slots; `load` counts the pairs per expert."""
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
        """Send results back; return a row for each pair, zeros for one that was dropped."""
        by_rank = results.unflatten(1, (self.group.size, self.capacity)).transpose(0, 1).flatten(0, 2)
        with expert_combine():
            returned = all_to_all(by_rank, self.group)
        return torch.cat([returned, returned.new_zeros(1, returned.shape[1])])[self.slot]
