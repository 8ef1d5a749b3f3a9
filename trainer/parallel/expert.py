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

    @classmethod
    def plan(cls, chosen: torch.Tensor, load: torch.Tensor, group: Group) -> Route:
        """Exchange counts with the group and derive the runs."""
        order = chosen.flatten().argsort(stable=True)
        sent = load.view(group.size, -1)
        received = sent
        if group.size > 1:
            with mark("ep", "counts"):
                received = exchange_rows(sent, None, None, group)
        sends, receives = torch.stack([sent.sum(1), received.sum(1)]).tolist()
        expert_of_row = torch.arange(received.shape[1], device=load.device).repeat(group.size)
        expert_of_row = expert_of_row.repeat_interleave(received.flatten(), output_size=sum(receives))
        by_expert = expert_of_row.argsort(stable=True)
        return cls(order, order.argsort(), sends, receives, by_expert, by_expert.argsort(), received.sum(0))


def dispatch(rows: torch.Tensor, route: Route, group: Group) -> torch.Tensor:
    """Send each row to its expert's rank."""
    with mark("ep", "dispatch"):
        return exchange(rows, group, route.sends, route.receives)


def combine(rows: torch.Tensor, route: Route, group: Group) -> torch.Tensor:
    """Send each result back to where its token came from."""
    with mark("ep", "combine"):
        return exchange(rows, group, route.receives, route.sends)
