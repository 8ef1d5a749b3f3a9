"""Asynchronous tensor parallelism: products in chunks that hide the messages (`--tp-async`).

With sequence parallelism, a block starts with an all-gather of the sequence and ends with a reduce-scatter
(`sequence_parallel.py`). The ranks compute nothing meanwhile. But a product can process the sequence row by row. So
each rank multiplies one chunk while the next one arrives over the ring. With three ranks, on rank 0:

    all-gather, then multiply                  multiply, then reduce-scatter
    multiply         meanwhile                 multiply          meanwhile
    own chunk 0      chunk 2 arrives           part of chunk 2
    chunk 2          chunk 1 arrives           part of chunk 1   sum of chunk 2 leaves, sum of chunk 1 arrives
    chunk 1                                    part of chunk 0   sum of chunk 1 leaves, sum of chunk 0 arrives

With n chunks, n - 1 products overlap with a message. Backward swaps the two: that of a block's first products is
multiply-and-reduce-scatter, that of its last product all-gather-and-multiply. Weight gradients need the whole sequence,
which each gather stores.

In the trace: `tp::ring_send_recv` when a chunk is posted, `tp::ring_wait` if its product has not hidden it.

Playbook: the overlap that it mentions under Tensor Parallelism; elsewhere "async TP" or "collective matmul".
Messages per layer, which has two blocks: 8 (n - 1) sends to the next rank, half of them in backward. The bytes are
those of the plain collectives, without the second all-gather of backward: the gathered sequence is kept.
Called by: `build.py` (`block_edges`), through the edges in `sequence_parallel.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from trainer.foundation.weight_gradients import Product, WeightGradStore, weight_gradient
from trainer.parallel.collectives import Group
from trainer.parallel.ring_transfer import shift


@dataclass(frozen=True, slots=True)
class ChunkedProducts:
    """Products with this rank's part of a weight, chunk by chunk; a chunk is one rank's rows of the sequence."""

    group: Group
    product: Product
    grad_store: WeightGradStore | None

    def gather_and_multiply(self, x: torch.Tensor, weights: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Multiply the whole sequence by each weight: ``[S, B, outputs/n]`` each, of ``[S/n, B, H]`` on every rank."""
        return _GatherAndMultiply.apply(x, self, *weights)

    def multiply_and_reduce(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Multiply ``[S, B, inputs/n]`` and add up over the group; return this rank's rows, ``[S/n, B, outputs]``."""
        return _MultiplyAndReduce.apply(x, weight, self)

    def arriving(self, chunk: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield each rank and its chunk, this rank's first, while the next chunk arrives."""
        size, chunk = self.group.size, chunk.contiguous()
        for step in range(size - 1):
            transfer = shift(chunk, self.group, step)
            yield (self.group.rank - step) % size, chunk  # the caller multiplies it during the transfer
            chunk = transfer.arrived(step)
        yield (self.group.rank + 1) % size, chunk

    def add_up(self, part_of: Callable[[int], torch.Tensor]) -> torch.Tensor:
        """Add up all ranks' parts of this rank's chunk; `part_of` computes this rank's part of another rank's chunk.

        The sum of each chunk travels once around the ring and ends at its owner. So a rank starts with the chunk of the
        previous rank and ends with its own. While it computes a part, the sum to which it adds the part arrives.
        """
        size = self.group.size
        total = part_of((self.group.rank - 1) % size)
        for step in range(size - 1):
            transfer = shift(total, self.group, step)
            total = part_of((self.group.rank - 2 - step) % size)
            total = total + transfer.arrived(step)
        return total

    def input_gradient(self, gradients: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return one chunk's contribution of all products to the gradient of their input."""
        parts = [self.product.input_gradient(grad, weight) for grad, weight in zip(gradients, weights, strict=True)]
        return sum(parts[1:], parts[0])


def _in_order(chunks: dict[int, torch.Tensor]) -> torch.Tensor:
    """Concatenate chunks by rank, in the order of the sequence; they arrived in the order of the ring."""
    return torch.cat([chunks[rank] for rank in sorted(chunks)])


class _GatherAndMultiply(torch.autograd.Function):
    """Forward: chunks arrive and are multiplied. Backward: gradients of chunks are computed, sent on and added up."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context
        x: torch.Tensor,
        chunked: ChunkedProducts,
        *weights: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        chunks: dict[int, torch.Tensor] = {}
        products: list[dict[int, torch.Tensor]] = [{} for _ in weights]
        for rank, chunk in chunked.arriving(x):
            chunks[rank] = chunk
            for product_of, weight in zip(products, weights, strict=True):
                product_of[rank] = chunked.product.forward(chunk, weight)
        ctx.save_for_backward(_in_order(chunks), *weights)  # the weights' gradients take the whole sequence
        # In addition to their values: the parameters, which keep their `grad` (recomputation saves detached copies).
        ctx.chunked, ctx.parameters = chunked, weights
        return tuple(_in_order(product_of) for product_of in products)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        sequence, *weights = ctx.saved_tensors
        chunked: ChunkedProducts = ctx.chunked
        grads_of_chunk = list(zip(*(grad.chunk(chunked.group.size) for grad in grads), strict=True))
        d_x = chunked.add_up(lambda rank: chunked.input_gradient(grads_of_chunk[rank], weights))
        d_weights = [
            weight_gradient(parameter, partial(chunked.product.weight_gradient, grad, sequence), chunked.grad_store)
            for parameter, grad in zip(ctx.parameters, grads, strict=True)
        ]
        return d_x, None, *d_weights


class _MultiplyAndReduce(torch.autograd.Function):
    """Forward: parts of chunks are computed, sent on and added up. Backward: gradients arrive and are multiplied."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, chunked: ChunkedProducts) -> torch.Tensor:  # noqa: ANN401
        chunks = x.chunk(chunked.group.size)

        ctx.save_for_backward(x, weight)
        ctx.chunked, ctx.parameter = chunked, weight
        return chunked.add_up(lambda rank: chunked.product.forward(chunks[rank], weight))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        x, weight = ctx.saved_tensors
        chunked: ChunkedProducts = ctx.chunked
        chunks: dict[int, torch.Tensor] = {}
        d_chunks: dict[int, torch.Tensor] = {}
        for rank, chunk in chunked.arriving(grad):
            chunks[rank] = chunk
            d_chunks[rank] = chunked.input_gradient([chunk], [weight])
        gradient = partial(chunked.product.weight_gradient, _in_order(chunks), x)
        return _in_order(d_chunks), weight_gradient(ctx.parameter, gradient, chunked.grad_store), None
