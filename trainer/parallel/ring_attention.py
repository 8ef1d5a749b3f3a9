"""Ring attention: keys and values travel from rank to rank, and each block is folded into an exact softmax.

While a block is computed the next one is on its way. Blocks are cut into tiles that the causal mask shows wholly,
along the diagonal or not at all, and the last kind costs nothing: that is what makes the contiguous layout unbalanced
and zigzag balanced. Each tile is one fused kernel that also gives a log-sum-exp, by which tiles are merged (`attend`,
at the end). On the way back a block's gradient travels with it and ends at its owner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trainer.foundation.torch_private import flash_attention, flash_attention_backward, has_flash_attention
from trainer.parallel.causal_attention import expand
from trainer.parallel.ring_transfer import Neighbours, RingTransfer

if TYPE_CHECKING:
    from trainer.parallel.collectives import Group


@dataclass(frozen=True, slots=True)
class Tile:
    """A run of my queries against a run of the block's keys."""

    rows: slice
    columns: slice
    causal: bool
    """Whether both are the same run of the sequence, so that a query sees the keys up to its own alone."""

    @property
    def area(self) -> float:
        """How many pairs of a query and a key it computes with, about."""
        pairs = (self.rows.stop - self.rows.start) * (self.columns.stop - self.columns.start)
        return pairs / 2 if self.causal else pairs


class Ring:
    """The ranks that pass blocks on, and the tiles of each rank's block that this rank's queries see."""

    def __init__(self, group: Group, runs: Sequence[Sequence[range]]) -> None:
        self.group = group
        self.block_computed: Callable[[str, float], None] = _nothing
        """Called with `fwd` or `dgrad` and the block's share of the work when a block is computed."""
        self.neighbours = Neighbours(group, "cp")
        self.tiles = [_tiles(runs[group.rank], source) for source in runs]
        held = sum(len(run) for run in runs[group.rank])
        self.shares = [sum(tile.area for tile in tiles) / (held * held * group.size / 2) for tiles in self.tiles]
        """What each rank's block costs me, in shares of what a rank computes when all compute alike."""

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attend from my queries to all ranks' keys."""
        return _RingAttention.apply(q, k, v, self)

    def source(self, step: int) -> int:
        """Return whose block is here at a step."""
        return (self.group.rank - step) % self.group.size

    def rounds(self, block: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, list[Tile]]]:
        """Yield each step with a rank's block and its tiles, this rank's first, while the next block arrives."""
        for step in range(self.group.size):
            transfer = self.neighbours.shift(block, step) if step < self.group.size - 1 else None
            yield step, block, self.tiles[self.source(step)]
            if transfer is not None:
                block = transfer.arrived(step)


def _tiles(own: Sequence[range], held: Sequence[range]) -> list[Tile]:
    """Cut a block into tiles; runs are of one length, and two of them are the same or do not overlap."""
    tiles = []
    row = 0
    for queries in own:
        column = 0
        for keys in held:
            if keys[0] <= queries[0]:
                tiles.append(Tile(slice(row, row + len(queries)), slice(column, column + len(keys)), keys == queries))
            column += len(keys)
        row += len(queries)
    return tiles


def _nothing(_what: str, _share: float) -> None:
    """Do nothing: the default of `block_computed`."""


def _fold(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x if x.shape[1] == heads else x.unflatten(1, (heads, -1)).sum(2)


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        ring: Ring,
    ) -> torch.Tensor:
        accurate = torch.promote_types(q.dtype, torch.float32)
        out = torch.zeros(q.shape, dtype=accurate, device=q.device)
        lse = torch.full(q.shape[:-1], -torch.inf, dtype=accurate, device=q.device)
        for step, block, tiles in ring.rounds(torch.stack([k, v])):
            for tile in tiles:
                keys, values = (expand(x[:, :, tile.columns], q.shape[1]) for x in block)
                part, part_lse = attend(q[:, :, tile.rows], keys, values, causal=tile.causal)
                before = lse[:, :, tile.rows]
                after = torch.logaddexp(before, part_lse)
                kept = out[:, :, tile.rows] * (before - after).exp().unsqueeze(-1)
                out[:, :, tile.rows] = kept + part * (part_lse - after).exp().unsqueeze(-1)
                lse[:, :, tile.rows] = after
            ring.block_computed("fwd", ring.shares[ring.source(step)])
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.ring = ring
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        q, k, v, out, lse = ctx.saved_tensors
        ring: Ring = ctx.ring
        dq = torch.zeros_like(q, dtype=lse.dtype)
        travelling: RingTransfer | None = None
        for step, block, tiles in ring.rounds(torch.stack([k, v])):
            own = torch.zeros(block.shape, dtype=lse.dtype, device=q.device)
            for tile in tiles:
                _tile_backward(tile, block, own, (q, out, lse, grad, dq))
            ring.block_computed("dgrad", ring.shares[ring.source(step)])
            if travelling is not None:
                own += travelling.arrived(step)
            travelling = ring.neighbours.shift(own, step)
        dk, dv = travelling.arrived(ring.group.size).to(k.dtype).unbind(0)
        return dq.to(q.dtype), dk, dv, None


def _tile_backward(tile: Tile, block: torch.Tensor, own: torch.Tensor, saved: tuple[torch.Tensor, ...]) -> None:
    """Add one tile's share to the gradients of queries (`dq`) and of the block (`own`)."""
    q, out, lse, grad, dq = saved
    keys, values = (expand(x[:, :, tile.columns], q.shape[1]) for x in block)
    queries, of_queries, merged, merged_lse = (x[:, :, tile.rows] for x in (q, grad, out, lse))
    d_q, d_k, d_v = attend_backward(of_queries, (queries, keys, values), merged, merged_lse, causal=tile.causal)
    dq[:, :, tile.rows] += d_q
    own[0][:, :, tile.columns] += _fold(d_k.to(own.dtype), block.shape[2])
    own[1][:, :, tile.columns] += _fold(d_v.to(own.dtype), block.shape[2])


# Attention of one tile: from some queries to some keys, with the log-sum-exp that lets several tiles be merged.
#
# The fused kernels behind `scaled_dot_product_attention` keep scores out of memory. That function drops the
# log-sum-exp, so they are called by their own names (`torch_private`). Where there is none (fp32 and fp64 on a GPU,
# heads of an odd width), `plain` and `plain_backward` do the same with scores in memory; they are what to read.


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend from ``[batch, heads, queries, width]``; gives the result and the log-sum-exp of each query's scores.

    Under `causal`, query i sees the keys 0 to i; there are then as many keys as queries.
    Attention to keys A and B together follows from attention to each alone:
        lse = logaddexp(lse_A, lse_B)
        out = out_A exp(lse_A - lse) + out_B exp(lse_B - lse)
    """
    return (flash_attention if has_flash_attention(q) else plain)(q, k, v, causal)


def attend_backward(
    grad: torch.Tensor,
    tile: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of a tile's queries, keys and values; `out` and `lse` are of all tiles together.

    Each tile is computed on its own: its shares of the whole softmax are exp(scores - lse).
    """
    backward = flash_attention_backward if has_flash_attention(grad) else plain_backward
    return backward(grad, tile, out, lse, causal)


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: FBT001 - as the kernels have it
    """Attend with scores in memory."""
    scores = _scores(q, k, causal=causal)
    lse = scores.logsumexp(-1)
    shares = (scores - lse.unsqueeze(-1)).exp()
    return shares.to(v.dtype) @ v, lse


def plain_backward(
    grad: torch.Tensor,
    tile: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    lse: torch.Tensor,
    causal: bool,  # noqa: FBT001 - as the kernels have it
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the three gradients with scores in memory."""
    q, k, v = tile
    shares = (_scores(q, k, causal=causal) - lse.unsqueeze(-1)).exp()
    d_values = shares.to(grad.dtype).mT @ grad
    d_shares = (grad @ v.mT).to(lse.dtype)
    # Softmax: a score's gradient is its share of what its own share's gradient exceeds the mean by.
    mean = (grad * out).to(lse.dtype).sum(-1, keepdim=True)
    d_scores = (shares * (d_shares - mean) / math.sqrt(q.shape[-1])).to(q.dtype)
    return d_scores @ k, d_scores.mT @ q, d_values


def _scores(q: torch.Tensor, k: torch.Tensor, *, causal: bool) -> torch.Tensor:
    scores = (q @ k.mT).to(torch.promote_types(q.dtype, torch.float32)) / math.sqrt(q.shape[-1])
    if not causal:
        return scores
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, -torch.inf)
