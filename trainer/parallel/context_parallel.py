"""Context parallelism: attention over a sequence that is cut over ranks.

Three methods:
    ring         keys and values travel from rank to rank (`ring_attention.py`)
    Ulysses      an all-to-all trades the split of the sequence for a split of the heads, and back (`ulysses.py`)
    all-gather   every rank gathers all keys and values

Two layouts. *Contiguous* gives each rank one run of the sequence, so that under a causal mask late ranks work more.
*Zigzag* gives rank r the chunks r and 2n-1-r, which is balanced.
"""

from __future__ import annotations

import torch

from trainer.configuration.config import Config
from trainer.parallel.causal_attention import causal_attention
from trainer.parallel.collectives import Group, gather
from trainer.parallel.ring_attention import Ring
from trainer.parallel.ulysses import UlyssesAttention
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

    def __init__(self, group: Group, config: Config, device: torch.device) -> None:
        options = config.options
        self.group, self.method = group, options.cp_method if group.size > 1 else "whole"
        sequence, layout = config.shape.sequence, options.cp_layout
        held = [positions(sequence, group.size, rank, layout) for rank in range(group.size)]
        self.mine = held[group.rank].to(device)
        self.gathered = torch.cat(held).to(device)
        """The position of each token once all ranks' tokens stand one after another."""
        self.ulysses = UlyssesAttention(group, self.gathered)
        if self.method == "ring":
            self.ring = Ring(group, [runs(sequence, group.size, rank, layout) for rank in range(group.size)])

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attend from this rank's queries to the whole sequence before them."""
        match self.method:
            case "ring":
                return self.ring(q, k, v)
            case "ulysses":
                return self.ulysses(q, k, v)
            case "allgather":
                return self._all_gather(q, k, v)
        return causal_attention(q, k, v)

    def _all_gather(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with mark("cp", "all_gather_kv"):
            pair = gather(torch.stack([k, v]).movedim(3, 0).contiguous(), self.group)
        k, v = pair.movedim(0, 3).unbind(0)
        return causal_attention(q, k, v, self.gathered.unsqueeze(0) <= self.mine.unsqueeze(1))
