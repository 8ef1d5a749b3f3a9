"""Tensor parallelism: layers split by columns and by rows, with or without sequence parallelism between them.

A block (attention, feed-forward network) is y = f(x A) B. With n ranks, rank r holds columns A_r and rows B_r:

    h_r = f(x A_r)        a part of the inner width: some of the heads, some of the network's neurons
    y   = sum of h_r B_r  each rank has a partial sum of all outputs, so one collective a block adds them up

So nothing travels inside a block; what travels at its two edges is what `BlockEdges` says. The vocabulary is split
likewise: rows of the embedding, columns of the head. Of the logits a rank has its columns alone, and the loss is taken
without ever bringing a whole row together (loss parallelism).

Activations are ``[sequence, batch, width]``. In the comments S is the sequence of this context-parallel rank, B the
batch, H the hidden width, V the vocabulary, n the tensor-parallel ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

from trainer.foundation.weight_gradients import multiply
from trainer.parallel.async_tensor import ChunkedProducts
from trainer.parallel.collectives import all_reduce, gather, reduce_scatter, sum_backward, sum_forward
from trainer.parallel.mesh import Group
from trainer.parallel.stage import Plan
from trainer.parallel.weights import Constant, normal, replicated, sharded


class BlockEdges:
    """Where a block begins and ends: what tensor-parallel ranks tell each other there, forward and backward.

                                   into a block                   out of a block
        sequence parallelism       all-gather (reduce-scatter)    reduce-scatter (all-gather)
        --no-sequence-parallel     nothing (all-reduce)           all-reduce (nothing)

    In brackets: what the gradient does at the same edge. With sequence parallelism each rank holds a slice of the
    sequence between the blocks, so that norms and residuals cost each rank a part of the time and memory. The bytes are
    the same: an all-reduce is a reduce-scatter and an all-gather.
    """

    def __init__(self, plan: Plan) -> None:
        self.group = plan.mesh["tp"]
        self.sequence_parallel = plan.settled.options.sequence_parallel
        self.chunked = ChunkedProducts.of(plan) if plan.settled.options.tp_async else None
        """With --tp-async: products that are cut up, so that the messages at the edges hide behind them."""

    def project(self, x: torch.Tensor, layers: Sequence[SplitLinear]) -> list[torch.Tensor]:
        """Enter a block and run its first layers, which all take the same input: ``[S, B, outputs/n]`` of each."""
        if self.chunked is None:
            x = self.enter(x)
            return [layer(x) for layer in layers]
        products = self.chunked.gather_and_multiply(x, [layer.weight for layer in layers])
        return [layer.add_bias(product) for layer, product in zip(layers, products, strict=True)]

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """Return a block the whole sequence: ``[S, B, H]`` from ``[S/n, B, H]``, or as it is."""
        if self.sequence_parallel:
            return gather(x, self.group)
        return sum_backward(x, self.group)

    def leave(self, partial_sums: torch.Tensor) -> torch.Tensor:
        """Add up the ranks' ``[S, B, H]``, of which each keeps its slice ``[S/n, B, H]``, or all."""
        if self.sequence_parallel:
            return reduce_scatter(partial_sums, self.group)
        return sum_forward(partial_sums, self.group)

    def held(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the positions that this rank holds between the blocks: S/n of S, or all."""
        if self.sequence_parallel:
            return positions.chunk(self.group.size)[self.group.rank]
        return positions


class SplitLinear(nn.Module):
    """A linear layer split over the group by outputs: each rank computes some of them, and nothing is communicated."""

    def __init__(self, plan: Plan, name: str, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        # Weights are [outputs, inputs], as torch keeps them: this rank has some of the rows.
        self.weight = sharded(plan, normal(plan, name), (outputs, inputs), 0)
        self.bias = sharded(plan, Constant(0), (outputs,), 0) if bias else None
        self.product = plan.product
        self.postponed = plan.postponed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by this rank's part, in the layers' precision: ``[S, B, outputs/n]`` from ``[S, B, inputs]``."""
        return self.add_bias(multiply(x, self.weight, self.product, self.postponed))

    def add_bias(self, product: torch.Tensor) -> torch.Tensor:
        """Add this rank's part of the bias, where there is one."""
        return product if self.bias is None else product + self.bias


class RowLinear(nn.Module):
    """A linear layer split over the group by inputs, at the end of a block: partial sums are added, then the bias."""

    def __init__(self, plan: Plan, name: str, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        # This rank has some of the columns. The bias is whole: it is added once, behind the sum.
        self.weight = sharded(plan, normal(plan, name), (outputs, inputs), 1)
        self.bias = replicated(plan, Constant(0), (outputs,)) if bias else None
        self.product = plan.product
        self.postponed = plan.postponed
        self.edges = BlockEdges(plan)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply ``[S, B, inputs/n]`` by this rank's part, and add up over the group: ``[S/n, B, outputs]``, or S."""
        if self.edges.chunked is None:
            partial_sums = multiply(x, self.weight, self.product, self.postponed)  # [S, B, outputs]
            out = self.edges.leave(partial_sums)
        else:
            out = self.edges.chunked.multiply_and_reduce(x, self.weight)
        return out if self.bias is None else out + self.bias


class VocabEmbedding(nn.Module):
    """The embedding, rows split over the group; gives what a rank holds of the sequence between the blocks."""

    def __init__(self, plan: Plan, name: str, vocab: int, hidden: int) -> None:
        super().__init__()
        self.group = plan.mesh["tp"]
        self.edges = BlockEdges(plan)
        self.weight = sharded(plan, normal(plan, name), (vocab, hidden), 0)  # [V/n, H]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Look up ``[S, B]`` tokens; a row that another rank holds counts as zero before the sum."""
        if self.group.size == 1:
            return F.embedding(tokens, self.weight)
        row, is_own = _own_rows(tokens, self.weight.shape[0], self.group)  # [S, B] each
        partial_sums = F.embedding(row, self.weight) * is_own.unsqueeze(-1)  # [S, B, H], zero but on one rank
        return self.edges.leave(partial_sums)


def _own_rows(tokens: torch.Tensor, rows: int, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each token's row among this rank's, and whether it has one; otherwise the row is arbitrary."""
    row = tokens - group.rank * rows
    is_own = (row >= 0) & (row < rows)
    return row.clamp(0, rows - 1), is_own


class _VocabCrossEntropy(torch.autograd.Function):
    """Cross-entropy over a vocabulary that is split over the group.

    A token's loss is log(sum of exp(logit)) - logit of its target, both after the largest logit is taken off.
    Forward:  1  largest logit of each token                      all-reduce (max) of [S, B]
              2  sum of exp, and the target's logit if it is ours all-reduce (sum) of [2, S, B]
    Backward: softmax - 1 at the target, for this rank's columns; nothing travels.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor, group: Group) -> torch.Tensor:  # noqa: ANN401
        # Logits are [S, B, V/n]: the columns of this rank. Targets are [S, B], the same on all ranks.
        largest = logits.amax(-1, keepdim=True)  # [S, B, 1]
        all_reduce(largest, group, dist.ReduceOp.MAX)
        shifted = logits - largest
        exponents = shifted.exp()  # [S, B, V/n]

        column, is_own = _own_rows(targets, logits.shape[-1], group)
        column = column.unsqueeze(-1)  # [S, B, 1]
        # Zero but on the one rank that has the target's column, so that the sum over ranks is the target's logit.
        target_logit = shifted.gather(-1, column).squeeze(-1) * is_own  # [S, B]

        message = torch.stack([exponents.sum(-1), target_logit])  # [2, S, B]: both sums travel together
        all_reduce(message, group)
        sum_of_exponents, target_logit = message
        softmax = exponents / sum_of_exponents.unsqueeze(-1)  # [S, B, V/n]
        ctx.save_for_backward(softmax, column, is_own)
        return sum_of_exponents.log() - target_logit

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # noqa: ANN401
        softmax, column, is_own = ctx.saved_tensors
        is_target = torch.zeros_like(softmax)
        is_target.scatter_(-1, column, is_own.unsqueeze(-1).to(softmax.dtype))
        return (softmax - is_target) * grad.unsqueeze(-1), None, None


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor, group: Group) -> torch.Tensor:
    """Take each token's loss, ``[S, B]``, from logits ``[S, B, V/n]``; the same value on all ranks of the group."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if group.size == 1:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    return _VocabCrossEntropy.apply(logits, targets, group)
