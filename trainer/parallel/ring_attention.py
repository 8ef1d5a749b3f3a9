"""Ring attention: keys and values are passed from rank to rank, and each block is merged into an exact softmax.

While a rank computes with one block, the next one arrives (Liu et al., arXiv:2310.01889). Blocks are cut into tiles.
The causal mask leaves a tile whole, cuts it along its diagonal, or hides it. Hidden tiles cost nothing, so the
contiguous layout is unbalanced and zigzag is balanced. Each tile is one fused kernel without a mask. It also returns a
log-sum-exp, which is needed to merge tiles (`attend`, below). In backward, a block's gradient travels with the block to
its owner.

`AllGatherAttention` computes the same tiles after one all-gather of all keys and values, as in Llama 3
(arXiv:2407.21783).
In the trace: `cp::ring_send_recv` and `cp::ring_wait`, or `cp::all_gather_kv`.

Playbook: Ring Attention, zig-zag ring attention (under Context Parallelism).
Messages per layer with n ranks: forward n - 1 sends of a block; backward n - 1 of blocks and n of gradients, which are
in fp32. All-gather: one all-gather in forward, one reduce-scatter in backward.
Called by: `build.py` (`build_attention`) makes one for all layers, which call it as their attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainer.parallel.collectives import Group, all_gather, reduce_scatter
from trainer.parallel.ring_transfer import RingTransfer, shift
from usp_prof.record import mark

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values of a tile, or their gradients."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Consecutive queries of this rank and consecutive keys of a block."""

    rows: slice
    columns: slice
    causal: bool
    """Whether both are the same part of the sequence, so each query attends only to keys up to its own."""


class RingAttention:
    """Causal attention over ``[batch, heads, local sequence, head width]`` that passes on blocks of keys and values."""

    def __init__(self, group: Group, runs: Sequence[Sequence[range]]) -> None:
        """Take the runs of the sequence that each rank has."""
        self.group = group
        self.attend, self.attend_backward = attend, attend_backward
        self.tiles = [_tiles(runs[group.rank], source) for source in runs]
        """Tiles of each rank's block that this rank's queries see."""

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attend from this rank's queries to all ranks' keys."""
        return _BlockwiseAttention.apply(q, k, v, self)

    def bring(self, block: torch.Tensor) -> torch.Tensor:
        """Return the keys and values that are stored for backward: this rank's block."""
        return block

    def blocks(self, block: torch.Tensor) -> Iterator[tuple[torch.Tensor, list[Tile]]]:
        """Yield each rank's block and its tiles, this rank's first, while the next block arrives."""
        for step in range(self.group.size):
            transfer = shift(block, self.group, step) if step < self.group.size - 1 else None
            yield block, self.tiles[(self.group.rank - step) % self.group.size]
            if transfer is not None:
                block = transfer.arrived(step)

    def sum_gradients(self, gradients: Iterator[torch.Tensor]) -> torch.Tensor:
        """Sum each block's gradients over ranks, in the order of `blocks`; return those of this rank's block."""
        traveling: RingTransfer | None = None
        for step, own in enumerate(gradients):
            total = own if traveling is None else own.add_(traveling.arrived(step))
            traveling = shift(total, self.group, step)
        return traveling.arrived(self.group.size)


class AllGatherAttention(RingAttention):
    """The same attention after one all-gather; blocks are computed without communication."""

    def bring(self, block: torch.Tensor) -> torch.Tensor:
        """Gather all ranks' blocks."""
        with mark("cp", "all_gather_kv"):
            return all_gather(block.unsqueeze(0), self.group)

    def blocks(self, gathered: torch.Tensor) -> Iterator[tuple[torch.Tensor, list[Tile]]]:
        """Yield each rank's block and its tiles."""
        yield from zip(gathered, self.tiles, strict=True)

    def sum_gradients(self, gradients: Iterator[torch.Tensor]) -> torch.Tensor:
        """Reduce and scatter the gradients of all blocks."""
        return reduce_scatter(torch.stack(list(gradients)), self.group).squeeze(0)


def _tiles(own: Sequence[range], block: Sequence[range]) -> list[Tile]:
    """Cut a block into tiles; all runs have the same length, and two runs are equal or do not overlap."""
    tiles = []
    row = 0
    for queries in own:
        column = 0
        for keys in block:
            if keys[0] <= queries[0]:
                tiles.append(Tile(slice(row, row + len(queries)), slice(column, column + len(keys)), keys == queries))
            column += len(keys)
        row += len(queries)
    return tiles


def _expand(block: torch.Tensor, heads: int) -> torch.Tensor:
    """Repeat a block's keys and values for each head of queries (grouped queries)."""
    return block if block.shape[2] == heads else block.repeat_interleave(heads // block.shape[2], 2)


def _fold(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Add up gradients of repeated keys or values."""
    return x if x.shape[1] == heads else x.unflatten(1, (heads, -1)).sum(2)


class _BlockwiseAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ring: RingAttention) -> torch.Tensor:  # noqa: ANN401 - torch's context
        wide_dtype = torch.promote_types(q.dtype, torch.float32)  # of sums: fp32, or fp64
        out = torch.zeros(q.shape, dtype=wide_dtype, device=q.device)
        lse = torch.full(q.shape[:-1], -torch.inf, dtype=wide_dtype, device=q.device)
        saved_blocks = ring.bring(torch.stack([k, v]))
        for block, tiles in ring.blocks(saved_blocks):
            keys, values = _expand(block, q.shape[1])
            for tile in tiles:
                columns = keys[:, :, tile.columns], values[:, :, tile.columns]
                part, part_lse = ring.attend(q[:, :, tile.rows], *columns, causal=tile.causal)
                before = lse[:, :, tile.rows]
                after = torch.logaddexp(before, part_lse)
                scaled = out[:, :, tile.rows] * (before - after).exp().unsqueeze(-1)
                out[:, :, tile.rows] = scaled + part * (part_lse - after).exp().unsqueeze(-1)
                lse[:, :, tile.rows] = after
        out = out.to(q.dtype)
        ctx.save_for_backward(q, saved_blocks, out, lse)
        ctx.ring = ring
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        q, saved_blocks, out, lse = ctx.saved_tensors
        ring: RingAttention = ctx.ring
        dq = torch.zeros_like(q, dtype=lse.dtype)

        def gradients() -> Iterator[torch.Tensor]:
            for block, tiles in ring.blocks(saved_blocks):
                keys, values = _expand(block, q.shape[1])
                own = torch.zeros(block.shape, dtype=lse.dtype, device=q.device)
                for tile in tiles:
                    queries, d_out, merged, merged_lse = (x[:, :, tile.rows] for x in (q, grad, out, lse))
                    columns = keys[:, :, tile.columns], values[:, :, tile.columns]
                    d_q, d_k, d_v = ring.attend_backward(
                        d_out, (queries, *columns), merged, merged_lse, causal=tile.causal
                    )
                    dq[:, :, tile.rows] += d_q
                    own[0][:, :, tile.columns] += _fold(d_k.to(own.dtype), block.shape[2])
                    own[1][:, :, tile.columns] += _fold(d_v.to(own.dtype), block.shape[2])
                yield own

        dk, dv = ring.sum_gradients(gradients()).to(q.dtype).unbind(0)
        return dq.to(q.dtype), dk, dv, None


# Attention of one tile: from some queries to some keys, with the log-sum-exp by which tiles are merged.
#
# The fused kernels of `scaled_dot_product_attention` never store the scores. That function drops the log-sum-exp, so
# the kernels are called directly, by private names of torch 2.11 to 2.13. If there is no kernel (fp32 and fp64 on a
# GPU, heads of an odd width), `plain` and `plain_backward` do the same with stored scores. They also show what the
# kernels do.


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend from ``[batch, heads, queries, width]``; return the result and the log-sum-exp of each query's scores.

    Under `causal`, query i sees the keys 0 to i; there are then as many keys as queries.
    Attention to keys A and B together follows from attention to each alone:
        lse = logaddexp(lse_A, lse_B)
        out = out_A exp(lse_A - lse) + out_B exp(lse_B - lse)
    """
    return (flash_attention if has_flash_attention(q) else plain)(q, k, v, causal=causal)


def attend_backward(grad: torch.Tensor, tile: Three, out: torch.Tensor, lse: torch.Tensor, *, causal: bool) -> Three:
    """Return the gradients of a tile's queries, keys and values; `out` and `lse` are those of all tiles together.

    Tiles are independent: a tile's part of the whole softmax is exp(scores - lse).
    """
    backward = flash_attention_backward if has_flash_attention(grad) else plain_backward
    return backward(grad, tile, out, lse, causal=causal)


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with scores in memory."""
    scores = _scores(q, k, causal=causal)
    lse = scores.logsumexp(-1)
    shares = (scores - lse.unsqueeze(-1)).exp()
    return shares.to(v.dtype) @ v, lse


def plain_backward(grad: torch.Tensor, tile: Three, out: torch.Tensor, lse: torch.Tensor, *, causal: bool) -> Three:
    """Return the three gradients with scores in memory."""
    q, k, v = tile
    shares = (_scores(q, k, causal=causal) - lse.unsqueeze(-1)).exp()
    d_values = shares.to(grad.dtype).mT @ grad
    d_shares = (grad @ v.mT).to(lse.dtype)
    # Backward of softmax: d_score = share * (d_share - mean), where the mean weighs each d_share by its share.
    mean = (grad * out).to(lse.dtype).sum(-1, keepdim=True)
    d_scores = (shares * (d_shares - mean) / math.sqrt(q.shape[-1])).to(q.dtype)
    return d_scores @ k, d_scores.mT @ q, d_values


def _scores(q: torch.Tensor, k: torch.Tensor, *, causal: bool) -> torch.Tensor:
    scores = (q @ k.mT).to(torch.promote_types(q.dtype, torch.float32)) / math.sqrt(q.shape[-1])
    if not causal:
        return scores
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, -torch.inf)


def has_flash_attention(x: torch.Tensor) -> bool:
    """Return whether the fused kernel supports heads of this type and width."""
    if not x.is_cuda:
        return True
    return x.dtype in {torch.bfloat16, torch.float16} and x.shape[-1] % 8 == 0 and x.shape[-1] <= 256


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with one fused kernel; return the result and the log-sum-exp, which the public function drops."""
    aten = torch.ops.aten
    kernel = aten._scaled_dot_product_flash_attention if q.is_cuda else aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
    out, lse, *_ = kernel(q, k, v, 0.0, causal)
    return out, lse


def flash_attention_backward(
    grad: torch.Tensor, tile: Three, out: torch.Tensor, lse: torch.Tensor, *, causal: bool
) -> Three:
    """Return the gradients of queries, keys and values; torch's own ring attention calls the kernel in the same way.

    The GPU kernel reads the log-sum-exp as contiguous memory, whatever its strides: a slice would cause wrong
    gradients without an error.
    """
    q, k, v = tile
    aten = torch.ops.aten
    if not q.is_cuda:
        kernel = aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001
        return kernel(grad, q, k, v, out, lse, 0.0, causal)  # type: ignore[no-any-return]
    dropout_state = torch.empty(2, dtype=torch.uint64, device=q.device)  # unused without dropout
    kernel = aten._scaled_dot_product_flash_attention_backward  # noqa: SLF001
    lengths = (None, None, q.shape[2], k.shape[2])
    return kernel(grad, q, k, v, out, lse.contiguous(), *lengths, 0.0, causal, dropout_state, dropout_state)  # type: ignore[no-any-return]
