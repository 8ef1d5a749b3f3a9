"""Tensor parallelism: layers split by columns and by rows, with sequence parallelism between them.

Between the blocks each rank keeps a slice of the sequence (sequence parallelism, always on: it is what makes norms and
residuals cheap). Into a block the sequence is gathered and weights are split by columns; out of it weights are split
by rows and the partial sums are reduced and scattered back to slices. The vocabulary is split likewise, and the loss
is taken without ever building the whole row of logits (loss parallelism).
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

from trainer.parallel.collectives import all_reduce, reduce_scatter
from trainer.parallel.mesh import Group
from trainer.parallel.placement import place
from trainer.parallel.stage import Plan
from trainer.parallel.weight_gradients import multiply


def weight(plan: Plan, name: str, shape: tuple[int, ...], std: float = 0.02) -> torch.Tensor:
    """Draw a whole weight from its own name and the seed, so that every layout starts from the same model."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + 1_000_003 * plan.settled.options.seed)
    return torch.randn(shape, generator=generator) * std


def kept(plan: Plan, part: torch.Tensor) -> nn.Parameter:
    """Keep a part of a weight on this rank's device, in the weights' type; its gradient is complete on this rank."""
    return nn.Parameter(part.to(plan.device, plan.dtype, copy=True, memory_format=torch.contiguous_format))


def sharded(plan: Plan, full: torch.Tensor, dim: int) -> nn.Parameter:
    """Keep this tensor-parallel rank's part of a weight along `dim`."""
    group = plan.mesh["tp"]
    part = full.chunk(group.size, dim)[group.rank]
    offsets = tuple(group.rank * part.shape[dim] if axis == dim else 0 for axis in range(full.ndim))
    return place(kept(plan, part), tuple(full.shape), offsets)


def replicated(plan: Plan, full: torch.Tensor) -> nn.Parameter:
    """Keep a whole weight that sees a slice of the sequence only: its gradient is partial, to be summed over tp."""
    parameter = kept(plan, full)
    parameter.partial_over_tp = True  # type: ignore[attr-defined] # read by parallel.data
    return parameter


class SplitLinear(nn.Module):
    """A linear layer split over the group by outputs: each rank computes some of them."""

    def __init__(self, plan: Plan, name: str, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = sharded(plan, weight(plan, name, (outputs, inputs)), 0)
        self.bias = sharded(plan, torch.zeros(outputs), 0) if bias else None
        self.product, self.postponed = plan.product, plan.postponed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by this rank's part, in the layers' precision."""
        out = multiply(x, self.weight, self.product, self.postponed)
        return out if self.bias is None else out + self.bias


class RowLinear(nn.Module):
    """A linear layer split over the group by inputs: partial sums are added, each rank keeping a slice of the sequence.

    The bias is added after the sum, to the slice.
    """

    def __init__(self, plan: Plan, name: str, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = sharded(plan, weight(plan, name, (outputs, inputs)), 1)
        self.bias = replicated(plan, torch.zeros(outputs)) if bias else None
        self.product, self.postponed, self.group = plan.product, plan.postponed, plan.mesh["tp"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by this rank's part and add up."""
        partial_sums = multiply(x, self.weight, self.product, self.postponed)
        out = reduce_scatter(partial_sums, self.group)
        return out if self.bias is None else out + self.bias


class VocabEmbedding(nn.Module):
    """The embedding, rows split over the group; gives a slice of the sequence."""

    def __init__(self, plan: Plan, name: str, vocab: int, hidden: int) -> None:
        super().__init__()
        self.group = plan.mesh["tp"]
        self.weight = sharded(plan, weight(plan, name, (vocab, hidden)), 0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Look up ``[sequence, batch]`` tokens; rows of other ranks count as zero before the sum."""
        if self.group.size == 1:
            return F.embedding(tokens, self.weight)
        index, mine = _own(tokens, self.weight.shape[0], self.group)
        return reduce_scatter(F.embedding(index, self.weight) * mine.unsqueeze(-1), self.group)


def _own(tokens: torch.Tensor, rows: int, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
    """Give the row of each token among this rank's, any row for those of other ranks, and which are this rank's."""
    local = tokens - group.rank * rows
    return local.clamp(0, rows - 1), (local >= 0) & (local < rows)


class _VocabCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor, group: Group) -> torch.Tensor:  # noqa: ANN401
        top = logits.amax(-1, keepdim=True)
        all_reduce(top, group, dist.ReduceOp.MAX)
        exponents = (logits - top).exp()
        index, mine = _own(targets, logits.shape[-1], group)
        index = index.unsqueeze(-1)
        picked = (logits - top).gather(-1, index).squeeze(-1) * mine
        sums = torch.stack([exponents.sum(-1), picked])
        all_reduce(sums, group)
        ctx.save_for_backward(exponents / sums[0].unsqueeze(-1), index, mine)
        return sums[0].log() - sums[1]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # noqa: ANN401
        shares, index, mine = ctx.saved_tensors
        picked = torch.zeros_like(shares).scatter_(-1, index, mine.unsqueeze(-1).to(shares.dtype))
        return (shares - picked) * grad.unsqueeze(-1), None, None


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor, group: Group) -> torch.Tensor:
    """Take each token's loss from logits whose vocabulary is split over the group; the same value on all its ranks."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if group.size == 1:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    return _VocabCrossEntropy.apply(logits, targets, group)
