"""Sequence parallelism: between the blocks, each tensor-parallel rank has a slice of the sequence.

Norms and residuals then take each rank only a part of the time and memory. The all-reduce at the end of a block becomes
a reduce-scatter there, and an all-gather at the start of the next block (Korthikanti et al., arXiv:2205.05198). The
bytes are the same, because an all-reduce is a reduce-scatter and an all-gather.

A product at the start of a block stores its slice for backward, not the gathered sequence, which is n times as large.
Backward gathers the sequence again for the weight gradients, while it computes the input gradient. The input gradient
is summed over ranks while the weight gradients are computed. A split backward gathers in W.

Shapes: S is the sequence of this context-parallel rank, B the batch, H the hidden width, n the ranks of the group.

Playbook: Sequence Parallelism.
Messages per layer, which has two blocks: forward two all-gathers and two reduce-scatters; backward the same in the
other direction, and two more all-gathers of what forward did not keep, hidden behind a product.
Called by: `build.py` chooses the edges (`block_edges`); layers call them at the start and at the end of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch

from trainer.foundation.weight_gradients import weight_gradient
from trainer.parallel.collectives import all_gather, complete, reduce_scatter, start_all_gather, start_reduce_scatter
from trainer.parallel.tensor_parallel import BlockEdges, ColumnParallelLinear, RowParallelLinear

if TYPE_CHECKING:
    from trainer.foundation.weight_gradients import Product, WeightGradStore
    from trainer.parallel.async_tensor_parallel import ChunkedProducts
    from trainer.parallel.collectives import Group


class SequenceParallelEdges(BlockEdges):
    """Edges of blocks if each rank has ``[S/n, B, H]`` between them."""

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """Gather the whole sequence, ``[S, B, H]``; the gradient is reduced and scattered."""
        return all_gather(x, self.group)

    def leave(self, partial_sums: torch.Tensor) -> torch.Tensor:
        """Add up the ranks' ``[S, B, H]``; each rank keeps its slice, and the gradient is gathered."""
        return reduce_scatter(partial_sums, self.group)

    def project(self, x: torch.Tensor, layers: Sequence[ColumnParallelLinear]) -> list[torch.Tensor]:
        """Gather the sequence, and multiply it by the block's first weights: ``[S, B, outputs/n]`` each."""
        if self.group.size == 1:
            return super().project(x, layers)
        products = _GatherAndMultiply.apply(
            x, self.group, layers[0].product, layers[0].grad_store, *(layer.weight for layer in layers)
        )
        return [layer.add_bias(product) for layer, product in zip(layers, products, strict=True)]

    def local(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the positions of this rank's slice: S/n of S."""
        return positions.chunk(self.group.size)[self.group.rank]


class _GatherAndMultiply(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context
        x: torch.Tensor,
        group: Group,
        product: Product,
        grad_store: WeightGradStore | None,
        *weights: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(x, *weights)
        # In addition to their values: the parameters, which keep their `grad` (recomputation saves detached copies).
        ctx.group, ctx.product, ctx.grad_store, ctx.parameters = group, product, grad_store, weights
        sequence = all_gather(x, group)
        return tuple(product.forward(sequence, weight) for weight in weights)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        x, *weights = ctx.saved_tensors
        product: Product = ctx.product
        is_split = ctx.grad_store is not None and ctx.grad_store.jobs is not None
        started = None if is_split else start_all_gather(x, ctx.group)
        gathered = cache(lambda: complete(started or start_all_gather(x, ctx.group)))
        d_sequence = sum(product.input_gradient(grad, weight) for grad, weight in zip(grads, weights, strict=True))
        d_x = start_reduce_scatter(d_sequence, ctx.group)

        def gradient(grad: torch.Tensor) -> torch.Tensor:
            return product.weight_gradient(grad, gathered())

        d_weights = [
            weight_gradient(parameter, partial(gradient, grad), ctx.grad_store)
            for parameter, grad in zip(ctx.parameters, grads, strict=True)
        ]
        return complete(d_x), None, None, None, *d_weights


class AsyncEdges(SequenceParallelEdges):
    """The same edges, with messages hidden behind the chunks of a block's products (`async_tensor_parallel.py`)."""

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
