"""Sequence parallelism: between the blocks, each tensor-parallel rank holds a slice of the sequence.

Norms and residuals then cost each rank a part of the time and of the memory. The all-reduce at the end of a block
becomes a reduce-scatter there, and an all-gather at the start of the next block (Korthikanti et al.,
arXiv:2205.05198). The bytes are the same: an all-reduce is a reduce-scatter and an all-gather.

Shapes: S is the sequence of this context-parallel rank, B the batch, H the hidden width, n the ranks of the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from trainer.parallel.collectives import all_gather, reduce_scatter
from trainer.parallel.tensor_parallel import BlockEdges, ColumnParallelLinear, RowParallelLinear

if TYPE_CHECKING:
    from trainer.parallel.async_tensor_parallel import ChunkedProducts


class SequenceParallelEdges(BlockEdges):
    """The edges of a block between which each rank holds ``[S/n, B, H]``."""

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """Gather the whole sequence, ``[S, B, H]``; the gradient is reduced and scattered."""
        return all_gather(x, self.group)

    def leave(self, partial_sums: torch.Tensor) -> torch.Tensor:
        """Add up the ranks' ``[S, B, H]``, of which each keeps its slice; the gradient is gathered."""
        return reduce_scatter(partial_sums, self.group)

    def local(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the positions of this rank's slice: S/n of S."""
        return positions.chunk(self.group.size)[self.group.rank]


class AsyncEdges(SequenceParallelEdges):
    """The same edges, whose messages travel behind the chunks of a block's products (`async_tensor_parallel.py`)."""

    def __init__(self, chunked: ChunkedProducts) -> None:
        super().__init__(chunked.group)
        self.chunked = chunked

    def project(self, x: torch.Tensor, layers: Sequence[ColumnParallelLinear]) -> list[torch.Tensor]:
        """Gather the sequence chunk by chunk, and multiply each chunk while the next one arrives."""
        products = self.chunked.gather_and_multiply(x, [layer.weight for layer in layers])
        return [layer.add_bias(product) for layer, product in zip(layers, products, strict=True)]

    def multiply_and_leave(self, x: torch.Tensor, layer: RowParallelLinear) -> torch.Tensor:
        """Multiply chunk by chunk, while the sum of the previous chunk travels."""
        return self.chunked.multiply_and_reduce(x, layer.weight)
