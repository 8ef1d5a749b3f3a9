"""How do tokens travel to the ranks of their experts, and back?

`Route` is made once per layer and micro-batch. The counts must reach the host, because the lengths of an uneven
all-to-all are host integers: this is the one wait for the device that a step of a mixture of experts has.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.parallel.collectives import exchange_rows
from trainer.parallel.mesh import Group
from usp_prof.record import mark


@dataclass(frozen=True, slots=True)
class Route:
    """Where each (token, choice) pair goes."""

    order: torch.Tensor
    """Sorts pairs by expert."""
    sends: list[int]
    receives: list[int]
    by_expert: torch.Tensor
    """Sorts arrived rows, which come by source rank, by local expert."""
    counts: torch.Tensor
    """Rows for each local expert."""
    experts: list[int]
    """The same, known on the host."""

    @classmethod
    def plan(cls, chosen: torch.Tensor, load: torch.Tensor, group: Group) -> Route:
        """Exchange counts with the group and derive the runs."""
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
