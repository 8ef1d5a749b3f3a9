"""Tensor parallelism: layers split by columns and by rows, with or without sequence parallelism between them.

Inside a block (attention, feed-forward network) weights are split by columns, then by rows, so that each rank ends with
partial sums of all outputs. What happens at a block's two edges is what `BlockEdges` says. The vocabulary is split
likewise, and the loss is taken without ever building the whole row of logits (loss parallelism).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

from trainer.foundation.weight_gradients import multiply
from trainer.parallel.collectives import all_reduce, gather, reduce_scatter, sum_backward, sum_forward
from trainer.parallel.mesh import Group
from trainer.parallel.stage import Plan
from trainer.parallel.weights import Constant, normal, replicated, sharded


class BlockEdges:
    """Where a block begins and ends: what tensor-parallel ranks tell each other there, forward and backward.

                                   into a block                   out of a block
        sequence parallelism       all-gather (reduce-scatter)    reduce-scatter (all-gather)
        --no-sequence-parallel     nothing (all-reduce)           all-reduce (nothing)

    With it each rank holds a slice of the sequence between the blocks, so that norms and residuals cost each rank a
    part of the time and memory. The bytes are the same: an all-reduce is a reduce-scatter and an all-gather.
    """

    def __init__(self, plan: Plan) -> None:
        self.group, self.sequence_parallel = plan.mesh["tp"], plan.settled.options.sequence_parallel

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """Give a block the whole sequence."""
        return gather(x, self.group) if self.sequence_parallel else sum_backward(x, self.group)

    def leave(self, partial_sums: torch.Tensor) -> torch.Tensor:
        """Add up what the ranks have of a block's output; each keeps its slice, or all of it."""
        return (reduce_scatter if self.sequence_parallel else sum_forward)(partial_sums, self.group)

    def held(self, positions: torch.Tensor) -> torch.Tensor:
        """Give the positions that this rank holds between the blocks."""
        return positions.chunk(self.group.size)[self.group.rank] if self.sequence_parallel else positions


class SplitLinear(nn.Module):
    """A linear layer split over the group by outputs: each rank computes some of them."""

    def __init__(self, plan: Plan, name: str, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = sharded(plan, normal(plan, name), (outputs, inputs), 0)
        self.bias = sharded(plan, Constant(0), (outputs,), 0) if bias else None
        self.product, self.postponed = plan.product, plan.postponed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by this rank's part, in the layers' precision."""
        out = multiply(x, self.weight, self.product, self.postponed)
        return out if self.bias is None else out + self.bias


class RowLinear(nn.Module):
    """A linear layer split over the group by inputs, at the end of a block: partial sums are added, then the bias."""

    def __init__(self, plan: Plan, name: str, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = sharded(plan, normal(plan, name), (outputs, inputs), 1)
        self.bias = replicated(plan, Constant(0), (outputs,)) if bias else None
        self.product, self.postponed, self.edges = plan.product, plan.postponed, BlockEdges(plan)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by this rank's part and add up."""
        out = self.edges.leave(multiply(x, self.weight, self.product, self.postponed))
        return out if self.bias is None else out + self.bias


class VocabEmbedding(nn.Module):
    """The embedding, rows split over the group; gives what a rank holds of the sequence between the blocks."""

    def __init__(self, plan: Plan, name: str, vocab: int, hidden: int) -> None:
        super().__init__()
        self.group, self.edges = plan.mesh["tp"], BlockEdges(plan)
        self.weight = sharded(plan, normal(plan, name), (vocab, hidden), 0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Look up ``[sequence, batch]`` tokens; rows of other ranks count as zero before the sum."""
        if self.group.size == 1:
            return F.embedding(tokens, self.weight)
        index, mine = _own(tokens, self.weight.shape[0], self.group)
        return self.edges.leave(F.embedding(index, self.weight) * mine.unsqueeze(-1))


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
