"""Mixture of experts: a router, and the routed experts of this rank.

A router selects `top_k` experts for each token. Tokens are sorted by expert, sent to the ranks of these experts (an
all-to-all with uneven lengths, after one that exchanges the counts), multiplied in groups, sent back and weighted. No
token is dropped, unless `--capacity` limits the tokens per expert. A bias per expert keeps loads even without an
auxiliary loss: after each step, it moves against the expert's load.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

from trainer.foundation.weight_gradients import Product, multiply
from trainer.model.layers import ACTIVATIONS
from trainer.parallel.expert_parallel import Route, Slots, capacity, combine, dispatch
from trainer.parallel.stage import Plan

ROW_BYTES = 16
"""The kernel that multiplies groups needs rows whose bytes are multiples of this."""


BATCHED = Product(
    forward=torch.bmm,
    input_gradient=lambda grad, weights: torch.bmm(grad, weights.mT),
    weight_gradient=lambda grad, x: torch.bmm(x.mT, grad),
)
"""``[experts, slots, inputs]`` times ``[experts, inputs, outputs]``."""


def multiplies_groups(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether torch has one kernel for runs of rows with separate matrices; its fallback waits for the GPU."""
    if device.type == "cpu":
        return dtype != torch.float64
    return dtype == torch.bfloat16 and torch.cuda.get_device_capability(device)[0] in {9, 10}


class ExpertWeights(nn.Module):
    """The routed experts of this rank; a separate module, because they are sharded over fewer ranks."""

    def __init__(self, plan: Plan, name: str) -> None:
        super().__init__()
        shape, dtype = plan.config.shape, plan.config.compute
        hidden, ffn = shape.hidden, shape.expert_width
        self.activation = ACTIVATIONS[shape.activation]
        self.gate = plan.expert_weight(f"{name}.gate", hidden, ffn)
        self.up = plan.expert_weight(f"{name}.up", hidden, ffn)
        self.down = plan.expert_weight(f"{name}.down", ffn, hidden)
        self.grad_store = plan.grad_store
        rows_fit = not any(size * dtype.itemsize % ROW_BYTES for size in (hidden, ffn))
        self.in_one_kernel = rows_fit and multiplies_groups(plan.device, dtype)

    def forward(self, x: torch.Tensor, route: Route | None) -> torch.Tensor:
        """Apply each expert to its run of rows, or without a route, to its matrix of slots."""
        product = BATCHED if route is None else self._of_runs(x, route)
        times = partial(multiply, product=product, grad_store=self.grad_store)
        return times(self.activation(times(x, self.gate)) * times(x, self.up), self.down)

    def _of_runs(self, x: torch.Tensor, route: Route) -> Product:
        if self.in_one_kernel and len(x) > 0:
            return grouped_product(route.counts.cumsum(0).to(torch.int32))
        return looped_product(route.experts)


def grouped_product(ends: torch.Tensor) -> Product:
    """Multiply each run of rows by its own matrix, in one kernel; `ends` has the end of each run."""
    return Product(
        forward=partial(F.grouped_mm, offs=ends),
        input_gradient=lambda grad, weights: F.grouped_mm(grad, weights.transpose(1, 2), offs=ends),
        weight_gradient=lambda grad, x: F.grouped_mm(x.t(), grad, offs=ends),
    )


def looped_product(lengths: list[int]) -> Product:
    """Multiply each run of rows by its own matrix, one kernel per run."""

    def weight_gradient(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        runs = zip(grad.split(lengths), x.split(lengths), strict=True)
        return torch.stack([inputs.t() @ gradients for gradients, inputs in runs])

    return Product(
        forward=partial(multiply_runs, lengths=lengths),
        input_gradient=lambda grad, weights: multiply_runs(grad, weights.transpose(1, 2), lengths),
        weight_gradient=weight_gradient,
    )


def multiply_runs(x: torch.Tensor, weights: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Multiply each run of rows by its own matrix like `grouped_mm`, but with one kernel per run."""
    return torch.cat([run @ matrix for run, matrix in zip(x.split(lengths), weights, strict=True)])


class Experts(nn.Module):
    """A mixture of experts in place of a feed-forward network."""

    def __init__(self, plan: Plan, name: str) -> None:
        super().__init__()
        self.shape = shape = plan.config.shape
        self.group, self.top_k = plan.mesh["ep"], shape.top_k
        self.router = plan.replicated(plan.normal(f"{name}.router"), (shape.experts, shape.hidden))
        self.weights = ExpertWeights(plan, name)
        self.register_buffer("bias", torch.zeros(shape.experts, device=plan.device))
        self.register_buffer("load", torch.zeros_like(self.bias, dtype=torch.int64), persistent=False)
        self.register_buffer("dropped", torch.zeros((), dtype=torch.int64, device=plan.device), persistent=False)
        layout, config = plan.mesh.layout, plan.config
        self.pairs = config.micro_batch * shape.sequence // (layout.cp * layout.tp) * shape.top_k
        """Pairs of a token and one of its experts that this rank has in a micro-batch."""
        self.capacity = capacity(config.options.capacity, self.pairs, shape.experts)
        """Pairs that an expert takes from each rank in a micro-batch; 0: all."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Route tokens, compute, and send results back; return the result and the number of tokens per expert.

        Every rank routes its own slice of the sequence. Recomputation runs this again, so the load is not added up
        here: the decoder calls `count` once.
        """
        tokens = x.flatten(0, 1)
        chosen, gates = self._choose(tokens)
        # Tokens per expert; unlike `bincount`, this does not make the host wait.
        pairs = chosen.flatten()
        load = torch.zeros_like(self.load).scatter_add_(0, pairs, torch.ones_like(pairs))
        compute = self._in_slots if self.capacity else self._in_runs
        returned = compute(tokens, chosen, load)
        # A pair is a token and one of its experts: [pairs, hidden] are [tokens, top_k, hidden].
        weighted = returned.unflatten(0, (-1, self.top_k)) * gates.unsqueeze(-1)
        return weighted.sum(1).view_as(x), load

    def _choose(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each token's experts and their weights: both ``[tokens, top_k]``."""
        wide_dtype = torch.promote_types(tokens.dtype, torch.float32)
        logits = F.linear(tokens.to(wide_dtype), self.router.to(wide_dtype))
        scores = logits.sigmoid() if self.shape.scoring == "sigmoid" else logits.softmax(-1)
        chosen = self.preferences(scores).topk(self.top_k, -1).indices
        gates = scores.gather(-1, chosen)
        if self.shape.renormalize:
            gates = gates / gates.sum(-1, keepdim=True)
        return chosen, (gates * self.shape.routed_scale).to(tokens.dtype)

    def preferences(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the values that determine the selection; the bias balances loads and is not part of the weights."""
        return scores.detach() + self.bias

    def count(self, load: torch.Tensor) -> None:
        """Count a micro-batch's pairs, and those beyond the capacity."""
        self.load += load
        if self.capacity:
            self.dropped += (load - self.capacity).clamp(min=0).sum()

    def _in_runs(self, tokens: torch.Tensor, chosen: torch.Tensor, load: torch.Tensor) -> torch.Tensor:
        """Return each pair's result without dropping any; the host waits for the lengths of the runs."""
        route = Route.plan(chosen, load, self.group)
        arrived = dispatch(tokens, self.top_k, route, self.group)
        results = self.weights(arrived[route.by_expert], route)
        return combine(results[route.by_expert.argsort()], route, self.group)

    def _in_slots(self, tokens: torch.Tensor, chosen: torch.Tensor, load: torch.Tensor) -> torch.Tensor:
        """Return each pair's result, zeros beyond the capacity; the host does not wait."""
        slots = Slots.plan(chosen, load, self.capacity, self.group)
        return slots.combine(self.weights(slots.dispatch(tokens, self.top_k), None))
