"""The smaller layers: norms, the feed-forward network, shared experts, learned positions.

Between the blocks, a tensor-parallel rank has a slice of the sequence, ``[sequence / cp / tp, batch, hidden]``. Without
sequence parallelism, it has the whole sequence.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

from trainer.parallel.stage import Plan
from trainer.parallel.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from trainer.parallel.weights import constant

ACTIVATIONS = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


class Norm(nn.Module):
    """RMS norm, or layer norm with a bias; `of_heads`: RMS norm of each head's queries or keys."""

    def __init__(self, plan: Plan, *, of_heads: bool = False) -> None:
        super().__init__()
        shape = plan.config.shape
        width = shape.head_dim if of_heads else shape.hidden
        self.weight = plan.replicated(constant(1), (width,), sees_part=of_heads)
        self.bias = plan.replicated(constant(0), (width,)) if shape.norm == "layer" and not of_heads else None
        self.eps = shape.norm_eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale the last dimension to unit root mean square, or to zero mean and unit variance."""
        if self.bias is not None:
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class FeedForward(nn.Module):
    """A feed-forward network of inner width `ffn`, gated or not, split over tp."""

    def __init__(self, plan: Plan, name: str, ffn: int, *, bias: bool = False) -> None:
        super().__init__()
        shape, self.edges = plan.config.shape, plan.edges
        self.activation = ACTIVATIONS[shape.activation]
        self.gate = ColumnParallelLinear(plan, f"{name}.gate", shape.hidden, ffn, bias=bias) if shape.gated else None
        self.up = ColumnParallelLinear(plan, f"{name}.up", shape.hidden, ffn, bias=bias)
        self.down = RowParallelLinear(plan, f"{name}.down", ffn, shape.hidden, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the network; input and output have the layout between blocks."""
        if self.gate is None:
            (up,) = self.edges.project(x, (self.up,))
            return self.down(self.activation(up))
        gate, up = self.edges.project(x, (self.gate, self.up))
        return self.down(self.activation(gate) * up)


class SharedExperts(FeedForward):
    """A network for every token in addition to its routed experts; a gate may scale it per token."""

    def __init__(self, plan: Plan, name: str) -> None:
        shape = plan.config.shape
        super().__init__(plan, name, shape.shared_ffn)
        share = plan.normal(f"{name}.share")
        self.share = plan.replicated(share, (1, shape.hidden)) if shape.shared_gate else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the network, and scale its output per token."""
        out = super().forward(x)
        return out if self.share is None else out * F.linear(x, self.share).sigmoid()


class PositionEmbedding(nn.Module):
    """Learned positions, added to this rank's part of the sequence."""

    def __init__(self, plan: Plan, where: torch.Tensor) -> None:
        """Take the positions of this context-parallel rank's tokens."""
        super().__init__()
        shape = plan.config.shape
        self.weight = plan.replicated(plan.normal("positions"), (shape.learned_positions, shape.hidden))
        self.where = plan.edges.local(where).to(plan.device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add each token's position."""
        return x + F.embedding(self.where, self.weight).unsqueeze(1)
