"""Expert parallelism: all-to-all of tokens to the ranks of their experts, and back.

Each rank holds some of the experts. For every layer and micro-batch:
    1  `Route.plan`   ranks exchange how many tokens they have for each expert (all-to-all of counts)
    2  `dispatch`     tokens travel to the ranks of their experts (all-to-all of uneven runs)
    3                 each rank multiplies with its own experts (`model/experts`)
    4  `combine`      results travel back (the same all-to-all, the other way round)
The counts must reach the host, because the lengths of an uneven all-to-all are host integers: this is the one wait for
the device that a step of a mixture of experts has; `capacity` drops tokens and does without it. In the trace: `ep::`
marks around each of the messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.parallel.collectives import Group, all_to_all, exchange_rows
from usp_prof.record import expert_combine, expert_dispatch, mark


@dataclass(frozen=True, slots=True)
class Route:
    """Where each (token, choice) pair goes; a pair is a row."""

    order: torch.Tensor
    """Sorts this rank's pairs by expert, and thus by the rank that they go to."""
    sends: list[int]
    """Rows for each rank of the group."""
    receives: list[int]
    """Rows from each rank of the group."""
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


def dispatch(tokens: torch.Tensor, top_k: int, route: Route, group: Group) -> torch.Tensor:
    """Send each token to the ranks of its `top_k` experts; return the rows that arrive, by source rank."""
    with expert_dispatch():
        return all_to_all(tokens[route.order // top_k], group, route.sends, route.receives)


def combine(results: torch.Tensor, route: Route, group: Group) -> torch.Tensor:
    """Send results back; return one row for each (token, choice) pair, in the order of the tokens."""
    with expert_combine():
        returned = all_to_all(results, group, route.receives, route.sends)
    return returned[route.order.argsort()]
