"""Ring attention: keys and values travel from rank to rank, and each block is folded into an exact softmax.

While a block is computed the next one is on its way. Blocks are cut into tiles that the causal mask shows wholly,
along the diagonal or not at all, and the last kind costs nothing: that is what makes the contiguous layout unbalanced
and zigzag balanced. Each tile is one fused kernel that also gives a log-sum-exp, by which tiles are merged
(`tile_attention`). On the way back a block's gradient travels with it and ends at its owner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainer.parallel.mesh import Group
from trainer.parallel.passing import Neighbours, Passage
from trainer.parallel.tile_attention import attend, attend_backward
from trainer.synthetic.pacing import Pace


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

    def __init__(self, group: Group, runs: Sequence[Sequence[range]], pace: Pace | None) -> None:
        self.group, self.pace = group, pace
        self.neighbours = Neighbours(group, "cp")
        self.tiles = [_tiles(runs[group.rank], source) for source in runs]
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

    def rounds(self, block: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, list[Tile]]]:
        """Give each step with a rank's block and its tiles, mine first; meanwhile the next block is on its way."""
        for step in range(self.group.size):
            passage = self.neighbours.shift(block, step) if step < self.group.size - 1 else None
            yield step, block, self.tiles[self.source(step)]
            if passage is not None:
                block = passage.arrived(step)


def _tiles(mine: Sequence[range], theirs: Sequence[range]) -> list[Tile]:
    """Cut a block into tiles; runs are of one length, and two of them are the same or do not overlap."""
    tiles = []
    row = 0
    for queries in mine:
        column = 0
        for keys in theirs:
            if keys[0] <= queries[0]:
                tiles.append(Tile(slice(row, row + len(queries)), slice(column, column + len(keys)), keys == queries))
            column += len(keys)
        row += len(queries)
    return tiles


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
            ring.stand(step, "fwd", 1)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.ring = ring
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        q, k, v, out, lse = ctx.saved_tensors
        ring: Ring = ctx.ring
        dq = torch.zeros_like(q, dtype=lse.dtype)
        travelling: Passage | None = None
        for step, block, tiles in ring.rounds(torch.stack([k, v])):
            own = torch.zeros(block.shape, dtype=lse.dtype, device=q.device)
            for tile in tiles:
                _tile_backward(tile, block, own, (q, out, lse, grad, dq))
            ring.stand(step, "dgrad", 2)
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
