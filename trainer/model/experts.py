"""How do tokens find their experts, wherever these live?

A router picks `top_k` experts for each token. The tokens are sorted by expert, sent to the ranks that hold them (an
all-to-all with uneven runs, after one that exchanges the counts), multiplied in groups, sent back and weighted. No
token is dropped. A bias per expert, moved after each step against its load, keeps loads even without an auxiliary loss.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

from trainer.device import multiplies_groups
from trainer.parallel.collectives import exchange
from trainer.parallel.expert import Route
from trainer.parallel.tensor import kept, replicated, weight
from usp_prof.record import expert_combine, expert_dispatch, expert_load

if TYPE_CHECKING:
    from trainer.model.plan import Plan

ROW_BYTES = 16
"""Of what the kernel that multiplies groups wants rows to be multiples."""


def expert_weight(plan: Plan, name: str, rows: int, columns: int) -> nn.Parameter:
    """Draw this rank's experts' matrices, ``[local experts, rows, columns]``."""
    group = plan.mesh["ep"]
    local = plan.settled.shape.experts // group.size
    mine = range(group.rank * local, (group.rank + 1) * local)
    parameter = kept(plan, torch.stack([weight(plan, f"{name}.{index}", (rows, columns)) for index in mine]))
    parameter.expert = True  # type: ignore[attr-defined] # read by parallel.data
    return parameter


class ExpertWeights(nn.Module):
    """The routed experts of this rank; a module of their own, because they are sharded over fewer ranks."""

    def __init__(self, plan: Plan, name: str) -> None:
        super().__init__()
        hidden, ffn, dtype = plan.settled.shape.hidden, plan.settled.shape.ffn, plan.settled.compute
        self.gate = expert_weight(plan, f"{name}.gate", hidden, ffn)
        self.up = expert_weight(plan, f"{name}.up", hidden, ffn)
        self.down = expert_weight(plan, f"{name}.down", ffn, hidden)
        rows_fit = not any(size * dtype.itemsize % ROW_BYTES for size in (hidden, ffn))
        self.in_one_kernel = rows_fit and multiplies_groups(plan.device, dtype)

    def forward(self, x: torch.Tensor, route: Route) -> torch.Tensor:
        """Apply each expert to its run of rows."""
        if self.in_one_kernel and len(x):
            product = partial(F.grouped_mm, offs=route.counts.cumsum(0).to(torch.int32))
        else:
            product = partial(one_by_one, lengths=route.experts)
        return product(F.silu(product(x, self.gate)) * product(x, self.up), self.down)


def one_by_one(x: torch.Tensor, weights: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Multiply runs of rows by a matrix each, as `grouped_mm` does, in a kernel for each."""
    return torch.cat([run @ matrix for run, matrix in zip(x.split(lengths), weights, strict=True)])


class Experts(nn.Module):
    """A mixture of experts in place of a feed-forward network."""

    def __init__(self, plan: Plan, name: str) -> None:
        super().__init__()
        shape = plan.settled.shape
        self.group, self.top_k, self.count = plan.mesh["ep"], shape.top_k, shape.experts
        self.router = replicated(plan, weight(plan, f"{name}.router", (shape.experts, shape.hidden)))
        self.weights = ExpertWeights(plan, name)
        self.register_buffer("bias", torch.zeros(shape.experts, device=plan.device))
        self.register_buffer("load", torch.zeros_like(self.bias, dtype=torch.int64), persistent=False)
        self.crowd, self.pace = plan.crowd, plan.pace

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Route, compute and bring back; every rank routes its own slice of the sequence."""
        tokens = x.flatten(0, 1)
        accurate = torch.promote_types(x.dtype, torch.float32)
        scores = F.linear(tokens.to(accurate), self.router.to(accurate)).softmax(-1)
        with torch.no_grad():
            chosen = (scores + self.bias + self.crowd).topk(self.top_k, -1).indices
            flat = chosen.flatten()
            load = self.load.new_zeros(self.count).scatter_add_(0, flat, torch.ones_like(flat))  # bincount would wait
            self.load += load
        gates = scores.gather(-1, chosen)
        gates = (gates / gates.sum(-1, keepdim=True)).to(x.dtype)
        route = Route.plan(chosen, load, self.group)
        with expert_dispatch():
            arrived = exchange(tokens[route.order // self.top_k], self.group, route.sends, route.receives)
        with expert_load(arrived.shape[0], route.experts):
            results = self.weights(arrived[route.by_expert], route)[route.by_expert.argsort()]
            if self.pace is not None and self.pace.experts:
                results = self.pace.work(results, self.pace.experts * arrived.shape[0] / chosen.numel())
        with expert_combine():
            results = exchange(results, self.group, route.receives, route.sends)
        back = results[route.order.argsort()]
        return (back.unflatten(0, (-1, self.top_k)) * gates.unsqueeze(-1)).sum(1).view_as(x)
