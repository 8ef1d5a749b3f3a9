"""Context parallelism: attention over a sequence that is cut over ranks.

Three methods. *Ring* (`ring.py`): keys and values travel from rank to rank. *All-gather*: every rank gathers all keys
and values. *Ulysses*: an all-to-all trades the split of the sequence for a split of the heads, and back.

Two layouts. *Contiguous* gives each rank one run of the sequence, so that under a causal mask late ranks work more.
*Zigzag* gives rank r the chunks r and 2n-1-r, which is balanced.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from trainer.configuration.settled import Settled
from trainer.parallel.collectives import exchange, gather
from trainer.parallel.mesh import Group
from trainer.parallel.ring import Ring, expand
from trainer.synthetic.pacing import Pace
from usp_prof.record import mark


def runs(sequence: int, size: int, rank: int, layout: str) -> list[range]:
    """Return the runs of positions that a rank holds: one, or one from each end."""
    chunks, own_chunks = size, [rank]
    if layout == "zigzag" and size > 1:
        chunks, own_chunks = 2 * size, [rank, 2 * size - 1 - rank]
    length = sequence // chunks
    return [range(chunk * length, (chunk + 1) * length) for chunk in own_chunks]


def positions(sequence: int, size: int, rank: int, layout: str) -> torch.Tensor:
    """Return the positions of the tokens that a rank holds."""
    return torch.cat([torch.arange(run.start, run.stop) for run in runs(sequence, size, rank, layout)])


class ContextAttention:
    """Causal attention over ``[batch, heads, local sequence, head width]``, by one of the three methods."""

    def __init__(self, group: Group, settled: Settled, device: torch.device, pace: Pace | None) -> None:
        options = settled.options
        self.group, self.method = group, options.cp_method if group.size > 1 else "whole"
        sequence, layout = settled.shape.sequence, options.cp_layout
        held = [positions(sequence, group.size, rank, layout) for rank in range(group.size)]
        self.mine = held[group.rank].to(device)
        self.gathered = torch.cat(held).to(device)
        """The position of each token once all ranks' tokens stand one after another."""
        self.in_order = self.gathered.argsort()
        if self.method == "ring":
            self.ring = Ring(group, [runs(sequence, group.size, rank, layout) for rank in range(group.size)], pace)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attend from this rank's queries to the whole sequence before them."""
        match self.method:
            case "ring":
                return self.ring(q, k, v)
            case "ulysses":
                return self._ulysses(q, k, v)
            case "allgather":
                return self._all_gather(q, k, v)
        return _attend(q, k, v)

    def _all_gather(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with mark("cp", "all_gather_kv"):
            pair = gather(torch.stack([k, v]).movedim(3, 0).contiguous(), self.group)
        k, v = pair.movedim(0, 3).unbind(0)
        return _attend(q, k, v, self.gathered.unsqueeze(0) <= self.mine.unsqueeze(1))

    def _ulysses(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if k.shape[1] % self.group.size:
            k, v = (expand(x, q.shape[1]) for x in (k, v))
        return self._heads_back(_attend(*(self._heads_out(x) for x in (q, k, v))))

    def _heads_out(self, x: torch.Tensor) -> torch.Tensor:
        """Return away the other ranks' heads and get the whole sequence of mine."""
        batch, heads, local, width = x.shape
        with mark("cp", "ulysses_a2a"):
            rows = exchange(x.movedim(1, 0).contiguous(), self.group)
        parts = rows.view(self.group.size, heads // self.group.size, batch, local, width)
        return parts.permute(2, 1, 0, 3, 4).reshape(batch, -1, self.group.size * local, width)[:, :, self.in_order]

    def _heads_back(self, x: torch.Tensor) -> torch.Tensor:
        """Undo `_heads_out`."""
        parts = x[:, :, self.gathered].unflatten(2, (self.group.size, -1))
        with mark("cp", "ulysses_a2a"):
            rows = exchange(parts.permute(2, 1, 0, 3, 4).flatten(0, 1).contiguous(), self.group)
        return rows.movedim(0, 1)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor | None = None) -> torch.Tensor:
    if visible is not None or (q.is_cuda and q.dtype == torch.float32):
        # No lean kernel of a GPU takes fewer heads of keys with a mask, or in fp32.
        k, v = (expand(x, q.shape[1]) for x in (k, v))
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=visible is None, enable_gqa=grouped)
