"""Tensor parallelism: layers split by columns and by rows, with or without sequence parallelism between them.

A block (attention, feed-forward network) is y = f(x A) B. With n ranks, rank r holds columns A_r and rows B_r:

    h_r = f(x A_r)        a part of the inner width: some of the heads, some of the network's neurons
    y   = sum of h_r B_r  each rank has a partial sum of all outputs, so one collective per block adds them up

So there is no communication inside a block; `BlockEdges` communicates at its two edges. The vocabulary is split too:
rows of the embedding, columns of the head. A rank has only its columns of the logits, and computes the loss without
gathering whole rows (loss parallelism).

Activations are ``[sequence, batch, width]``. In the comments, S is the sequence of this context-parallel rank, B the
batch, H the hidden width, V the vocabulary, and n the number of tensor-parallel ranks.

Playbook: Tensor Parallelism (column-linear, row-linear).
Messages per layer, which has two blocks: two all-reduces in forward and two in backward. Embedding and head add one
each, the loss two small ones. They cannot be hidden, because the next product needs the sum.
Called by: `decoder.py` and `layers.py` build their layers from these classes; `step.py` computes the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

from trainer.parallel.collectives import Group, all_reduce, all_reduce_backward, all_reduce_forward

if TYPE_CHECKING:
    from trainer.parallel.stage import Plan


class BlockEdges:
    """The start and the end of a block, where tensor-parallel ranks communicate, in forward and backward.

                                   start of a block               end of a block
        BlockEdges                 nothing (all-reduce)           all-reduce (nothing)
        SequenceParallelEdges      all-gather (reduce-scatter)    reduce-scatter (all-gather)

    In brackets: what the gradient does at the same edge. `sequence_parallel.py` has the second kind, and
    `async_tensor_parallel.py` hides it behind the products.
    """

    def __init__(self, group: Group) -> None:
        self.group = group

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """Return the whole sequence that a block computes on: ``[S, B, H]``."""
        return all_reduce_backward(x, self.group)

    def leave(self, partial_sums: torch.Tensor) -> torch.Tensor:
        """Add up the ranks' ``[S, B, H]``."""
        return all_reduce_forward(partial_sums, self.group)

    def local(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the positions of this rank between the blocks: all of them."""
        return positions

    def project(self, x: torch.Tensor, layers: Sequence[ColumnParallelLinear]) -> list[torch.Tensor]:
        """Enter a block and run its first layers, which all take the same input: ``[S, B, outputs/n]`` each."""
        x = self.enter(x)
        return [layer(x) for layer in layers]

    def multiply_and_leave(self, x: torch.Tensor, layer: RowParallelLinear) -> torch.Tensor:
        """Multiply ``[S, B, inputs/n]`` by a block's last weight and leave the block."""
        return self.leave(layer.multiply(x, layer.weight))


class ColumnParallelLinear(nn.Module):
    """A linear layer split over the group by outputs: each rank computes some of them, without communication."""

    def __init__(self, plan: Plan, name: str, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        # Weights are [outputs, inputs], as torch keeps them: this rank has some of the rows.
        self.weight = plan.split((outputs, inputs), dim=0, name=name)
        self.bias = plan.split((outputs,), dim=0) if bias else None
        self.multiply, self.product, self.grad_store = plan.multiply, plan.product, plan.grad_store

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by this rank's part, in the layers' precision: ``[S, B, outputs/n]`` from ``[S, B, inputs]``."""
        return self.add_bias(self.multiply(x, self.weight))

    def add_bias(self, product: torch.Tensor) -> torch.Tensor:
        """Add this rank's part of the bias, if there is one."""
        return product if self.bias is None else product + self.bias


class RowParallelLinear(nn.Module):
    """A linear layer split over the group by inputs, at the end of a block: partial sums are added, then the bias."""

    def __init__(self, plan: Plan, name: str, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        # This rank has some of the columns. The bias is whole: it is added once, after the sum.
        self.weight = plan.split((outputs, inputs), dim=1, name=name)
        self.bias = plan.whole_bias(outputs) if bias else None
        self.multiply, self.edges = plan.multiply, plan.edges

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply ``[S, B, inputs/n]`` by this rank's part, and add up over the group: ``[S/n, B, outputs]``, or S."""
        out = self.edges.multiply_and_leave(x, self)
        return out if self.bias is None else out + self.bias


class VocabParallelEmbedding(nn.Module):
    """The embedding, with rows split over the group; the output has the layout between blocks."""

    def __init__(self, plan: Plan, name: str, vocab: int, hidden: int) -> None:
        super().__init__()
        self.group = plan.mesh["tp"]
        self.edges = plan.edges
        self.weight = plan.split((vocab, hidden), dim=0, name=name)  # [V/n, H]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Look up ``[S, B]`` tokens; rows of other ranks count as zero in the sum."""
        if self.group.size == 1:
            return F.embedding(tokens, self.weight)
        row, is_own = _own_rows(tokens, self.weight.shape[0], self.group)  # [S, B] each
        partial_sums = F.embedding(row, self.weight) * is_own.unsqueeze(-1)  # [S, B, H], zero but on one rank
        return self.edges.leave(partial_sums)


def _own_rows(tokens: torch.Tensor, rows: int, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each token's row on this rank, and whether this rank has it; if not, the row is arbitrary."""
    row = tokens - group.rank * rows
    is_own = (row >= 0) & (row < rows)
    return row.clamp(0, rows - 1), is_own


WIDENED_NUMBERS = 2**24
"""Logits that are converted to fp32 at a time: 64 MB, which take a GPU far longer than a launch."""


class _VocabCrossEntropy(torch.autograd.Function):
    """Cross-entropy over a vocabulary that is split over the group.

    A token's loss is log(sum of exp(logit)) - logit of its target, after the largest logit is subtracted from both.
    Forward:  1  largest logit of each token                       all-reduce (max) of [S, B, 1]
              2  sum of exp, and the target's logit if it is here  all-reduce (sum) of [2, S, B, 1]
    Backward: softmax - 1 at the target, for this rank's columns; no communication.

    Softmax needs fp32, but an fp32 copy of all logits would be the largest tensor of the step. So both passes convert
    some tokens at a time, and backward recomputes the softmax.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor, group: Group) -> torch.Tensor:  # noqa: ANN401
        # Logits are [S, B, V/n]: the columns of this rank. Targets are [S, B], the same on all ranks.
        wide_dtype = torch.promote_types(logits.dtype, torch.float32)
        positions = max(1, WIDENED_NUMBERS // logits[0].numel())  # of the sequence, converted at a time
        largest = logits.amax(-1, keepdim=True).to(wide_dtype)  # [S, B, 1]
        all_reduce(largest, group, dist.ReduceOp.MAX)

        exponents = []
        for some_logits, some_largest in zip(logits.split(positions), largest.split(positions), strict=True):
            exponents.append((some_logits.to(wide_dtype) - some_largest).exp().sum(-1, keepdim=True))
        column, is_own = _own_rows(targets.unsqueeze(-1), logits.shape[-1], group)  # [S, B, 1] each
        # Zero but on the one rank that has the target's column, so that the sum over ranks is the target's logit.
        target_logit = (logits.gather(-1, column).to(wide_dtype) - largest) * is_own

        message = torch.stack([torch.cat(exponents), target_logit])  # [2, S, B, 1]: both sums travel together
        all_reduce(message, group)
        sum_of_exponents, target_logit = message
        log_sum = sum_of_exponents.log()
        ctx.save_for_backward(logits, largest + log_sum, column, is_own)
        ctx.positions = positions
        return (log_sum - target_logit).squeeze(-1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # noqa: ANN401
        logits, log_sum, column, is_own = ctx.saved_tensors
        d_logits = torch.empty_like(logits)
        for start in range(0, len(logits), ctx.positions):
            some = slice(start, start + ctx.positions)
            softmax = (logits[some].to(log_sum.dtype) - log_sum[some]).exp()
            softmax.scatter_add_(-1, column[some], -is_own[some].to(log_sum.dtype))
            d_logits[some] = softmax * grad[some].unsqueeze(-1)
        return d_logits, None, None


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor, group: Group) -> torch.Tensor:
    """Return each token's loss, ``[S, B]``, from logits ``[S, B, V/n]``; the same value on all ranks of the group."""
    return _VocabCrossEntropy.apply(logits, targets, group)
