"""How do tokens find their experts, wherever these live?

A router picks `top_k` experts for each token. The tokens are sorted by expert, sent to the ranks that hold them (an
all-to-all with uneven runs, after one that exchanges the counts), multiplied in groups, sent back and weighted. No
token is dropped. A bias per expert, moved after each step against its load, keeps loads even without an auxiliary loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

from trainer.parallel.collectives import exchange
from trainer.parallel.expert import Route
from trainer.parallel.tensor import replicated, weight
from usp_prof.record import expert_combine, expert_dispatch, expert_load

if TYPE_CHECKING:
    from trainer.model.decoder import Plan


def expert_weight(name: str, plan: Plan, rows: int, columns: int) -> nn.Parameter:
    """Draw this rank's experts' matrices, ``[local experts, rows, columns]``."""
    group, seed = plan.mesh["ep"], plan.settled.options.seed
    local = plan.settled.shape.experts // group.size
    mine = range(group.rank * local, (group.rank + 1) * local)
    parameter = nn.Parameter(torch.stack([weight(f"{name}.{index}", (rows, columns), seed) for index in mine]))
    parameter.expert = True  # type: ignore[attr-defined] # read by parallel.data
    return parameter


class ExpertWeights(nn.Module):
    """The routed experts of this rank; a module of their own, because they are sharded over fewer ranks."""

    def __init__(self, plan: Plan, name: str) -> None:
        super().__init__()
        hidden, ffn = plan.settled.shape.hidden, plan.settled.shape.ffn
        self.gate = expert_weight(f"{name}.gate", plan, hidden, ffn)
        self.up = expert_weight(f"{name}.up", plan, hidden, ffn)
        self.down = expert_weight(f"{name}.down", plan, ffn, hidden)

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Apply each expert to its run of rows; `counts` says how long the runs are."""
        ends = counts.cumsum(0).to(torch.int32)
        gate, up = _grouped(x, self.gate, ends), _grouped(x, self.up, ends)
        return _grouped(F.silu(gate) * up, self.down, ends)


def _grouped(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Multiply runs of rows by one matrix each: in one kernel where it takes the sizes (rows of 16 bytes) and type."""
    unit = 16 // x.element_size()
    if len(x) and x.dtype != torch.float64 and not (x.shape[-1] % unit or weights.shape[-1] % unit):
        return F.grouped_mm(x, weights, offs=ends)
    runs = x.tensor_split(ends[:-1].cpu().long())
    return torch.cat([run @ matrix for run, matrix in zip(runs, weights, strict=True)])


class Experts(nn.Module):
    """A mixture of experts in place of a feed-forward network."""

    def __init__(self, plan: Plan, name: str) -> None:
        super().__init__()
        shape, seed = plan.settled.shape, plan.settled.options.seed
        self.group, self.top_k, self.count = plan.mesh["ep"], shape.top_k, shape.experts
        self.router = replicated(weight(f"{name}.router", (shape.experts, shape.hidden), seed))
        self.weights = ExpertWeights(plan, name)
        self.register_buffer("bias", torch.zeros(shape.experts))
        self.register_buffer("load", torch.zeros(shape.experts, dtype=torch.int64), persistent=False)
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
            results = self.weights(arrived[route.by_expert], route.counts)[route.by_expert.argsort()]
            if self.pace is not None and self.pace.experts:
                results = self.pace.work(results, self.pace.experts * arrived.shape[0] / chosen.numel())
        with expert_combine():
            results = exchange(results, self.group, route.receives, route.sends)
        back = results[route.order.argsort()]
        return (back.unflatten(0, (-1, self.top_k)) * gates.unsqueeze(-1)).sum(1).view_as(x)
