"""Ring attention: keys and values travel from rank to rank, and each block is folded into an exact softmax.

While a block is computed the next one is on its way. A running log-sum-exp keeps the softmax exact. Blocks are cut
into tiles that the causal mask shows wholly, partly or not at all, and the last kind costs nothing: that is what makes
the contiguous layout unbalanced and zigzag balanced. On the way back a block's gradient travels with it and ends at
its owner.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from trainer.pacing import Pace
from trainer.parallel.mesh import Group
from usp_prof.record import ring_step, ring_wait


@dataclass(frozen=True, slots=True)
class Tile:
    """A run of my queries against a run of the block's keys; `mask` where only some are visible."""

    rows: slice
    columns: slice
    mask: torch.Tensor | None

    @property
    def area(self) -> float:
        """How many pairs of a query and a key it computes with, about."""
        pairs = (self.rows.stop - self.rows.start) * (self.columns.stop - self.columns.start)
        return pairs / 2 if self.mask is not None else pairs


@dataclass(frozen=True, slots=True)
class Passage:
    """A tensor on its way to the next rank, kept until it has left, and the one that comes for it."""

    leaving: torch.Tensor
    arriving: torch.Tensor
    works: list[dist.Work]

    def arrived(self, step: int) -> torch.Tensor:
        """Wait for both; gives what has come."""
        with ring_wait(step):
            for work in self.works:
                work.wait()
        return self.arriving


class Ring:
    """The ranks that pass blocks on, and the tiles of each rank's block that this rank's queries see."""

    def __init__(self, group: Group, runs: Sequence[Sequence[range]], device: torch.device, pace: Pace | None) -> None:
        self.group, self.pace = group, pace
        self.next = group.ranks[(group.rank + 1) % group.size]
        self.previous = group.ranks[(group.rank - 1) % group.size]
        self.tiles = [_tiles(runs[group.rank], source, device) for source in runs]
        held = sum(len(run) for run in runs[group.rank])
        self.shares = [sum(tile.area for tile in tiles) / (held * held * group.size / 2) for tiles in self.tiles]
        """What each rank's block costs me, in shares of what a rank computes when all compute alike."""

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attend from my queries to all ranks' keys."""
        return _RingAttention.apply(q, k, v, self)

    def source(self, step: int) -> int:
        """Say whose block is here at a step."""
        return (self.group.rank - step) % self.group.size

    def stand(self, step: int, what: str, times: float) -> None:
        """Wait as long as a paced device computes this step's tiles."""
        if self.pace is not None and self.pace.attention:
            self.pace.wait(what, times * self.pace.attention * self.shares[self.source(step)])

    def shift(self, x: torch.Tensor, step: int) -> Passage:
        """Start passing a tensor on to the next rank, and receiving one from the rank before."""
        arriving = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        self.group.leave()
        with ring_step(step):
            out = dist.P2POp(dist.isend, x, self.next, self.group.handle)
            into = dist.P2POp(dist.irecv, arriving, self.previous, self.group.handle)
            return Passage(x, arriving, dist.batch_isend_irecv([out, into]))

    def rounds(self, block: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, list[Tile]]]:
        """Give each step with a rank's block and its tiles, mine first; meanwhile the next block is on its way."""
        for step in range(self.group.size):
            passage = self.shift(block, step) if step < self.group.size - 1 else None
            yield step, block, self.tiles[self.source(step)]
            if passage is not None:
                block = passage.arrived(step)


def _tiles(mine: Sequence[range], theirs: Sequence[range], device: torch.device) -> list[Tile]:
    tiles = []
    row = 0
    for queries in mine:
        column = 0
        for keys in theirs:
            if keys[0] <= queries[-1]:
                mask = None if keys[-1] <= queries[0] else _visible(queries, keys, device)
                tiles.append(Tile(slice(row, row + len(queries)), slice(column, column + len(keys)), mask))
            column += len(keys)
        row += len(queries)
    return tiles


def _visible(queries: range, keys: range, device: torch.device) -> torch.Tensor:
    rows, columns = (torch.arange(run.start, run.stop, device=device) for run in (queries, keys))
    return columns.unsqueeze(0) <= rows.unsqueeze(1)


def expand(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Give each of so many heads of queries its own keys or values."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


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
        scale = 1 / math.sqrt(q.shape[-1])
        out = torch.zeros(q.shape, dtype=accurate, device=q.device)
        lse = torch.full(q.shape[:-1], -torch.inf, dtype=accurate, device=q.device)
        for step, block, tiles in ring.rounds(torch.stack([k, v])):
            for tile in tiles:
                keys, values = (expand(x[:, :, tile.columns], q.shape[1]) for x in block)
                scores = (q[:, :, tile.rows] @ keys.mT).to(accurate) * scale
                if tile.mask is not None:
                    scores = scores.masked_fill(~tile.mask, -torch.inf)
                before = lse[:, :, tile.rows]
                after = torch.logaddexp(before, scores.logsumexp(-1))
                shares = (scores - after.unsqueeze(-1)).exp().to(q.dtype)
                kept = out[:, :, tile.rows] * (before - after).exp().unsqueeze(-1)
                out[:, :, tile.rows] = kept + (shares @ values).to(accurate)
                lse[:, :, tile.rows] = after
            ring.stand(step, "fwd", 1)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.ring = ring
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        q, k, v, out, lse = ctx.saved_tensors
        ring: Ring = ctx.ring
        delta = (grad * out).to(lse.dtype).sum(-1, keepdim=True)
        dq = torch.zeros_like(q, dtype=lse.dtype)
        travelling: Passage | None = None
        for step, block, tiles in ring.rounds(torch.stack([k, v])):
            own = torch.zeros(block.shape, dtype=lse.dtype, device=q.device)
            for tile in tiles:
                _tile_backward(tile, block, own, (q, lse, grad, delta, dq))
            ring.stand(step, "dgrad", 2)
            if travelling is not None:
                own += travelling.arrived(step)
            travelling = ring.shift(own, step)
        dk, dv = travelling.arrived(ring.group.size).to(k.dtype).unbind(0)
        return dq.to(q.dtype), dk, dv, None


def _tile_backward(tile: Tile, block: torch.Tensor, own: torch.Tensor, saved: tuple[torch.Tensor, ...]) -> None:
    """Add one tile's share to the gradients of queries (`dq`) and of the block (`own`)."""
    q, lse, grad, delta, dq = saved
    heads, scale = block.shape[2], 1 / math.sqrt(q.shape[-1])
    keys, values = (expand(x[:, :, tile.columns], q.shape[1]) for x in block)
    queries, out_grad = q[:, :, tile.rows], grad[:, :, tile.rows]
    shares = ((queries @ keys.mT).to(lse.dtype) * scale - lse[:, :, tile.rows].unsqueeze(-1)).exp()
    if tile.mask is not None:
        shares = shares.masked_fill(~tile.mask, 0)
    d_shares = (out_grad @ values.mT).to(lse.dtype)
    d_scores = (shares * (d_shares - delta[:, :, tile.rows]) * scale).to(q.dtype)
    dq[:, :, tile.rows] += (d_scores @ keys).to(lse.dtype)
    own[0][:, :, tile.columns] += _fold((d_scores.mT @ queries).to(lse.dtype), heads)
    own[1][:, :, tile.columns] += _fold((shares.to(q.dtype).mT @ out_grad).to(lse.dtype), heads)
