"""Sequence parallelism: between the blocks, each tensor-parallel rank holds a slice of the sequence.

Norms and residuals then cost each rank a part of the time and of the memory. The all-reduce at the end of a block
becomes a reduce-scatter there, and an all-gather at the start of the next block (Korthikanti et al.,
arXiv:2205.05198). The bytes are the same: an all-reduce is a reduce-scatter and an all-gather.

Shapes: S is the sequence of this context-parallel rank, B the batch, H the hidden width, n the ranks of the group.
"""

from __future__ import annotations

import torch

from trainer.parallel.collectives import gather, reduce_scatter
from trainer.parallel.tensor_parallel import BlockEdges


class SequenceParallelEdges(BlockEdges):
    """The edges of a block between which each rank holds ``[S/n, B, H]``."""

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """Gather the whole sequence, ``[S, B, H]``; the gradient is reduced and scattered."""
        return gather(x, self.group)

    def leave(self, partial_sums: torch.Tensor) -> torch.Tensor:
        """Add up the ranks' ``[S, B, H]``, of which each keeps its slice; the gradient is gathered."""
        return reduce_scatter(partial_sums, self.group)

    def local(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the positions of this rank's slice: S/n of S."""
        return positions.chunk(self.group.size)[self.group.rank]
