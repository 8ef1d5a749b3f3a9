"""How is one layer's arithmetic split over tensor-parallel ranks?

Between the blocks each rank keeps a slice of the sequence (sequence parallelism, always on: it is what makes norms and
residuals cheap). Into a block the sequence is gathered and weights are split by columns; out of it weights are split
by rows and the partial sums are reduced and scattered back to slices. The vocabulary is split likewise, and the loss
is taken without ever building the whole row of logits (loss parallelism).
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

from trainer.parallel.collectives import all_reduce, reduce_scatter
from trainer.parallel.mesh import Group

if TYPE_CHECKING:
    from trainer.model.plan import Plan


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
    return kept(plan, full.chunk(group.size, dim)[group.rank])


def replicated(plan: Plan, full: torch.Tensor) -> nn.Parameter:
    """Keep a whole weight that sees a slice of the sequence only: its gradient is partial, to be summed over tp."""
    parameter = kept(plan, full)
    parameter.partial_over_tp = True  # type: ignore[attr-defined] # read by parallel.data
    return parameter


class SplitLinear(nn.Module):
    """A linear layer split over the group: by outputs (`dim` 0), or by inputs (1), which leaves partial sums."""

    def __init__(self, plan: Plan, name: str, inputs: int, outputs: int, dim: int = 0) -> None:
        super().__init__()
        self.weight = sharded(plan, weight(plan, name, (outputs, inputs)), dim)
        self.multiply = plan.multiply

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by this rank's part, in the layers' precision."""
        return self.multiply(x, self.weight)


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
