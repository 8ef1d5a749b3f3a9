"""Ulysses: an all-to-all changes the split of the sequence to a split of the heads, and another one changes it back.

A context-parallel rank has some tokens of all heads, but attention needs all tokens of a head. With two ranks:

    before     rank 0: tokens 0..3 of heads 0..7     rank 1: tokens 4..7 of heads 0..7
    all-to-all of queries, keys and values, in one message
    attention  rank 0: tokens 0..7 of heads 0..3     rank 1: tokens 0..7 of heads 4..7
    all-to-all of the result
    after      as before

The heads must be divisible by the ranks (Jacobs et al., DeepSpeed-Ulysses, arXiv:2309.14509). In the trace:
`cp::ulysses_a2a`.

Playbook: not in it; DeepSpeed calls this sequence parallelism.
Messages per layer: two all-to-alls in forward and two in backward. A rank keeps 1/n of each and sends the rest.
Called by: `build.py` (`build_attention`) makes one for all layers, which call it as their attention.
"""

from __future__ import annotations

from math import gcd

import torch

from trainer.parallel.collectives import Group, all_to_all
from trainer.parallel.context_parallel import causal_attention
from usp_prof.record import mark


class UlyssesAttention:
    """Causal attention over ``[batch, heads, local sequence, head width]``."""

    def __init__(self, group: Group, gathered: torch.Tensor) -> None:
        """Take the positions of all ranks' tokens, concatenated in the order of the ranks."""
        self.group, self.gathered = group, gathered
        self.in_order = gathered.argsort()

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attend from this rank's queries to the whole sequence before them."""
        # Each rank needs a head of keys and values: with fewer heads than ranks (grouped queries), they are repeated.
        repeats = self.group.size // gcd(k.shape[1], self.group.size)
        if repeats > 1:
            k, v = (x.repeat_interleave(repeats, 1) for x in (k, v))
        return self._split_sequence(causal_attention(*self._split_heads(q, k, v)))

    def _split_heads(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Send the heads of other ranks, and receive the whole sequence of this rank's heads."""
        by_rank = [x.unflatten(1, (self.group.size, -1)) for x in tensors]  # [batch, rank, heads of it, local, width]
        leaving = torch.cat(by_rank, 2).movedim(1, 0).contiguous()
        with mark("cp", "ulysses_a2a"):
            arrived = all_to_all(leaving, self.group)  # [rank, batch, own heads, its tokens, width]
        whole_sequence = arrived.movedim(0, 2).flatten(2, 3)[:, :, self.in_order]
        return whole_sequence.split([x.shape[2] for x in by_rank], 1)

    def _split_sequence(self, x: torch.Tensor) -> torch.Tensor:
        """Undo `_split_heads`, for one tensor."""
        leaving = x[:, :, self.gathered].unflatten(2, (self.group.size, -1)).movedim(2, 0).contiguous()
        with mark("cp", "ulysses_a2a"):
            arrived = all_to_all(leaving, self.group)  # [rank, batch, its heads, own tokens, width]
        return arrived.movedim(0, 1).flatten(1, 2)
