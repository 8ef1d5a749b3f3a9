"""Context parallelism: attention over a sequence that is split over ranks.

Three methods:

    ring         keys and values travel from rank to rank (`ring_attention.py`)
    all-gather   every rank gathers all keys and values, then computes the tiles of the ring (`ring_attention.py`)
    Ulysses      an all-to-all changes the split of the sequence to a split of the heads, and back (`ulysses.py`)

There are two layouts. *Contiguous* gives each rank one part of the sequence, so with a causal mask late ranks work
more. *Zigzag* gives rank r the chunks r and 2n-1-r, which is balanced.

Playbook: Context Parallelism, zig-zag ring attention.
Messages: those of the three methods, within attention only; all other layers process each token alone. Ranks of a
context-parallel group also sum their gradients, as data-parallel ranks do.
Called by: `build.py` chooses the method, `batches.py` cuts the tokens, `decoder.py` needs their positions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name


def runs(sequence: int, size: int, rank: int, layout: str) -> list[range]:
    """Return the runs of positions that a rank has: one, or one from each end."""
    chunks, own_chunks = size, [rank]
    if layout == "zigzag" and size > 1:
        chunks, own_chunks = 2 * size, [rank, 2 * size - 1 - rank]
    length = sequence // chunks
    return [range(chunk * length, (chunk + 1) * length) for chunk in own_chunks]


def positions(sequence: int, size: int, rank: int, layout: str) -> torch.Tensor:
    """Return the positions of the tokens that a rank has."""
    return torch.cat([torch.arange(run.start, run.stop) for run in runs(sequence, size, rank, layout)])


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attend from each query to the keys up to its own; keys may have fewer heads (grouped queries)."""
    if q.is_cuda and q.dtype == torch.float32:  # no GPU kernel supports grouped queries in fp32
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
