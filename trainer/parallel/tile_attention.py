"""Tile attention: from some queries to some keys, with the log-sum-exp that lets several tiles be merged.

Attention to keys A and B together follows from attention to each alone:
    lse = logaddexp(lse_A, lse_B)
    out = out_A exp(lse_A - lse) + out_B exp(lse_B - lse)
On the way back each tile is computed on its own, from the merged `out` and `lse`: its shares are exp(scores - lse).

The fused kernels behind `scaled_dot_product_attention` keep scores out of memory. That function drops the log-sum-exp,
so they are called by their own names (`torch_private`). Where there is none (fp32 and fp64 on a GPU, heads of an odd
width), `plain` and `plain_backward` do the same with scores in memory; they are also what one should read.
"""

from __future__ import annotations

import math

import torch

from trainer.foundation.torch_private import flash_attention, flash_attention_backward, has_flash_attention


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend from ``[batch, heads, queries, width]``; gives the result and the log-sum-exp of each query's scores.

    Under `causal`, query i sees the keys 0 to i; there are then as many keys as queries.
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
    """Give the gradients of a tile's queries, keys and values; `out` and `lse` are of all tiles together."""
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
    """Give the three gradients with scores in memory."""
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
