"""How do tokens travel to the ranks of their experts, and back?

`Route` is made once per layer and micro-batch. The counts must reach the host, because the lengths of an uneven
all-to-all are host integers: this is the one wait for the device that a step of a mixture of experts has.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.parallel.collectives import exchange, exchange_rows
from trainer.parallel.mesh import Group
from usp_prof.record import mark


@dataclass(frozen=True, slots=True)
class Route:
    """Where each (token, choice) pair goes."""

    order: torch.Tensor
    """Sorts pairs by expert."""
    inverse: torch.Tensor
    """Undoes `order`."""
    sends: list[int]
    receives: list[int]
    by_expert: torch.Tensor
    """Sorts arrived rows, which come by source rank, by local expert."""
    by_source: torch.Tensor
    """Undoes `by_expert`."""
    local_counts: torch.Tensor
    experts: list[int]
    """Rows for each local expert, known on the host."""

    @classmethod
    def plan(cls, chosen: torch.Tensor, load: torch.Tensor, group: Group) -> Route:
        """Exchange counts with the group and derive the runs."""
        order = chosen.flatten().argsort(stable=True)
        sent = load.view(group.size, -1)
        received = sent
        if group.size > 1:
            with mark("ep", "counts"):
                received = exchange_rows(sent, None, None, group)
        local = received.shape[1]
        counts = torch.cat([sent.sum(1), received.flatten()]).tolist()
        sends, arriving = counts[: group.size], counts[group.size :]
        receives = [sum(arriving[rank * local : (rank + 1) * local]) for rank in range(group.size)]
        experts = [sum(arriving[expert::local]) for expert in range(local)]
        expert_of_row = torch.arange(local, device=load.device).repeat(group.size)
        expert_of_row = expert_of_row.repeat_interleave(received.flatten(), output_size=sum(receives))
        by_expert = expert_of_row.argsort(stable=True)
        return cls(order, order.argsort(), sends, receives, by_expert, by_expert.argsort(), received.sum(0), experts)


def dispatch(rows: torch.Tensor, route: Route, group: Group) -> torch.Tensor:
    """Send each row to its expert's rank."""
    with mark("ep", "dispatch"):
        return exchange(rows, group, route.sends, route.receives)


def combine(rows: torch.Tensor, route: Route, group: Group) -> torch.Tensor:
    """Send each result back to where its token came from."""
    with mark("ep", "combine"):
        return exchange(rows, group, route.receives, route.sends)
